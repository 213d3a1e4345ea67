//! How a byte stream to a node is made.

use super::grpc::Io;
use crate::member::Address;
use std::future::Future;
use std::io;
use std::pin::Pin;
use tokio::net::{TcpStream, UnixStream};

/// A stream being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + 'a>>;

/// Makes streams; tests have their own.
pub trait Connect: Send + Sync + 'static {
    /// A stream to `address`.
    fn connect<'a>(&'a self, address: &'a Address) -> Connecting<'a>;
}

/// TCP and Unix sockets of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sockets;

impl Connect for Sockets {
    fn connect<'a>(&'a self, address: &'a Address) -> Connecting<'a> {
        Box::pin(async move {
            Ok(match address {
                Address::Tcp(at) => {
                    let stream = TcpStream::connect(at.as_str()).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream) as Box<dyn Io>
                }
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            })
        })
    }
}
