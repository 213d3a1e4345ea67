//! Gets and puts by bytes of a second.

use super::{Dice, Puts, Settings, Tier, fio, gets, noise};
use crate::common::figure;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Operations in flight, ours and fio's.
const DEPTH: usize = 32;
/// Values in flight may take so many bytes.
const MOST_BYTES: usize = 128 << 20;

const SIZES: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];

impl Settings {
    /// Time of one run.
    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 50 } else { 700 })
    }

    /// Bytes, or a few where it is to be quick.
    fn bytes(&self, many: u64) -> u64 {
        if self.quick { many / 16 } else { many }
    }
}

/// The figures of ours, fio's, and their ratio turn by turn.
fn beside(ours: (&str, &[f64]), fio: (&str, &[f64])) -> Vec<Value> {
    let mut figures = vec![figure(ours.0, "MB/s", ours.1)];
    if fio.1.len() == ours.1.len() {
        figures.push(figure(fio.0, "MB/s", fio.1));
        let ratios: Vec<f64> = ours.1.iter().zip(fio.1).map(|(a, b)| a / b).collect();
        let mut ratio = figure(&format!("{}_vs_fio", ours.0), "1", &ratios);
        ratio["against"] = format!("{} in the same run, MB/s", fio.0).into();
        ratio["ratio"] = ratio["median"].clone();
        figures.push(ratio);
    }
    figures
}

pub fn read(settings: &Settings) -> Vec<Value> {
    let mut figures = Vec::new();
    for size in SIZES {
        let bytes = settings.bytes(if size < 64 << 10 { 512 << 20 } else { 1 << 30 });
        let tier = Tier::new(settings, bytes * 3 / 2);
        let count = bytes / size as u64;
        Puts::new(0, size).fill(&tier.disk, count);
        assert_eq!(tier.disk.stats().objects, count);
        let (files, mut dice) = (tier.full(), Dice(1));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..settings.runs {
            let rate = gets(&tier.disk, size, DEPTH, || dice.below(count), |_, passed| passed >= settings.time());
            ours.push(rate * size as f64 / 1e6);
            theirs.extend(fio::random_reads(settings.root.path(), &files, size, DEPTH, settings.time()));
        }
        figures.extend(beside((&format!("cold_get_{size}"), &ours), (&format!("fio_randread_{size}"), &theirs)));
    }
    figures
}

pub fn write(settings: &Settings) -> Vec<Value> {
    let mut figures = Vec::new();
    let bytes = settings.bytes(1 << 30);
    let file = whole_file(settings, bytes);
    for size in SIZES {
        let tier = Tier::new(settings, bytes);
        let mut puts = Puts::new(0, size);
        // Full, so that each segment is one that is reclaimed.
        puts.fill(&tier.disk, bytes * 5 / 4 / size as u64);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..settings.runs {
            ours.push(puts.run(&tier.disk, |_, passed| passed >= settings.time()) / 1e6);
            theirs.extend(fio::writes(settings.root.path(), &file, size, DEPTH, settings.time()));
        }
        eprintln!("disk: puts of {size} found no room {} times", puts.waited);
        figures.extend(beside((&format!("put_{size}"), &ours), (&format!("fio_write_{size}"), &theirs)));
    }
    std::fs::remove_file(file).expect("it was made");
    figures
}

/// A file whose blocks are written, as those of segments in use are.
fn whole_file(settings: &Settings, bytes: u64) -> PathBuf {
    use std::io::Write;
    let path = settings.root.path().join("fio-file");
    let mut file = std::fs::File::create(&path).expect("a new file");
    let block = noise(1 << 20);
    (0..bytes >> 20).for_each(|_| file.write_all(&block).expect("space for the file"));
    file.sync_all().expect("space for the file");
    path
}

pub fn sizes(settings: &Settings) -> Vec<Value> {
    let mut figures = Vec::new();
    let sizes = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20];
    for size in sizes.into_iter().filter(|size| !settings.quick || *size <= 1 << 20) {
        let bytes = settings.bytes(1 << 30);
        let tier = Tier::new(settings, bytes * 2);
        let mut puts = Puts::new(0, size);
        // Two values of 32 MiB do not fit into a segment of 64 MiB.
        let count = bytes / 2 / size as u64;
        puts.fill(&tier.disk, count);
        let depth = (MOST_BYTES / size).clamp(1, DEPTH);
        let (mut got, mut put, mut dice) = (Vec::new(), Vec::new(), Dice(2));
        for _ in 0..settings.runs.min(3) {
            let time = settings.time() / 2;
            let from = puts.next - count;
            let rate = gets(&tier.disk, size, depth, || from + dice.below(count), |_, passed| passed >= time);
            got.push(rate * size as f64 / 1e6);
            put.push(puts.run(&tier.disk, |_, passed| passed >= time) / 1e6);
        }
        figures.push(figure(&format!("size_get_{size}"), "MB/s", &got));
        figures.push(figure(&format!("size_put_{size}"), "MB/s", &put));
    }
    figures
}
