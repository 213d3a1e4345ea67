//! One connection of the fast path.
//!
//! The node answers within microseconds, so that the caller's thread itself waits for a moment; handing the wait to the
//! runtime at once would cost more than the answer. A node that takes longer is waited for without holding the thread.

use crate::client::call::CallError;
use crate::rpc::fast::{self, HELLO_BYTES, HelloReply, Kind, REPLY_BYTES, Reply, Request};
use crate::rpc::ids::ChainKey;
use crate::shm::Reader;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How long the thread looks for an answer again and again before it sleeps: to be woken takes longer than most answers.
const LOOKS: Duration = Duration::from_micros(50);
/// Looks between two offers of the core to others, a microsecond.
const LOOKS_IN_A_ROW: u32 = 4;
/// How long the thread itself then waits for it, in milliseconds.
const EAGER_MS: i32 = 1;
/// Room for the answer of a few objects, that it comes with one call to the system.
const START_BYTES: usize = 1024;

/// A connection that was welcomed. A call that is dropped in the middle leaves an answer under way, so the connection
/// belongs to one call at a time and does not come back from such a one.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    /// Number of the last get.
    sequence: u64,
    /// The node's file.
    pub reader: Arc<Reader>,
    /// Start of the node that it was opened to.
    pub start_id: u64,
}

/// A file descriptor as the runtime wants it: not owned.
struct Watched(RawFd);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Link {
    /// Connects and greets. `known` is used again if it is the same file.
    pub async fn open(
        path: &Path,
        token: Option<&str>,
        start_id: u64,
        known: Option<Arc<Reader>>,
    ) -> Result<Link, CallError> {
        let refuse = |what: &str, e: io::Error| CallError::Connect(format!("{}: {what}: {e}", path.display()));
        let stream = tokio::net::UnixStream::connect(path).await.map_err(|e| refuse("connect", e))?;
        let stream = stream.into_std().map_err(|e| refuse("connect", e))?;
        let token = token.unwrap_or_default().as_bytes();
        let mut message = Vec::new();
        Request { kind: Kind::Hello, count: token.len() as u16, tenant: 0, sequence: 0, pins: true }.put(&mut message);
        message.extend_from_slice(token);
        send_all(&stream, &message).await.map_err(|e| refuse("hello", e))?;
        let mut descriptors = Vec::new();
        let (_, body) = receive(&stream, Kind::Hello, 0, Some(&mut descriptors)).await?;
        let Ok(body) = <&[u8; HELLO_BYTES]>::try_from(body.as_slice()) else {
            return Err(CallError::Breach(format!("an answer to a hello of {} bytes", body.len())));
        };
        let hello = HelloReply::read(body);
        if hello.version != fast::VERSION {
            return Err(CallError::Breach(format!("an answer to a hello that makes no sense: {hello:?}")));
        }
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|d| CallError::Breach(format!("{} descriptors, allowed is 1", d.len())))?;
        let file = File::from(descriptor);
        let reader = match known.filter(|k| k.is_of(&file)) {
            Some(known) => known,
            None => Arc::new(Reader::new(&file).map_err(|e| CallError::Connect(format!("{}: {e}", path.display())))?),
        };
        if reader.file_bytes() != hello.file_bytes {
            let sentence = format!("a file of {} bytes, said were {}", reader.file_bytes(), hello.file_bytes);
            return Err(CallError::Breach(sentence));
        }
        Ok(Link { stream, sequence: 0, reader, start_id })
    }

    /// Asks where objects are; the answer's body. With `pins` they stay there until [`Link::release`].
    pub async fn get<'k>(
        &mut self,
        tenant: u64,
        pins: bool,
        ids: impl ExactSizeIterator<Item = (&'k ChainKey, u8)>,
    ) -> Result<Vec<u8>, CallError> {
        self.sequence += 1;
        let count = ids.len() as u16;
        let mut message = Vec::with_capacity(fast::REQUEST_BYTES + ids.len() * fast::ASK_BYTES);
        Request { kind: Kind::Get, count, tenant, sequence: self.sequence, pins }.put(&mut message);
        ids.for_each(|(key, part)| fast::put_ask(&mut message, key, part));
        send_all(&self.stream, &message).await.map_err(|e| CallError::Broken(e.to_string()))?;
        let (reply, body) = receive(&self.stream, Kind::Get, self.sequence, None).await?;
        if reply.count != count {
            return Err(CallError::Breach(format!("{} objects, asked were {count}", reply.count)));
        }
        Ok(body)
    }

    /// The pins of the last get are not needed any more.
    ///
    /// # Errors
    /// The connection is of no use.
    pub fn release(&mut self) -> Result<(), CallError> {
        let mut message = Vec::with_capacity(fast::REQUEST_BYTES);
        let sequence = self.sequence;
        Request { kind: Kind::Release, count: 0, tenant: 0, sequence, pins: true }.put(&mut message);
        match send_some(&self.stream, &message) {
            Ok(n) if n == message.len() => Ok(()),
            // The socket's buffer is empty but for this, so that a short write means trouble.
            Ok(n) => Err(CallError::Broken(format!("{n} bytes of a release could be sent"))),
            Err(e) => Err(CallError::Broken(e.to_string())),
        }
    }
}

fn send_some(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a live socket, and `bytes` as long as said.
    let n = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

async fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !bytes.is_empty() {
        match send_some(stream, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) => patience.wait(e, stream, Interest::WRITABLE).await?,
        }
    }
    Ok(())
}

/// Waits between attempts: for a moment it gives the core away and comes back at once, then it sleeps in this thread, then
/// in the runtime.
#[derive(Default)]
struct Patience {
    begun: Option<Instant>,
    looks: u32,
}

impl Patience {
    /// After an attempt that failed.
    async fn wait(&mut self, error: io::Error, stream: &UnixStream, interest: Interest) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            _ => return Err(error),
        }
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_IN_A_ROW) {
            return Ok(());
        }
        if self.begun.get_or_insert_with(Instant::now).elapsed() < LOOKS {
            // The node may need this very core.
            std::thread::yield_now();
            return Ok(());
        }
        let events = if interest.is_readable() { libc::POLLIN } else { libc::POLLOUT };
        let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&mut poll, 1, EAGER_MS) } > 0 {
            return Ok(());
        }
        // SAFETY: the stream is borrowed for as long as it is registered, and so stays open under this number.
        let watched = unsafe { AsyncFd::register_with_interest(Watched(stream.as_raw_fd()), interest) };
        let watched = watched.map_err(|e| e.into_parts().1)?;
        watched.ready(interest).await.map(|_| ())
    }
}

/// The answer to a request. Descriptors that come with it are kept only if there is a place for them.
async fn receive(
    stream: &UnixStream,
    kind: Kind,
    sequence: u64,
    mut descriptors: Option<&mut Vec<OwnedFd>>,
) -> Result<(Reply, Vec<u8>), CallError> {
    let breach = |sentence: String| CallError::Breach(sentence);
    // A short answer comes whole. Nothing follows it: there is one request at a time.
    let mut start = [0; START_BYTES];
    let mut have = 0;
    let head = loop {
        have += receive_some(stream, &mut start[have..], &mut descriptors).await?;
        if let Some(head) = start[..have].first_chunk::<REPLY_BYTES>() {
            break head;
        }
    };
    let reply = Reply::read(head).map_err(breach)?;
    let mut body = vec![0; reply.body_bytes as usize];
    let came = &start[REPLY_BYTES..have];
    match body.get_mut(..came.len()) {
        Some(place) => place.copy_from_slice(came),
        None => return Err(breach(format!("{} bytes of a body of {}", came.len(), body.len()))),
    }
    let mut have = came.len();
    while have < body.len() {
        have += receive_some(stream, &mut body[have..], &mut descriptors).await?;
    }
    match reply.kind {
        Kind::Refused => Err(CallError::NotTaken(String::from_utf8_lossy(&body[..body.len().min(1024)]).into_owned())),
        found if found == kind && reply.sequence == sequence => Ok((reply, body)),
        _ => Err(breach(format!("{reply:?} to {kind:?} {sequence}"))),
    }
}

async fn receive_some(
    stream: &UnixStream,
    into: &mut [u8],
    descriptors: &mut Option<&mut Vec<OwnedFd>>,
) -> Result<usize, CallError> {
    let mut patience = Patience::default();
    let broken = |e: io::Error| CallError::Broken(e.to_string());
    loop {
        let received = match descriptors {
            Some(descriptors) => receive_with(stream, into, descriptors),
            None => receive_plain(stream, into),
        };
        match received {
            Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => return Ok(n),
            Err(e) => patience.wait(e, stream, Interest::READABLE).await.map_err(broken)?,
        }
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
