//! WIP
use crate::cache::types::Group;

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Balance {
    sum: f32,
    means: [f32; 2],
    patience: f32,
    last: Option<Group>,
    pub log: [f64; 4],
    pub ok: bool,
}

pub fn knob(name: &str, default: f32) -> f32 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

impl Balance {
    /// A pool dropped something first, at a price per byte; all that it took along was such a part of a chunk.
    pub fn lost(&mut self, by: Group, part: f32, price: f32) {
        let n = knob("MEAN", 16.0);
        let i = if by == Group::Full { 0 } else { 1 };
        let mean = &mut self.means[i];
        *mean = if *mean == 0.0 { price } else { *mean + (price - *mean) / n };
        let most = if std::env::var("AVG").is_ok() { (self.means[0] + self.means[1]) / 2.0 } else { self.means[0].max(self.means[1]) };
        if most <= 0.0 { return; }
        let x = (price / most).min(knob("XMAX", 1e9)) * part.min(1.0 / knob("KILLS", 32.0));
        self.add(by, x, price);
    }
    fn add(&mut self, by: Group, x: f32, price: f32) {
        let sign = if by == Group::Full { 1.0 } else { -1.0 };
        self.sum = (self.sum + sign * x).clamp(-4.0, 4.0);
        let i = if by == Group::Full { 0 } else { 1 };
        self.log[i] += 1.0;
        self.log[2 + i] += f64::from(price);
    }
    /// The pool that should get a chunk.
    pub fn due(&self) -> Option<Group> {
        let patience = if self.patience == 0.0 { knob("PAT", 1.0) } else { self.patience };
        if self.sum.abs() < patience {
            return None;
        }
        Some(if self.sum > 0.0 { Group::Full } else { Group::Swa })
    }

    pub fn due_fresh(&self) -> Option<Group> {
        if self.sum.abs() < knob("FR", 0.1) { return None; }
        if self.sum > 0.0 { Some(Group::Full) } else { Some(Group::Swa).filter(|_| self.ok && std::env::var("NFS").is_err()) }
    }
    pub fn fresh_moved(&mut self) { if std::env::var("DBG").is_ok() { eprintln!("fresh {} kills {:?} means {:?}", self.sum, self.log, self.means); self.log = Default::default(); } self.sum = 0.0; }

    /// A pool gets a chunk: evidence is gathered anew.
    pub fn moved(&mut self, to: Option<Group>) {
        self.sum = 0.0;
        if let Some(to) = to {
            if std::env::var("DBG").is_ok() { eprintln!("to {to:?} kills {:?} means {:?} patience {}", self.log, self.means, self.patience); self.log = Default::default(); }
            let (least, most) = (knob("PMIN", 0.25), knob("PMAX", 2.0));
            let p = if self.patience == 0.0 { knob("PAT", 1.0) } else { self.patience };
            self.patience = match self.last {
                Some(last) if last == to => (p / 2.0).max(least),
                Some(_) => (p * 2.0).clamp(knob("PBACK", 1.0), most),
                None => p,
            };
            self.last = Some(to);
        }
    }
}
