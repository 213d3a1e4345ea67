//! The operations of the state machine, as plain values. Numbers are taken modulo what is there, so that any list of
//! them is valid and stays valid when some are removed. Six bytes name one operation, whether proptest, a fuzzer or
//! the soak's generator made them; zeros are the simplest.

/// How a prompt is made: the first `keep`/255 of story `base`, then `tail` tokens that depend on `taste` alone.
#[derive(Debug, Clone, Copy)]
pub struct Prompt {
    pub base: u8,
    pub keep: u8,
    pub tail: u8,
    pub taste: u8,
    /// Bits 0 and 1: key, mostly 0. Bit 2: a span. Bit 3: tenant. Bit 4: do not store.
    pub flags: u8,
}

#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// A whole life: open, prefill in chunks, decode with drafts, finish; steps retired `late` or at once.
    Serve {
        prompt: Prompt,
        shape: u8,
    },
    Request {
        prompt: Prompt,
    },
    Peek {
        request: u8,
    },
    Open {
        request: u8,
        credit: u8,
    },
    Drop {
        request: u8,
    },
    /// One engine step for some sequences: reserve, fill, commit, perhaps retire.
    Advance {
        mask: u8,
        chunk: u8,
        accept: u8,
        seed: u8,
        shape: u8,
    },
    Reserve {
        seq: u8,
        n: u8,
    },
    Fill {
        mask: u8,
        seed: u8,
        compact: bool,
    },
    Commit {
        seq: u8,
        rows: u8,
        accept: u8,
        extra: u8,
        seed: u8,
    },
    Trim {
        seq: u8,
    },
    Retire,
    Finish {
        seq: u8,
    },
    Abort {
        seq: u8,
    },
    Fork {
        seq: u8,
        m: u8,
        credit: u8,
    },
    Park {
        seq: u8,
        store: bool,
    },
    Resume {
        seq: u8,
        credit: u8,
    },
    TakeCopies,
    MoveDone {
        which: u8,
    },
    Match {
        prompt: Prompt,
    },
    Explain {
        prompt: Prompt,
    },
    Clear {
        key: u8,
        all: bool,
    },
    SetWeights {
        version: u8,
    },
    Pin {
        prompt: Prompt,
        ttl: u8,
    },
    Clock {
        ms: u8,
    },
    TenantShare {
        tenant: u8,
        full: u8,
        swa: u8,
    },
    Drain {
        max: u8,
    },
    /// Rows of another tier in place of computing them.
    Load {
        seq: u8,
        far: u8,
        taste: u8,
    },
    LoadDone {
        which: u8,
        ok: bool,
    },
    /// A copy from another tier: open, load, finish.
    Receive {
        prompt: Prompt,
        far: u8,
        taste: u8,
    },
    /// A copy to another tier: pages are lent for a while.
    Lend {
        prompt: Prompt,
        most: u8,
    },
    /// Only in worlds with a host tier: it brings up what it has for a sequence.
    Fetch {
        seq: u8,
    },
    /// It takes what is cached of a prompt.
    Save {
        prompt: Prompt,
    },
    Saved {
        which: u8,
        ok: bool,
    },
    /// Pages of a prompt come to it from another process.
    ReceiveBelow {
        prompt: Prompt,
        far: u8,
        taste: u8,
    },
    Received {
        which: u8,
        ok: bool,
    },
    /// It lends what it has of a prompt.
    /// A request for it: opened and fetched at once.
    ServeBelow {
        prompt: Prompt,
        taste: u8,
    },
    LendBelow {
        prompt: Prompt,
        far: u8,
    },
    Returned {
        which: u8,
    },
    /// Only in worlds with a region: the other pool is told to give up a chunk.
    Reassign {
        to_full: bool,
        chunk: u8,
    },
}

impl Op {
    /// As [`Op::decode`], with changes of the split among them.
    pub fn decode_region([kind, a, b, c, d, e]: [u8; 6]) -> Op {
        match kind {
            0..=11 => Op::Reassign { to_full: a % 2 == 1, chunk: b },
            // Rare ones that only empty the pools become whole lives.
            237..=241 | 248..=250 => Op::decode([0, a, b, c, d, e]),
            _ => Op::decode([kind, a, b, c, d, e]),
        }
    }

    /// As [`Op::decode`], with copies to and from a host tier among them.
    pub fn decode_below([kind, a, b, c, d, e]: [u8; 6]) -> Op {
        match kind {
            24..=31 => Op::Fetch { seq: a },
            38..=39 | 130..=134 => Op::ReceiveBelow {
                prompt: Prompt {
                    base: a,
                    keep: b,
                    tail: c,
                    taste: d & 3,
                    flags: if d < 128 { 0 } else { (d / 4) & 31 },
                },
                far: e,
                taste: (a ^ c).wrapping_add(d).wrapping_mul(31) ^ e,
            },
            60..=62 => Op::Received { which: a, ok: b % 4 != 1 },
            63..=64 => Op::LendBelow {
                prompt: Prompt { base: a, keep: b, tail: c, taste: d, flags: if e < 128 { 0 } else { e & 31 } },
                far: e,
            },
            135..=139 => Op::ServeBelow {
                prompt: Prompt { base: a, keep: b, tail: c, taste: d, flags: if e < 128 { 0 } else { e & 31 } },
                taste: e,
            },
            164..=165 => Op::Returned { which: a },
            35..=37 => Op::Saved { which: a, ok: b % 4 != 1 },
            221..=224 | 234..=236 | 242..=247 | 251..=253 => Op::Save {
                prompt: Prompt { base: a, keep: b, tail: c, taste: d, flags: if e < 128 { 0 } else { e & 31 } },
            },
            229..=230 => Op::Saved { which: a, ok: b % 4 != 1 },
            _ => Op::decode([kind, a, b, c, d, e]),
        }
    }

    pub fn decode([kind, a, b, c, d, e]: [u8; 6]) -> Op {
        let flags = if e < 128 { 0 } else { e & 31 };
        let prompt = Prompt { base: a, keep: b, tail: c, taste: d, flags };
        match kind {
            0..=23 => Op::Serve { prompt, shape: e ^ kind },
            24..=31 => Op::Load { seq: a, far: b, taste: c },
            32..=34 => Op::LoadDone { which: a, ok: b % 4 != 1 },
            35..=37 => Op::Receive { prompt, far: e, taste: d ^ c },
            38..=39 => Op::Lend { prompt, most: e },
            40..=59 => Op::Request { prompt },
            60..=64 => Op::Peek { request: a },
            65..=89 => Op::Open { request: a, credit: b },
            90..=91 => Op::Drop { request: a },
            92..=129 => Op::Advance { mask: a, chunk: b, accept: c, seed: d, shape: e },
            130..=139 => Op::Reserve { seq: a, n: b },
            140..=149 => Op::Fill { mask: a, seed: b, compact: c % 4 != 1 },
            150..=163 => Op::Commit { seq: a, rows: b, accept: c, extra: d, seed: e },
            164..=167 => Op::Trim { seq: a },
            168..=183 => Op::Retire,
            184..=191 => Op::Finish { seq: a },
            192..=196 => Op::Abort { seq: a },
            197..=206 => Op::Fork { seq: a, m: b, credit: c },
            207..=213 => Op::Park { seq: a, store: b % 4 != 1 },
            214..=220 => Op::Resume { seq: a, credit: b },
            221..=224 => Op::TakeCopies,
            225..=228 => Op::MoveDone { which: a },
            229..=233 => Op::Match { prompt },
            234..=236 => Op::Explain { prompt },
            237..=239 => Op::Clear { key: a, all: b % 8 == 1 },
            240..=241 => Op::SetWeights { version: a },
            242..=244 => Op::Pin { prompt, ttl: e },
            245..=247 => Op::Clock { ms: a },
            248..=250 => Op::TenantShare { tenant: a, full: b, swa: c },
            251..=255 => Op::Drain { max: a },
        }
    }
}
