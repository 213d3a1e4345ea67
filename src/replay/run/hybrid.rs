//! A bounded hybrid cache as a short, slow model: two pools with a fixed split, PROMPT_END and BRANCH checkpoints in one
//! LRU, full pages leaf first and those that no checkpoint makes resumable before all others. The core is held to within
//! a point of its hit rate: it also protects the last checkpoint of a stretch, and the window of the running sequence
//! is only about as large as the model's, which moves single hits in both directions.

use super::{Capacity, PAGE, options, replay};
use std::collections::HashMap;

type Page = u32;

#[derive(Default)]
struct Node {
    parent: Option<Page>,
    children: usize,
    last_use: usize,
    /// Last use of the checkpoint at the end of this page.
    checkpoint: Option<usize>,
    /// Checkpoints whose window has this page.
    windows: usize,
}

struct Model {
    full: usize,
    swa: usize,
    need: usize,
    cached: HashMap<Page, Node>,
}

impl Model {
    /// The pages of the window that ends with `page`.
    fn window(&self, page: Page) -> Vec<Page> {
        std::iter::successors(Some(page), |p| self.cached[p].parent).take(self.need).collect()
    }

    fn swa_used(&self) -> usize {
        self.cached.values().filter(|n| n.windows > 0).count()
    }

    fn drop_checkpoint(&mut self, page: Page) {
        self.cached.get_mut(&page).unwrap().checkpoint = None;
        for p in self.window(page) {
            self.cached.get_mut(&p).unwrap().windows -= 1;
        }
    }

    fn keep_checkpoint(&mut self, page: Page, now: usize) {
        if self.cached[&page].checkpoint.is_none() {
            let missing = |m: &Self| m.window(page).iter().filter(|p| m.cached[*p].windows == 0).count();
            while self.swa_used() + missing(self) > self.swa {
                let all = self.cached.iter().filter_map(|(&p, n)| n.checkpoint.map(|t| (t, p)));
                let (_, oldest) = all.min().expect("the pool holds one window");
                self.drop_checkpoint(oldest);
            }
            for p in self.window(page) {
                self.cached.get_mut(&p).unwrap().windows += 1;
            }
        }
        self.cached.get_mut(&page).unwrap().checkpoint = Some(now);
    }

    fn evict_full(&mut self, now: usize) {
        let leaves = self.cached.iter().filter(|(_, n)| n.children == 0 && n.last_use < now);
        let order = leaves.map(|(&p, n)| (n.checkpoint.is_some(), n.last_use, p));
        let (_, _, page) = order.min().expect("everything else can go");
        if self.cached[&page].checkpoint.is_some() {
            self.drop_checkpoint(page);
        }
        let gone = self.cached.remove(&page).unwrap();
        if let Some(parent) = gone.parent {
            self.cached.get_mut(&parent).unwrap().children -= 1;
        }
    }

    /// Serves one prompt and returns q in pages.
    fn serve(&mut self, path: &[Page], now: usize) -> usize {
        let path = &path[..path.len().min(self.full - 1)];
        let p = path.iter().take_while(|page| self.cached.contains_key(page)).count();
        let safe = |q: &usize| path[q.saturating_sub(self.need)..*q].iter().all(|p| self.cached[p].windows > 0);
        let q = (0..=p).rev().find(safe).unwrap_or(0);
        for page in &path[..p] {
            self.cached.get_mut(page).unwrap().last_use = now;
        }
        if q > 0 {
            self.cached.get_mut(&path[q - 1]).unwrap().checkpoint.iter_mut().for_each(|t| *t = now);
        }
        while self.cached.len() + (path.len() - p) + 1 > self.full {
            self.evict_full(now);
        }
        for i in p..path.len() {
            let parent = i.checked_sub(1).map(|i| path[i]);
            if let Some(parent) = parent {
                self.cached.get_mut(&parent).unwrap().children += 1;
            }
            self.cached.insert(path[i], Node { parent, last_use: now, ..Node::default() });
        }
        if p > q {
            self.keep_checkpoint(path[p - 1], now);
        }
        if let Some(&end) = path.last() {
            self.keep_checkpoint(end, now);
        }
        q
    }
}

/// Sessions that share system prompts, grow by turns, and sometimes go back and branch.
fn sessions(seed: u64, requests: usize) -> Vec<Vec<Page>> {
    let mut state = seed;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut next = 1000u32;
    let mut open: Vec<Vec<Page>> = Vec::new();
    let mut out = Vec::new();
    for _ in 0..requests {
        let mut prompt = if open.len() < 4 || random(12) == 0 {
            let system = random(3) as u32;
            (system * 100..system * 100 + 12 + system * 5).collect()
        } else {
            // The newest sessions talk most.
            let back = (random(open.len() as u64) * random(open.len() as u64) / open.len() as u64) as usize;
            let at = open.len() - 1 - back;
            let mut old = open.remove(at);
            if random(8) == 0 {
                old.truncate(old.len() - random(old.len() as u64 / 2) as usize);
            }
            old
        };
        let turn = 1 + random(9) as u32;
        prompt.extend(next..next + turn);
        next += turn;
        out.push(prompt.clone());
        if prompt.len() < 90 {
            open.push(prompt);
        }
    }
    out
}

#[test]
fn a_bounded_hybrid_cache_hits_what_its_model_hits() {
    let mut spread = Vec::new();
    for seed in 1..=4 {
        let prompts = sessions(seed, 400);
        let total: usize = prompts.iter().map(Vec::len).sum();
        for (full, share, window) in [(200, 0.2, 7), (400, 0.1, 8), (400, 0.3, 8), (800, 0.1, 4), (120, 0.5, 16)] {
            let options = options(window, Capacity::FullTokens(full * u64::from(PAGE)), share, "prompt_end+branch");
            let outcome = replay(PAGE, &prompts, &options).unwrap();
            let need = window.div_ceil(PAGE) as usize;
            let mut model = Model {
                full: outcome.pools.full_pages as usize,
                // The running window has room in the scratch beside the pool.
                swa: outcome.pools.swa_pages as usize,
                need,
                cached: HashMap::new(),
            };
            let hits: usize = prompts.iter().enumerate().map(|(i, p)| model.serve(p, i + 1)).sum();
            let (ours, theirs) = (outcome.token_hit_rate(), hits as f64 / total as f64);
            assert!(theirs > 0.3, "the trace should have something to hit, not {theirs}");
            assert!((ours - theirs).abs() < 0.01, "seed {seed}, {full} pages, share {share}: {ours} against {theirs}");
            spread.push(ours - theirs);
        }
    }
    let mean = spread.iter().sum::<f64>() / spread.len() as f64;
    assert!(mean > -0.002, "on average {mean} below the model: {spread:.4?}");
}
