//! What the tier needs of an object store: four calls, each with an outcome that says what may be relied on.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::fmt;

/// What became of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The object was not there and is now.
    Stored,
    /// It was there and is as it was.
    Present,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What happened, without anything secret.
    pub sentence: String,
    /// A put that may take effect yet, or has: nobody knows.
    pub unsure: bool,
}

impl Refused {
    /// The store did not answer in time.
    pub fn late(millis: u128) -> Refused {
        Refused { sentence: format!("no answer within {millis} ms"), unsure: true }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// An object that is about to be read.
pub struct Answer {
    /// Bytes of it, as the store says.
    pub bytes: u64,
    /// Its bytes in order.
    pub body: BoxStream<'static, Result<Bytes, Refused>>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.bytes)
    }
}

/// An object store. Calls may be dropped at any await.
pub trait Bucket: fmt::Debug + Send + Sync + 'static {
    /// Stores an object of two parts, unless one of this name is there.
    fn put<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<Kept, Refused>>;
    /// Begins to read an object; none where there is none.
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Answer>, Refused>>;
    /// Names of all objects that begin with `start` (`a/b/`), those after `after` only, in the order of their bytes.
    fn list(&self, start: &str, after: &str) -> BoxStream<'static, Result<String, Refused>>;
    /// Removes an object. One that is not there is removed.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refused>>;
}
