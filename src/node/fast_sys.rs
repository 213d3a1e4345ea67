//! System calls of the same-host path that the standard library lacks: epoll, peer credentials, descriptor passing.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Something happened to a descriptor.
pub struct Event {
    /// As it was added.
    pub token: u64,
}

/// Waits for many descriptors.
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no memory is involved; a descriptor that is returned belongs to nobody else.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for input. A descriptor that is closed leaves by itself.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    /// Waits for room to write, or else for input.
    pub fn set(&self, fd: RawFd, token: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, if write { libc::EPOLLOUT } else { libc::EPOLLIN })
    }

    fn control(&self, what: i32, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` lives through the call.
        let rc = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Adds what happened within the time; a signal ends the wait early.
    pub fn wait(&self, events: &mut Vec<Event>, millis: i32) -> io::Result<()> {
        const MOST: usize = 64;
        let mut raw = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the kernel writes at most `MOST` entries.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), raw.as_mut_ptr(), MOST as i32, millis) };
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        events.extend(raw[..n as usize].iter().map(|e| Event { token: e.u64 }));
        Ok(())
    }
}

/// The number of this process's user.
pub fn own_user() -> u32 {
    // SAFETY: always succeeds, touches no memory.
    unsafe { libc::geteuid() }
}

/// The number of the user at the other end.
pub fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `found`.
    let rc = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &mut len)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(found.uid) }
}

/// Sends bytes and a copy of a descriptor; returns how many bytes went.
pub fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: RawFd) -> io::Result<usize> {
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero `msghdr` is a valid empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    let data = size_of::<RawFd>() as u32;
    // SAFETY: one descriptor's control message is shorter than `control`, which is aligned for its header; the header and
    // the data after it lie inside. The kernel reads what the three pointers name during the call only.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(data) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(data) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
        libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
