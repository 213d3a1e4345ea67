//! One call to one node, whatever carries it: what can go wrong, and what follows from that.

use super::types::{Got, Miss, Refusal, Stored};
use std::sync::Arc;
use tokio::time::Instant;

/// What every call has.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Whose objects.
    pub tenant: u64,
    /// When it ends, whatever happens.
    pub deadline: Instant,
}

/// Status codes of gRPC that mean something here.
pub mod code {
    /// No error.
    pub const OK: i32 = 0;
    /// The request is wrong.
    pub const INVALID_ARGUMENT: i32 = 3;
    /// The deadline passed at the node.
    pub const DEADLINE_EXCEEDED: i32 = 4;
    /// The tenant is not the token's.
    pub const PERMISSION_DENIED: i32 = 7;
    /// Too much to do.
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    /// Another version.
    pub const FAILED_PRECONDITION: i32 = 9;
    /// Beyond a limit.
    pub const OUT_OF_RANGE: i32 = 11;
    /// No such method.
    pub const UNIMPLEMENTED: i32 = 12;
    /// No token, or not one of the node's.
    pub const UNAUTHENTICATED: i32 = 16;
}

/// Why a call did not end well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection ended first.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The node did not begin with the request.
    #[error("the node did not take the request: {0}")]
    NotTaken(String),
    /// An answer against the protocol.
    #[error("the node broke the protocol: {0}")]
    Breach(String),
    /// A status of gRPC.
    #[error("status {code}: {message}")]
    Status {
        /// Its number.
        code: i32,
        /// Its sentence.
        message: String,
    },
    /// The deadline passed.
    #[error("the deadline passed")]
    Late,
    /// There is no memory here for what is to be sent.
    #[error("no memory for the bytes of a value")]
    NoMemory,
    /// Not sent: the node failed a moment ago.
    #[error("the node failed a moment ago and is left alone")]
    LeftAlone,
}

/// What the node is to blame for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// It works; the request or the moment was wrong.
    Nothing,
    /// It does not work.
    Node,
    /// It did not answer in time.
    Time,
    /// It has too much to do.
    Load,
}

impl CallError {
    /// Who is to blame.
    pub fn blame(&self) -> Blame {
        match self {
            CallError::Connect(_) | CallError::Broken(_) | CallError::NotTaken(_) | CallError::Breach(_) => Blame::Node,
            CallError::Late => Blame::Time,
            CallError::LeftAlone | CallError::NoMemory => Blame::Nothing,
            CallError::Status { code, .. } => match *code {
                code::DEADLINE_EXCEEDED => Blame::Time,
                code::RESOURCE_EXHAUSTED => Blame::Load,
                _ if self.is_refusal() => Blame::Nothing,
                _ => Blame::Node,
            },
        }
    }

    /// Whether the node refused the request for what it says: trying elsewhere or later would not help.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            CallError::Status {
                code: code::INVALID_ARGUMENT
                    | code::PERMISSION_DENIED
                    | code::FAILED_PRECONDITION
                    | code::OUT_OF_RANGE
                    | code::UNIMPLEMENTED
                    | code::UNAUTHENTICATED,
                ..
            }
        )
    }

    /// Whether the same request may be sent once more on another connection. `idempotent`: doing it twice is doing it once.
    pub fn may_repeat(&self, idempotent: bool) -> bool {
        match self {
            CallError::NotTaken(_) => true,
            CallError::Broken(_) => idempotent,
            _ => false,
        }
    }

    /// The miss that it makes of an object, unless it is a refusal.
    pub fn miss(&self) -> Miss {
        match self.blame() {
            _ if *self == CallError::LeftAlone => Miss::Refused,
            _ if *self == CallError::NoMemory => Miss::NoMemory,
            Blame::Time => Miss::Late,
            Blame::Load => Miss::Overloaded,
            Blame::Node | Blame::Nothing => Miss::Unreachable,
        }
    }

    /// What a node that refused says; `None` for any other error.
    pub fn refusal(&self, node: &str) -> Option<Arc<Refusal>> {
        match self {
            CallError::Status { code, message } if self.is_refusal() => {
                Some(Arc::new(Refusal { node: node.to_string(), code: *code, sentence: message.clone() }))
            }
            _ => None,
        }
    }

    /// What becomes of an object of a get.
    pub fn got(&self, node: &str) -> Got {
        self.refusal(node).map_or(Got::Miss(self.miss()), Got::Failed)
    }

    /// What becomes of an object of a put.
    pub fn stored(&self, node: &str) -> Stored {
        self.refusal(node).map_or(Stored::Dropped(self.miss()), Stored::Failed)
    }
}
