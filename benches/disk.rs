//! The disk tier by itself: `cargo bench --bench disk -- [read] [write] [sizes] [recovery] [segments] [wear] [quick] [dir=DIR]
//! [runs=N] [entries=N]`.
//!
//! Progress goes to stderr; the last line of stdout is one JSON object `{"figures": [...]}`, medians of `runs` runs (5),
//! wall times where nothing else is said. `mimo-cache bench disk` runs this binary and adds what needs a node.
//! - `read`: cold gets with 32 in flight, values verified, beside fio's random reads of the same files.
//! - `write`: puts into a full tier in batches as demotion gives them, beside fio's sequential writes.
//! - `sizes`: both for values of 4 KiB to 32 MiB.
//! - `recovery`: opening, index and CPU times with 10^4 to 10^6 (`entries`) objects of one block.
//! - `segments`: CPU time of a put with 64 to 8,192 segments.
//! - `wear`: bytes written for each byte put, in a mixed load that keeps 80 % of the capacity alive.
//!
//! Files are made under `dir` (the system's temporary directory), at most 3 GiB, and removed, also on SIGINT and SIGTERM.

mod common;
mod disk_tier;

use disk_tier::{Settings, growth, place, rates, segments, wear};
use serde_json::{Value, json};

type Scenario = fn(&Settings) -> Vec<Value>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let value = |name: &str| args.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, usual: u64| value(name).map_or(usual, |v| v.parse().expect("a whole number"));
    let quick = args.iter().any(|a| a == "quick");
    let settings = Settings {
        quick,
        runs: number("runs", 5) as usize,
        entries: number("entries", if quick { 20_000 } else { 1_000_000 }),
        root: place::Root::new(value("dir")),
    };
    place::remove_when_interrupted(settings.root.path());
    let parts: Vec<&String> = args.iter().filter(|a| !a.contains('=') && *a != "quick").collect();
    let known: [(&str, Scenario); 6] = [
        ("read", rates::read),
        ("write", rates::write),
        ("sizes", rates::sizes),
        ("recovery", growth::run),
        ("segments", segments::run),
        ("wear", wear::run),
    ];
    let mut figures: Vec<Value> = Vec::new();
    for (name, run) in known {
        if parts.is_empty() || parts.iter().any(|p| *p == name) {
            eprintln!("disk: {name}");
            figures.extend(run(&settings));
        }
    }
    println!("{}", json!({"figures": figures, "quick": quick}));
}
