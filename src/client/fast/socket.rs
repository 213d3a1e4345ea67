//! The socket of one connection: whole requests out, whole answers in.
//!
//! The node answers within microseconds, so that the caller's thread itself waits for a moment, awake at first; handing the
//! wait to the runtime at once would cost more than the answer. A node that takes longer is waited for without holding the
//! thread.

use crate::client::call::CallError;
use crate::rpc::awake::Awake;
use crate::rpc::fast::{Kind, REPLY_BYTES, Reply};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Looks between two offers of the core to others, some microseconds.
const LOOKS_IN_A_ROW: u32 = 4;
/// How long the thread then sleeps for an answer, in milliseconds, before the runtime takes over.
const EAGER_MS: i32 = 1;
/// Room for the answer of a few objects, that it comes with one call to the system.
const START_BYTES: usize = 1024;

/// See the head of this file.
#[derive(Debug)]
pub struct Socket {
    stream: UnixStream,
    awake: Awake,
}

/// A file descriptor as the runtime wants it: not owned.
struct Watched(RawFd);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Attempts so far.
#[derive(Default)]
struct Attempts {
    count: u32,
    begun: Option<Instant>,
}

impl Socket {
    /// Of a connected stream.
    pub fn new(stream: UnixStream) -> Socket {
        Socket { stream, awake: Awake::default() }
    }

    /// Sends what goes at once, without waiting; how many bytes that were.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a live socket, and `bytes` as long as said.
        let n = unsafe { libc::send(self.stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }

    /// Sends all of it.
    pub async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut attempts = Attempts::default();
        while !bytes.is_empty() {
            match self.send_now(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) => self.wait(e, &mut attempts, Interest::WRITABLE).await?,
            }
        }
        Ok(())
    }

    /// The answer to a request. Descriptors that come with it are kept only if there is a place for them.
    pub async fn receive(
        &mut self,
        kind: Kind,
        sequence: u64,
        mut descriptors: Option<&mut Vec<OwnedFd>>,
    ) -> Result<(Reply, Vec<u8>), CallError> {
        // A short answer comes whole. Nothing follows it: there is one request at a time.
        let mut start = [0; START_BYTES];
        let mut have = 0;
        let head = loop {
            have += self.receive_some(&mut start[have..], &mut descriptors).await?;
            if let Some(head) = start[..have].first_chunk::<REPLY_BYTES>() {
                break head;
            }
        };
        let reply = Reply::read(head).map_err(CallError::Breach)?;
        let mut body = vec![0; reply.body_bytes as usize];
        let came = &start[REPLY_BYTES..have];
        match body.get_mut(..came.len()) {
            Some(place) => place.copy_from_slice(came),
            None => return Err(CallError::Breach(format!("{} bytes of a body of {}", came.len(), body.len()))),
        }
        let mut have = came.len();
        while have < body.len() {
            have += self.receive_some(&mut body[have..], &mut descriptors).await?;
        }
        match reply.kind {
            Kind::Refused => {
                Err(CallError::NotTaken(String::from_utf8_lossy(&body[..body.len().min(1024)]).into_owned()))
            }
            found if found == kind && reply.sequence == sequence => Ok((reply, body)),
            _ => Err(CallError::Breach(format!("{reply:?} to {kind:?} {sequence}"))),
        }
    }

    async fn receive_some(
        &mut self,
        into: &mut [u8],
        descriptors: &mut Option<&mut Vec<OwnedFd>>,
    ) -> Result<usize, CallError> {
        let mut attempts = Attempts::default();
        let broken = |e: io::Error| CallError::Broken(e.to_string());
        loop {
            let received = match descriptors {
                Some(descriptors) => receive_with(&self.stream, into, descriptors),
                None => receive_plain(&self.stream, into),
            };
            match received {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => return Ok(n),
                Err(e) => self.wait(e, &mut attempts, Interest::READABLE).await.map_err(broken)?,
            }
        }
    }

    /// Waits after an attempt that failed, unless it failed for good.
    async fn wait(&mut self, error: io::Error, attempts: &mut Attempts, interest: Interest) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            _ => return Err(error),
        }
        attempts.count += 1;
        if !attempts.count.is_multiple_of(LOOKS_IN_A_ROW) {
            return Ok(());
        }
        if self.awake.look_again(*attempts.begun.get_or_insert_with(Instant::now)) {
            return Ok(());
        }
        let events = if interest.is_readable() { libc::POLLIN } else { libc::POLLOUT };
        let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&mut poll, 1, EAGER_MS) } > 0 {
            return Ok(());
        }
        // SAFETY: the stream is borrowed for as long as it is registered, and so stays open under this number.
        let watched = unsafe { AsyncFd::register_with_interest(Watched(self.stream.as_raw_fd()), interest) };
        let watched = watched.map_err(|e| e.into_parts().1)?;
        watched.ready(interest).await.map(|_| ())
    }
}

fn receive_plain(stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: a live socket, and `into` as long as said. Descriptors sent here are closed by the system.
    let n = unsafe { libc::recv(stream.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

fn receive_with(stream: &UnixStream, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    // Room for a few, so that too many are seen and closed, not cut off silently.
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all zero is a valid empty header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: a live socket, and a header whose buffers live until the call returns.
    let n = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system filled in the control messages within `control`; each descriptor is new and ours.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(at).cast::<RawFd>();
                for i in 0..bytes / std::mem::size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(first.add(i).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&message, at);
        }
    }
    Ok(n as usize)
}
