//! Reading ahead: the next objects of a batch are read from disk together, and come in the order of the batch.

use super::{Fetch, Tiers};
use crate::shm::ObjectId;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Objects looked for ahead.
const OBJECTS: usize = 32;
/// Bytes read ahead. One object may always be read.
const BYTES: u64 = 32 << 20;

/// See the file.
#[derive(Default)]
pub struct Ahead {
    reads: FuturesOrdered<BoxFuture<'static, Fetch>>,
    /// Bytes of each of them.
    bytes: VecDeque<u64>,
    /// Objects of the batch that were begun.
    begun: usize,
}

impl Ahead {
    /// Begins with as many of a batch as may be under way; where buffers for reads ahead are used up, with the one whose turn
    /// it is.
    pub fn start(&mut self, tiers: &Arc<Tiers>, tenant: u64, ids: &[ObjectId]) {
        let mut held: u64 = self.bytes.iter().sum();
        while let Some(id) = ids.get(self.begun).filter(|_| self.bytes.len() < OBJECTS) {
            let bytes = tiers.bytes_to_read(tenant, id);
            if held > 0 && held + bytes > BYTES {
                break;
            }
            let read = match tiers.fetch_ahead(tenant, *id, bytes) {
                Some(read) => read,
                None if self.bytes.is_empty() => Box::pin(tiers.clone().fetch(tenant, *id)),
                None => break,
            };
            held += bytes;
            self.begun += 1;
            self.bytes.push_back(bytes);
            self.reads.push_back(read);
        }
    }

    /// What became of the object whose turn it is. There is one: [`Ahead::start`] was called, and the batch has not ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Fetch> {
        let next = std::task::ready!(self.reads.poll_next_unpin(cx));
        self.bytes.pop_front();
        Poll::Ready(next.unwrap_or(Fetch::Absent))
    }

    /// Looks for the object whose turn it is once more.
    pub fn again(&mut self, tiers: &Arc<Tiers>, tenant: u64, id: &ObjectId) {
        self.bytes.push_front(tiers.bytes_to_read(tenant, id));
        self.reads.push_front(Box::pin(tiers.clone().fetch(tenant, *id)));
    }
}
