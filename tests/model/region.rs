//! What holds of pools that share a region, and the operation that moves a chunk between them.

use super::lifecycle::pick;
use super::memory::Page;
use super::op::Op;
use super::world::World;
use mimo_cache::cache::Group;
use std::collections::HashSet;

impl World {
    /// Tells the cache to give a chunk to a pool: mostly a certain one, else the emptiest.
    pub fn reassign(&mut self, to_full: bool, chunk: u8) {
        let (to, from) = if to_full { (Group::Full, Group::Swa) } else { (Group::Swa, Group::Full) };
        let Some(region) = &self.setup.region else {
            let error = self.cache.reassign(to, None).expect_err("there are no chunks");
            assert!(error.to_string().contains("region"), "{error}");
            return;
        };
        let theirs = (0..region.chunks).filter(|c| self.cache.chunk_owner(*c).expect("a chunk").0 == from);
        let theirs: Vec<u32> = theirs.collect();
        let chunk = pick(chunk, theirs.len()).map(|i| theirs[i]).filter(|_| chunk < 200);
        for wrong in (0..region.chunks).filter(|c| !theirs.contains(c)).take(1).chain([region.chunks]) {
            assert!(self.cache.reassign(to, Some(wrong)).is_err(), "chunk {wrong} is not the other pool's");
        }
        let before = self.cache.stats();
        let begun = self.cache.reassign(to, chunk).expect("a cache with a region");
        let after = self.cache.stats();
        if begun {
            assert_eq!(before.split.draining, None, "two chunks drain");
            let at_once = after.split.to_full + after.split.to_swa > before.split.to_full + before.split.to_swa;
            assert!(at_once || after.split.draining == Some(from), "{:?}", after.split);
        } else {
            assert_eq!(after.split, before.split, "a change that was refused changed something");
        }
    }

    /// The pools have the sizes that their chunks say.
    pub fn check_sizes(&self) {
        let (stats, setup) = (self.cache.stats(), &self.setup);
        let Some(region) = &setup.region else {
            assert_eq!(stats.full.total, u64::from(setup.full_pages));
            assert_eq!(stats.swa.total, u64::from(setup.swa_pages));
            assert_eq!(stats.split, Default::default(), "a split without a region");
            return;
        };
        let owners: Vec<_> = (0..region.chunks).map(|c| self.cache.chunk_owner(c).expect("a chunk")).collect();
        assert_eq!(self.cache.chunk_owner(region.chunks), None);
        let usable = |group| owners.iter().filter(|&&o| o == (group, false)).count() as u64;
        let (full, swa) = (usable(Group::Full), usable(Group::Swa));
        let draining: Vec<_> = owners.iter().filter(|(_, drains)| *drains).map(|(group, _)| *group).collect();
        assert_eq!(draining, Vec::from_iter(stats.split.draining), "the chunk that drains");
        let drains = |group| u64::from(stats.split.draining == Some(group));
        assert_eq!(stats.split.full_chunks, full + drains(Group::Full));
        assert_eq!(stats.split.swa_chunks, swa + drains(Group::Swa));
        let sizes = (full * u64::from(region.full_pages), swa * u64::from(region.swa_pages));
        assert_eq!(self.usable(), sizes, "usable pages of {owners:?}");
        let least = (region.min_full_chunks.max(1), setup.least_swa().div_ceil(region.swa_pages));
        assert!(full >= u64::from(least.0) && swa >= u64::from(least.1), "{full} and {swa} chunks, least {least:?}");
    }

    /// Every page that a sequence holds is in a chunk of its pool.
    pub fn check_chunks(&self, held: &HashSet<(u32, u64, Page)>) {
        let Some(region) = &self.setup.region else { return };
        for &(writer, logical, (group, id)) in held {
            let per = if group == Group::Full { region.full_pages } else { region.swa_pages };
            let owner = self.cache.chunk_owner((id - 1) / per).map(|(owner, _)| owner);
            assert_eq!(owner, Some(group), "{group:?} page {id}, page {logical} of sequence {writer}");
        }
    }

    /// With nothing open, plans alone empty the chunk that drains.
    pub fn finish_drain(&mut self) {
        let mut rounds = 0;
        while self.cache.stats().split.draining.is_some() {
            self.apply(Op::TakeCopies);
            while !self.moves.is_empty() {
                self.apply(Op::MoveDone { which: 0 });
            }
            rounds += 1;
            assert!(rounds < 100, "a chunk does not drain:\n{:?}\n{}", self.cache.stats(), self.cache.dump_text());
        }
    }
}
