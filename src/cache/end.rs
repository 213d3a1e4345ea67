//! The ends of a sequence: `finish`, `abort`, `park`.

use super::sequence::SwaHold;
use super::{Cache, SeqId};
use crate::cache::commit::When;
use crate::error::Result;
use crate::policy::{NIL, kind};
use crate::tree::Cursor;

impl Cache {
    /// Publishes what is whole and gives everything else back.
    pub fn finish(&mut self, id: SeqId) -> Result<()> {
        self.seq(id, "finish")?;
        if !self.seqs[id.index].parked {
            let kinds = if self.config.retention.seq_end { kind::SEQ_END } else { 0 };
            self.publish_all(id.index, kinds);
        }
        self.remove(id);
        Ok(())
    }

    /// Gives everything back; what was published stays cached.
    pub fn abort(&mut self, id: SeqId) -> Result<()> {
        self.seq(id, "abort")?;
        self.remove(id);
        Ok(())
    }

    /// Publishes as at finish, keeps one checkpoint at the last boundary until `resume` or eviction, and gives pages,
    /// leases and reservations back; tokens stay. With `store` false nothing is published and nothing kept.
    pub fn park(&mut self, id: SeqId, store: bool) -> Result<()> {
        self.open_seq(id, "park")?.check_loaded("park")?;
        if store {
            self.publish_all(id.index, kind::PARK);
        }
        let at = (self.seqs[id.index].committed / self.page()) as u32;
        let seq = &mut self.seqs[id.index];
        seq.parked_at = if store { at } else { 0 };
        seq.cursor = Cursor::default();
        self.give_back(id.index);
        self.delist(id.index);
        let seq = &mut self.seqs[id.index];
        seq.parked = true;
        self.parked += 1;
        self.rebalance();
        self.settle();
        Ok(())
    }

    fn publish_all(&mut self, index: u32, kinds: u8) {
        self.begin(index);
        let last = (self.seqs[index].committed / self.page()) as u32;
        self.publish(index, last, When::End);
        let whole = self.seqs[index].published >= last && self.may_publish(index);
        if kinds != 0 && whole {
            self.keep(index, last, kinds);
        }
    }

    fn remove(&mut self, id: SeqId) {
        if self.seqs[id.index].parked {
            self.parked -= 1;
        } else {
            self.begin(id.index);
            self.give_back(id.index);
            self.delist(id.index);
        }
        self.seqs.remove(id.index);
        self.rebalance();
        self.settle();
    }

    /// Returns pages, leases and reservations.
    fn give_back(&mut self, index: u32) {
        let seq = &mut self.seqs[index];
        let tree = &mut self.tree;
        let (stamp, moves) = (seq.stamp, std::mem::take(&mut seq.moves));
        self.promised -= seq.promised();
        self.quota -= seq.quota;
        self.scratch_used -= seq.scratch;
        (seq.quota, seq.scratch, seq.budget, seq.reserved) = (0, 0, 0, 0);
        (seq.loaded, seq.loaded_end) = (Vec::new(), (0, 0));
        seq.table = Vec::new();
        for page in seq.own.drain(..) {
            tree.free_private_full(page, stamp, &moves);
        }
        for d in seq.duplicates.drain(..) {
            tree.free_private_full(d.page, stamp, &moves);
        }
        let window = seq.load.take().map(|l| l.window).unwrap_or_default();
        for hold in window.into_iter().chain(seq.swa.drain(..)) {
            match hold {
                SwaHold::Private(page) => tree.free_private_swa(page, stamp, &moves),
                SwaHold::Leased(page) => tree.unlease_swa(page, stamp),
            }
        }
        let node = seq.node(tree);
        seq.lease = NIL;
        let owner = (index, seq.generation);
        tree.unlease_path(node, stamp, Some(seq.user));
        self.cancel_copies(owner);
    }
}
