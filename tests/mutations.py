#!/usr/bin/env python3
"""Break the core on purpose and see whether the tests notice.

Each mutation replaces one exact text in one file of a copy of the tree, builds it there and runs the test target that
should catch it, then the rest of the quick suite if that one does not. Exit code 1 when a mutation survives, does not
compile, or names a text that is not there exactly once (the code moved on: rewrite the mutation).

    tests/mutations.py [--list] [--only WORD]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "mutations"
SUITE = ("peer_faults", "rules", "findings", "state_machine", "bad_input", "policies", "region", "region_rules")
TIMEOUT_S = 900


@dataclass(frozen=True)
class Mutation:
    """One fault: what it is, where, and the test target that should catch it."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "window one page short",
        "src/tree/mod.rs",
        "need: if has_swa { c.window.div_ceil(c.page_size) } else { 0 },",
        "need: if has_swa { c.window.saturating_sub(1).div_ceil(c.page_size) } else { 0 },",
        "peer_faults",
    ),
    Mutation(
        "no token left to compute",
        "src/cache/open.rs",
        "let limit = (query.tokens.len() as u64 - 1) / self.page();",
        "let limit = query.tokens.len() as u64 / self.page();",
        "peer_faults",
    ),
    Mutation(
        "hole does not reset the run",
        "src/tree/usable.rs",
        "            self.candidate = to;\n",
        "            self.candidate = self.candidate.max(to);\n",
        "peer_faults",
    ),
    Mutation(
        "MTP record not checked",
        "src/cache/open.rs",
        "if !fits {",
        "if !fits && tokens.is_empty() {",
        "peer_faults",
    ),
    Mutation(
        "one MTP row not rebuilt",
        "src/cache/open.rs",
        "let start = (end - u64::from(self.tree.n_mtp).min(page)).max(window);",
        "let start = (end - u64::from(self.tree.n_mtp).min(page)).max(window) + 1;",
        "peer_faults",
    ),
    Mutation(
        "published before its MTP tokens are known",
        "src/cache/commit.rs",
        "let ready = seq.committed.min(known.saturating_sub(u64::from(self.tree.n_mtp)));",
        "let ready = seq.committed.min(known);",
        "state_machine",
    ),
    Mutation(
        "rejected drafts published",
        "src/cache/commit.rs",
        "let ready = seq.committed.min(known.saturating_sub(u64::from(self.tree.n_mtp)));",
        "let ready = (seq.committed + seq.reserved).min(known.saturating_sub(u64::from(self.tree.n_mtp)));",
        "state_machine",
    ),
    Mutation(
        "adopted in decode",
        "src/cache/commit.rs",
        "let when = if seq.committed < seq.prompt { When::Prefill } else { When::Decode };",
        "let when = if seq.committed < u64::MAX { When::Prefill } else { When::Decode };",
        "peer_faults",
    ),
    Mutation(
        "window let go a page early",
        "src/cache/sequence.rs",
        "let window = self.committed.saturating_sub(u64::from(tree.window + tree.n_mtp)) / page;",
        "let window = (self.committed + page).saturating_sub(u64::from(tree.window + tree.n_mtp)) / page;",
        "state_machine",
    ),
    Mutation(
        "window never let go",
        "src/cache/commit.rs",
        "if seq.swa.is_empty() || seq.swa_first >= first {",
        "if seq.swa.is_empty() || seq.swa_first < first {",
        "state_machine",
    ),
    Mutation(
        "quarantine skipped for full pages",
        "src/tree/lease.rs",
        "} else if self.fence.is_retired(stamp) {\n            self.full.release(page);",
        "} else if self.fence.is_retired(stamp) || stamp > 0 {\n            self.full.release(page);",
        "peer_faults",
    ),
    Mutation(
        "quarantine skipped for SWA pages",
        "src/tree/lease.rs",
        "} else if self.fence.is_retired(stamp) {\n            self.swa.release(page);",
        "} else if self.fence.is_retired(stamp) || stamp > 0 {\n            self.swa.release(page);",
        "state_machine",
    ),
    Mutation(
        "step taken as retired too early",
        "src/pool/fence.rs",
        "stamp <= self.retired\n",
        "stamp <= self.retired + 1\n",
        "state_machine",
    ),
    Mutation(
        "moves not waited for",
        "src/tree/lease.rs",
        "let i = moves.iter().position(|&m| self.fence.move_bucket(m).is_some())?;",
        "let i = moves.iter().position(|&m| self.fence.move_bucket(m).is_none())?;",
        "findings",
    ),
    Mutation(
        "evicted while its step runs",
        "src/tree/order.rs",
        "if !self.fence.is_retired(node.stamp) {",
        "if !self.fence.is_retired(node.stamp) && node.depth > 1 << 20 {",
        "state_machine",
    ),
    Mutation(
        "a lost SWA release",
        "src/cache/end.rs",
        "SwaHold::Leased(page) => tree.unlease_swa(page, stamp),",
        "SwaHold::Leased(page) => debug_assert!(page > 0),",
        "peer_faults",
    ),
    Mutation(
        "a lost path lease",
        "src/cache/end.rs",
        "tree.unlease_path(node, stamp, Some(seq.user));",
        "debug_assert!(tree.nodes[node].is_leased());",
        "peer_faults",
    ),
    Mutation(
        "a lease that protects one node only",
        "src/tree/lease.rs",
        "if was || node.is_root() {\n                return;",
        "if was || node.is_root() || !direct {\n                return;",
        "state_machine",
    ),
    Mutation(
        "split forgets the lease",
        "src/tree/shape.rs",
        "upper.leased_children = u32::from(node.is_leased());",
        "upper.leased_children = 0;",
        "state_machine",
    ),
    Mutation(
        "split leaves checkpoints below",
        "src/tree/shape.rs",
        "let cut = node.ckpts.iter().position(|&c| self.ckpts[c].end > boundary).unwrap_or(node.ckpts.len());",
        "let cut = node.ckpts.iter().position(|&c| self.ckpts[c].end > boundary).map_or(0, |_| 0);",
        "state_machine",
    ),
    Mutation(
        "node not split at the end of a match",
        "src/tree/shape.rs",
        "if end < n.end() { self.split(id, end - n.depth) } else { id }",
        "if end + 1 < n.end() { self.split(id, end - n.depth) } else { id }",
        "state_machine",
    ),
    Mutation(
        "checkpoint references not counted",
        "src/tree/checkpoint.rs",
        "meta.refs += 1;",
        "meta.refs += u32::from(meta.refs == 0);",
        "state_machine",
    ),
    Mutation(
        "pages of a dropped checkpoint stay",
        "src/tree/lease.rs",
        "        if leases == 0 {\n",
        "        if leases == 1 {\n",
        "state_machine",
    ),
    Mutation(
        "loose pages not counted",
        "src/tree/lease.rs",
        "self.nodes[node].loose += 1;",
        "self.nodes[node].loose += 0;",
        "state_machine",
    ),
    Mutation(
        "checkpoint at the wrong boundary",
        "src/cache/commit.rs",
        "add(seq.prompt_end, kind::PROMPT_END);",
        "add(seq.prompt_end.saturating_sub(1), kind::PROMPT_END);",
        "peer_faults",
    ),
    Mutation(
        "no checkpoint at a branch",
        "src/cache/open.rs",
        "seq.branch = if q < p { p } else { 0 };",
        "seq.branch = if q < p { q } else { 0 };",
        "peer_faults",
    ),
    Mutation(
        "full KV written below p",
        "src/cache/open.rs",
        "(seq.full_from, seq.swa_from) = (u64::from(p) * page, u64::from(q) * page);",
        "(seq.full_from, seq.swa_from) = (u64::from(q) * page, u64::from(q) * page);",
        "state_machine",
    ),
    Mutation(
        "wrong pool in a fork's copy",
        "src/cache/fork.rs",
        "let copy = PageCopy { group: Group::Swa, src: source.id(), dst: page.id() };",
        "let copy = PageCopy { group: Group::Full, src: source.id(), dst: page.id() };",
        "state_machine",
    ),
    Mutation(
        "copy backwards",
        "src/cache/open.rs",
        "copy: PageCopy { group: Group::Swa, src: swa, dst: own.id() },",
        "copy: PageCopy { group: Group::Swa, src: own.id(), dst: swa },",
        "peer_faults",
    ),
    Mutation(
        "copy source free at once",
        "src/cache/moves.rs",
        "self.release_holds(holds, stamp);",
        "self.release_holds(holds, NONE);",
        "state_machine",
    ),
    Mutation(
        "admission counts the full pool only",
        "src/cache/open.rs",
        "if needed + self.quota + self.copy_holds > self.swa_share() {",
        "if needed > self.swa_share() {",
        "peer_faults",
    ),
    Mutation(
        "admission forgets what its match pins",
        "src/cache/open.rs",
        "if needed + self.promised + pinned > free {",
        "if needed + self.promised > free {",
        "state_machine",
    ),
    Mutation(
        "promise not given back",
        "src/cache/step.rs",
        "self.promised += u64::from((seq.table.len() as u64) < seq.budget);",
        "self.promised += u64::from((seq.table.len() as u64) > seq.budget);",
        "state_machine",
    ),
    Mutation(
        "scratch not counted",
        "src/cache/sequence.rs",
        "self.scratch_used = self.scratch_used - seq.scratch + scratch;",
        "self.scratch_used = self.scratch_used.max(scratch);",
        "state_machine",
    ),
    Mutation(
        "a cleared namespace is still published into",
        "src/cache/commit.rs",
        "seq.store && seq.moves.is_empty() && self.tree.roots[seq.root].attached",
        "seq.store && seq.moves.is_empty()",
        "rules",
    ),
    Mutation(
        "store=False publishes",
        "src/cache/commit.rs",
        "seq.store && seq.moves.is_empty() && self.tree.roots[seq.root].attached",
        "seq.moves.is_empty() && self.tree.roots[seq.root].attached",
        "rules",
    ),
    Mutation(
        "clear keeps the generation",
        "src/tree/roots.rs",
        "*generation += 1;",
        "*generation += 0;",
        "rules",
    ),
    Mutation(
        "salt not in the namespace",
        "src/key.rs",
        "    field(&mut h, &key.salt);",
        "    field(&mut h, &key.salt[..0]);",
        "state_machine",
    ),
    Mutation(
        "a span's content not in the key",
        "src/key.rs",
        "        h.update(s.hash);\n",
        "",
        "state_machine",
    ),
    Mutation(
        "removals of SWA not told",
        "src/tree/events.rs",
        "removed.push(*self.slots.key(slot));",
        (
            "if group == Group::Full {\n                        removed.push(*self.slots.key(slot));\n     "
            "               }"
        ),
        "state_machine",
    ),
    Mutation(
        "window-safety told one page short",
        "src/tree/events.rs",
        "let want = self.need_at(end);\n",
        "let want = self.need_at(end).saturating_sub(1);\n",
        "state_machine",
    ),
    Mutation(
        "commit beyond the reservation",
        "src/cache/commit.rs",
        "if c.computed > seq.reserved {",
        "if c.computed > seq.reserved + 1 {",
        "bad_input",
    ),
    Mutation(
        "shares not counted",
        "src/tree/mod.rs",
        "t.full = t.full.wrapping_add_signed(full);",
        "t.full = t.full.wrapping_add_signed(full.min(0));",
        "rules",
    ),
    Mutation(
        "pinned prefixes go first",
        "src/tree/evict.rs",
        ".or_else(|| self.order.victim(self.history.ask(self.now, self.full.total())))\n"
        "            .or_else(|| self.pinned_leaf())",
        ".or_else(|| self.pinned_leaf())\n"
        "            .or_else(|| self.order.victim(self.history.ask(self.now, self.full.total())))",
        "rules",
    ),
    Mutation(
        "a match refreshes nothing",
        "src/tree/users.rs",
        "        }\n        self.touch_ckpt(id);\n",
        "        }\n",
        "rules",
    ),
    Mutation(
        "a value is published before its header",
        "src/shm/values.rs",
        "        for (n, word) in words.iter().enumerate().skip(1) {",
        "        self.shared.map.region.store(self.opened.place.header_at, words[0]);\n"
        "        for (n, word) in words.iter().enumerate().skip(1) {",
        "shm_machine",
    ),
    Mutation(
        "a slot is published when it is begun",
        "src/shm/ledger.rs",
        "self.map.region.store(place.header_at, Word::new(generation, state::WRITING).0);",
        "let _ = generation;",
        "shm_machine",
    ),
    Mutation(
        "an eviction stays in the process",
        "src/shm/ledger.rs",
        "        self.free_word(place.header_at);\n        self.index.unlist(object);",
        "        self.index.unlist(object);",
        "shm_machine",
    ),
    Mutation(
        "a span is entered before its headers are free",
        "src/shm/room.rs",
        "            region.store(shape.header_at(&g, first, slot), Word::new(0, state::FREE).0);",
        "            let _ = (shape.header_at(&g, first, slot), Word::new(0, state::FREE), region);",
        "shm_machine",
    ),
    Mutation(
        "an entry's word is stored first",
        "src/shm/room.rs",
        "let words = shape.encode(first, self.next_generation());\n        for n in [1, 2, 3, 0] {",
        "let words = shape.encode(first, self.next_generation());\n        for n in [0, 1, 2, 3] {",
        "shm_machine",
    ),
    Mutation(
        "the head of an extent goes before its tail",
        "src/shm/order.rs",
        "(!superseded, Reverse(object.page), Reverse(object.part), id)",
        "(!superseded, Reverse(u32::MAX - object.page), Reverse(object.part), id)",
        "shm_machine",
    ),
    Mutation(
        "whole slabs are emptied under a pin",
        "src/shm/room.rs",
        "id => (self.spans.get(id).held > 0, self.spans.get(id).tick),",
        "id => (self.spans.get(id).held > 1, self.spans.get(id).tick),",
        "shm_room",
    ),
    Mutation(
        "a second process is let in",
        "src/shm/mapped.rs",
        "libc::LOCK_EX | libc::LOCK_NB",
        "libc::LOCK_SH | libc::LOCK_NB",
        "shm_kill",
    ),
    Mutation(
        "a reader does not look again",
        "src/shm/reader.rs",
        "match (self.is_there(at), same) {",
        "match (true, same) {",
        "shm_kill",
    ),
    Mutation(
        "a header is believed without its checksum",
        "src/shm/header.rs",
        "if bytes.len() < SHORT + 4 * (chunks - 1) || checksum(bytes, chunks) != u32_at(bytes, CHECK_AT)? {",
        "if bytes.len() < SHORT + 4 * (chunks - 1) {",
        "shm_flips",
    ),
    Mutation(
        "a policy does not hear that an id was cut in two",
        "src/tree/shape.rs",
        "let len = self.nodes[id].len;\n                self.order.resize(id, len);\n",
        "",
        "state_machine",
    ),
    Mutation(
        "what was just used goes like anything else",
        "src/policy/density.rs",
        "now.is_fresh(e.used, e.pages) && ",
        "false && ",
        "policies",
    ),
    Mutation(
        "what was evicted and comes back is no use of it",
        "src/tree/publish.rs",
        "found = Some((page + 1, end));",
        "let _ = end;",
        "policies",
    ),
    Mutation(
        "a chunk changes pools one page early",
        "src/cache/split.rs",
        "        if left > 0 {\n            return;",
        "        if left > 1 {\n            return;",
        "region",
    ),
    Mutation(
        "a copy's target is free before the copy ran",
        "src/tree/relocate.rs",
        "let landing = self.landing.full.remove(&page.id());",
        "let landing = self.landing.full.remove(&page.id()).filter(|_| false);",
        "region",
    ),
    Mutation(
        "an SWA page moves without its MTP record",
        "src/tree/relocate.rs",
        "        self.set_record(new, &record);\n",
        "        self.set_record(new, &record[..record.len() / 2]);\n",
        "region",
    ),
    Mutation(
        "a chunk drains although it was promised",
        "src/cache/split.rs",
        "(Group::Full, left, least.max(held).max(split.full_peak.get()), 0)",
        "(Group::Full, left, least.max(held.min(1)), 0)",
        "region",
    ),
    Mutation(
        "a layer is ready before its last page",
        "src/tier/copy/job.rs",
        "take_while(|step| step.left.load(Ordering::Acquire) == 0)",
        "take_while(|step| step.left.load(Ordering::Acquire) <= 1)",
        "tier_copy",
    ),
    Mutation(
        "a wait for a layer is for those before it",
        "src/tier/copy/job.rs",
        "partition_point(|l| *l <= layer)",
        "partition_point(|l| *l < layer)",
        "tier_copy",
    ),
    Mutation(
        "a cancelled job is over while a thread copies",
        "src/tier/copy/copier.rs",
        "let last = job.active.load(Ordering::Relaxed) == 0 && !job",
        "let last = !job",
        "tier_copy",
    ),
    Mutation(
        "the null page is copied",
        "src/tier/copy/plan.rs",
        "if pair.device == 0 || pair.device > device_pages {",
        "if pair.device > device_pages {",
        "tier_copy",
    ),
    Mutation(
        "a job writes a page twice",
        "src/tier/copy/plan.rs",
        "find(|two| two[0] == two[1])",
        "find(|_| false)",
        "tier_copy",
    ),
    Mutation(
        "the end of a streamed piece is forgotten",
        "src/tier/copy/bytes.rs",
        "to.add(done), len - done);",
        "to.add(done), (len - done) & !31);",
        "tier_copy",
    ),
    Mutation(
        "saves before loads",
        "src/tier/copy/copier.rs",
        "&mut self.waiting[job.plan.direction() as usize]",
        "&mut self.waiting[1 - job.plan.direction() as usize]",
        "tier_copy",
    ),
    Mutation(
        "one job more than allowed",
        "src/tier/copy/copier.rs",
        "if queue.jobs >= self.config.max_jobs {",
        "if queue.jobs > self.config.max_jobs {",
        "tier_copy",
    ),
    Mutation(
        "a host page starts at the one before it",
        "src/tier/host.rs",
        "self.mapping.base().add(pool.at + (id as usize - 1) * pool.page)",
        "self.mapping.base().add(pool.at + (id as usize - 1).saturating_sub(1) * pool.page)",
        "tier_copy",
    ),
    Mutation(
        "a failed load keeps its boundary",
        "src/cache/load.rs",
        "        if ok {\n            self.arrive(index, *load);",
        "        if ok || load.to > 0 {\n            self.arrive(index, *load);",
        "loads",
    ),
    Mutation(
        "a commit while rows come",
        "src/cache/commit.rs",
        '        seq.check_loaded("commit")?;\n',
        "",
        "loads",
    ),
    Mutation(
        "MTP rows of another continuation are taken as they came",
        "src/cache/load.rs",
        "        own.is_some_and(|own| record.eq(own.iter().copied()))",
        "        own.is_some_and(|own| record.count() == own.len())",
        "state_machine",
    ),
    Mutation(
        "the window to go back to is not counted",
        "src/cache/sequence.rs",
        "(self.swa.len() + self.load.as_ref().map_or(0, |l| l.window.len())) as u64",
        "self.swa.len() as u64",
        "loads",
    ),
    Mutation(
        "copies of a window that was given up are run",
        "src/cache/load.rs",
        "        self.drop_unowned(id);\n        let seq = &mut self.seqs[index];\n",
        "        let seq = &mut self.seqs[index];\n",
        "loads",
    ),
    Mutation(
        "lent SWA pages are not leased",
        "src/cache/lend.rs",
        "            tree.lease_swa(page);\n",
        "",
        "loads",
    ),
    Mutation(
        "a page of one tier is taken for a page of both",
        "src/tier/plan.rs",
        "held.contains(&page) || tiers.iter().any(",
        "held.contains(&page) || tiers.iter().all(",
        "tiers",
    ),
    Mutation(
        "a failed copy down is published",
        "src/tier/save.rs",
        "        self.host.load_done(id, ok)?;",
        "        self.host.load_done(id, true)?;",
        "tiers",
    ),
    Mutation(
        "a cleared namespace is fetched from",
        "src/cache/lend.rs",
        "seq.base == self.base_key(&seq.key) && self.tree.roots[seq.root].attached",
        "seq.committed < u64::MAX",
        "tiers",
    ),
    Mutation(
        "what a step still writes is lent",
        "src/cache/lend.rs",
        "if !self.are_written(place, &full, &pages) || ",
        "if ",
        "loads",
    ),
    Mutation(
        "the next boundary goes down in another namespace",
        "src/tier/save.rs",
        "end - 1..end)? != [name] {",
        "end - 1..end)?.is_empty() {",
        "tier_chains",
    ),
    Mutation(
        "a request's second way down copies what the first one does",
        "src/tier/save.rs",
        "if again && self.joins(",
        "if false && again && self.joins(",
        "tier_chains",
    ),
)


def copy_tree() -> Path:
    """Copies what the build needs."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("src", "tests", "benches"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("Cargo.toml", "Cargo.lock"):
        shutil.copy2(ROOT / file, tree / file)
    # The last build here may be of a mutation: what is newer than it is built again.
    (tree / "src" / "lib.rs").touch()
    return tree


def cargo(tree: Path, target: str, run: bool) -> subprocess.CompletedProcess[str]:
    """Builds, or builds and runs, one test target in the copy."""
    command = ["cargo", "test", "--quiet", "--profile", "quick", "--test", target]
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "build"), PROPTEST_MAX_SHRINK_ITERS="0", RUST_BACKTRACE="0")
    env.setdefault("MIMO_CASES", "1000")
    if not run:
        command.append("--no-run")
    return subprocess.run(command, cwd=tree, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)


def first_panic(output: str) -> str:
    """The first line that says what broke."""
    lines = output.splitlines()
    for i, line in enumerate(lines):
        if "panicked at" in line:
            return next((text.strip()[:110] for text in lines[i + 1 :] if text.strip()), line)
    return "(no panic)"


def try_mutation(tree: Path, mutation: Mutation) -> tuple[bool, str]:
    """Applies, runs and takes back one mutation: (caught, what happened)."""
    path = tree / mutation.file
    text = path.read_text()
    count = text.count(mutation.old)
    if count != 1:
        return False, f"STALE: its text is in {mutation.file} {count} times, not once"
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        targets = [mutation.caught_by, *(t for t in SUITE if t != mutation.caught_by)]
        build = cargo(tree, targets[0], run=False)
        if build.returncode != 0:
            error = next((line for line in build.stderr.splitlines() if line.startswith("error")), "error")
            return False, f"DOES NOT COMPILE: {error}"
        for target in targets:
            try:
                run = cargo(tree, target, run=True)
            except subprocess.TimeoutExpired:
                return True, f"caught by {target}: it never ended"
            if run.returncode != 0:
                return True, f"caught by {target}: {first_panic(run.stdout + run.stderr)}"
        return False, "SURVIVED"
    finally:
        path.write_text(text)


def main() -> int:
    """Runs the list; see the module's text."""
    parser = argparse.ArgumentParser(description="Deliberate faults that the suite must catch.")
    parser.add_argument("--list", action="store_true", help="name the mutations and stop")
    parser.add_argument("--only", default="", help="only mutations whose name contains this")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.name]
    if args.list:
        for m in chosen:
            print(f"{m.name:40} {m.file}")
        return 0
    tree = copy_tree()
    for target in SUITE:
        healthy = cargo(tree, target, run=True)
        if healthy.returncode != 0:
            print(f"the suite fails without any mutation, in {target}: {first_panic(healthy.stdout + healthy.stderr)}")
            return 1
    missed = 0
    for number, mutation in enumerate(chosen, 1):
        start = time.monotonic()
        caught, story = try_mutation(tree, mutation)
        missed += not caught
        print(f"[{number}/{len(chosen)}] {mutation.name}: {story} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
