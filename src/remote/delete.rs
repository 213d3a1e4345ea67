//! Deleting: what was deleted does not come back from the store.
//!
//! Three steps. [`Remote::forget`] ends what the tier itself could bring back: values that wait, reads that run, and reads
//! that begin before the delete has ended. [`Forgotten::delete`] waits for writes that run, then has the store confirm each
//! name. A write that was given up may take effect after that; its name cannot be deleted until enough time has passed, and
//! the caller is told.
//!
//! A delete that fails is the caller's to repeat: nothing remembers it, and after it the object may be found again. It has the
//! time of a read, so that a store that hangs is told from a node that does.

use super::Name;
use super::bucket::Refused;
use super::recent::Known;
use super::stats::Counters;
use super::tier::{Remote, lock};
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, timeout_at};

/// Deletes under way.
pub(super) const AT_ONCE: usize = 64;

/// Names that are being deleted. Until this is dropped no read finds them.
#[derive(Debug)]
pub struct Forgotten {
    remote: Arc<Remote>,
    names: Vec<Name>,
}

impl Drop for Forgotten {
    fn drop(&mut self) {
        let mut busy = lock(&self.remote.busy);
        for name in &self.names {
            if let Some(count) = busy.deletes.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    busy.deletes.remove(name);
                }
            }
        }
    }
}

impl Remote {
    /// Ends whatever would bring these back from this process. When it returns no read finds them.
    pub fn forget(self: &Arc<Self>, names: Vec<Name>) -> Forgotten {
        let mut queue = lock(&self.queue);
        names.iter().for_each(|name| queue.take_back(name));
        drop(queue);
        let mut busy = lock(&self.busy);
        for name in &names {
            *busy.deletes.entry(*name).or_default() += 1;
        }
        let is_deleted = |name: &Name| busy.deletes.contains_key(name);
        busy.reads
            .iter()
            .filter(|(name, _)| is_deleted(name))
            .for_each(|(_, gone)| gone.store(true, Ordering::Release));
        drop(busy);
        let mut record = lock(&self.record);
        names.iter().for_each(|name| record.remove(name));
        drop(record);
        Forgotten { remote: self.clone(), names }
    }
}

impl Forgotten {
    /// Has the store delete them.
    ///
    /// # Errors
    /// A sentence: the store has not confirmed at least one of them.
    pub async fn delete(self) -> Result<(), String> {
        let deletes: Vec<_> = self.names.iter().map(|name| self.remote.clone().delete_one(*name).boxed()).collect();
        let outcomes: Vec<_> = futures_util::stream::iter(deletes).buffer_unordered(AT_ONCE).collect().await;
        outcomes.into_iter().collect()
    }
}

impl Remote {
    async fn delete_one(self: Arc<Self>, name: Name) -> Result<(), String> {
        let until = Instant::now() + self.config.read_timeout;
        loop {
            let ended = self.ended.notified();
            if !lock(&self.queue).is_writing(&name) {
                break;
            }
            if timeout_at(until, ended).await.is_err() {
                return Err(self.not_deleted("it is being written; delete it again"));
            }
        }
        let unsettled = lock(&self.queue).is_unsettled(&name, Instant::now());
        if !unsettled && lock(&self.recent).get(&name, Instant::now()) == Some(Known::Absent) {
            return Ok(());
        }
        lock(&self.recent).forget(&name);
        let Ok(_turn) = timeout_at(until, self.deleting.acquire()).await else {
            return Err(self.not_deleted("too many deletes are under way"));
        };
        let rests = lock(&self.rest).until(Instant::now()).is_some();
        if rests {
            let why = lock(&self.rest).trouble().to_string();
            return Err(self.not_deleted(&format!("it fails ({why})")));
        }
        let (at, begun) = (self.names.of(&name), Instant::now());
        match timeout_at(until, self.tries(|| self.bucket.delete(&at))).await {
            Ok((Ok(()), _)) => {}
            Ok((Err(refused), _)) => return Err(self.not_deleted(&refused.sentence)),
            Err(_) => {
                let late = Refused::late(begun.elapsed().as_millis()).sentence;
                if begun.elapsed() >= self.config.read_timeout / 2 {
                    self.went_wrong(&late);
                }
                return Err(self.not_deleted(&late));
            }
        }
        if unsettled {
            let wait = self.config.settled_after().as_secs();
            let why = format!("an earlier write was given up and may take effect yet; delete it again in {wait} s");
            return Err(self.not_deleted(&why));
        }
        Counters::add(&self.counts.deleted, 1);
        self.is_absent(&name);
        Ok(())
    }

    fn not_deleted(&self, why: &str) -> String {
        Counters::add(&self.counts.delete_errors, 1);
        format!("the object store did not confirm a delete, and what it has may come back: {why}")
    }

    /// Removes an object that failed its checks twice, so that another one can be stored. It is worth no more than one try,
    /// in the time of a read: a reader waits for it.
    pub(super) async fn remove_damaged(&self, name: &Name) {
        lock(&self.record).remove(name);
        let at = self.names.of(name);
        if let Ok(Ok(())) = tokio::time::timeout(self.config.read_timeout, self.bucket.delete(&at)).await {
            self.is_absent(name);
        }
    }
}
