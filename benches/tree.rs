//! What the bench measures inside Rust: `cargo bench --bench tree -- [rematch] [evict] [worst] [growth] [quick]`.
//!
//! Progress goes to stderr; the last line of stdout is one JSON object `{"figures": [...]}`, times in microseconds of CPU
//! time, medians of 5 runs. `mimo-cache bench tree` runs this binary and adds its figures to its own. `quick` shrinks
//! everything, to see that it runs.

mod common;
mod scenarios;

use serde_json::{Value, json};

/// Takes `quick`, returns figures.
type Scenario = fn(bool) -> Vec<Value>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if let [first, millions] = args.as_slice()
        && first == "growth_at"
    {
        let millions = millions.parse().expect("growth_at takes a number of million tokens");
        println!("{}", scenarios::growth::at(millions));
        return;
    }
    let quick = args.iter().any(|a| a == "quick");
    let chosen = |name: &str| args.iter().all(|a| a == "quick") || args.iter().any(|a| a == name);
    let mut figures: Vec<Value> = Vec::new();
    let known: [(&str, Scenario); 4] = [
        ("rematch", scenarios::rematch::run),
        ("evict", scenarios::evict::run),
        ("worst", scenarios::worst::run),
        ("growth", scenarios::growth::run),
    ];
    for (name, run) in known {
        if chosen(name) {
            eprintln!("rust: {name}");
            figures.extend(run(quick));
        }
    }
    println!("{}", json!({"figures": figures, "quick": quick}));
}
