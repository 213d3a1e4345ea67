//! One connection of the fast path: the greeting, gets, and the end of their pins.

use super::socket::Socket;
use crate::client::call::CallError;
use crate::rpc::fast::{self, HELLO_BYTES, HelloReply, Kind, Request};
use crate::rpc::ids::ChainKey;
use crate::shm::Reader;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A connection that was welcomed. A call that is dropped in the middle leaves an answer under way, so the connection
/// belongs to one call at a time and does not come back from such a one.
#[derive(Debug)]
pub struct Link {
    socket: Socket,
    /// Number of the last get.
    sequence: u64,
    /// The node's file.
    pub reader: Arc<Reader>,
    /// Start of the node that it was opened to, which the node says itself.
    pub start_id: u64,
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
        let mut socket = Socket::new(stream.into_std().map_err(|e| refuse("connect", e))?);
        let token = token.unwrap_or_default().as_bytes();
        let mut message = Vec::new();
        Request { kind: Kind::Hello, count: token.len() as u16, tenant: 0, sequence: 0, pins: true }.put(&mut message);
        message.extend_from_slice(token);
        socket.send(&message).await.map_err(|e| refuse("hello", e))?;
        let mut descriptors = Vec::new();
        let (_, body) = socket.receive(Kind::Hello, 0, Some(&mut descriptors)).await?;
        let Ok(body) = <&[u8; HELLO_BYTES]>::try_from(body.as_slice()) else {
            return Err(CallError::Breach(format!("an answer to a hello of {} bytes", body.len())));
        };
        let hello = HelloReply::read(body);
        if hello.version != fast::VERSION {
            return Err(CallError::Breach(format!("an answer to a hello that makes no sense: {hello:?}")));
        }
        if hello.start_id != start_id {
            let sentence = "another node, or another start of it, listens there";
            return Err(CallError::Connect(format!("{}: {sentence}", path.display())));
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
        Ok(Link { socket, sequence: 0, reader, start_id })
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
        self.socket.send(&message).await.map_err(|e| CallError::Broken(e.to_string()))?;
        let (reply, body) = self.socket.receive(Kind::Get, self.sequence, None).await?;
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
        match self.socket.send_now(&message) {
            Ok(n) if n == message.len() => Ok(()),
            // The socket's buffer is empty but for this, so that a short write means trouble.
            Ok(n) => Err(CallError::Broken(format!("{n} bytes of a release could be sent"))),
            Err(e) => Err(CallError::Broken(e.to_string())),
        }
    }
}
