//! Token hit rates of policies on traces, through the core: what docs/policies.md shows.
//!
//!     cargo bench --bench policies -- FOLDER [--trace NAME]... [--policy NAME]... [--retention RULES]... [--share S]...
//!         [--cap C]... [--uniform] [--page N] [--json FILE]
//!
//! With `--json` every replay is a line added to FILE, as soon as it is done.

use mimo_cache::policy::{PolicyKind, Retention};
use mimo_cache::replay::{Capacity, KvBytes, Options, Split, run};
use std::io::Write;
use std::path::Path;

/// Traces with the capacities, in percent, at which they are looked at: all layers in one pool, and two pools.
const TRACES: [(&str, &[f64], &[f64]); 5] = [
    ("claude_code_dev", &[0.25, 0.5, 1.0, 2.0, 5.0], &[0.1, 0.25, 0.5, 1.0, 2.0]),
    ("conversation", &[1.0, 2.0, 5.0, 10.0, 20.0], &[0.5, 1.0, 2.0, 5.0, 10.0]),
    ("tau_airline", &[1.0, 2.0, 5.0], &[0.5, 1.0, 2.0]),
    ("magagent", &[1.0, 2.0, 5.0], &[1.0, 2.0, 5.0]),
    ("miniswe", &[1.0, 2.0, 5.0], &[0.5, 1.0, 2.0]),
];

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let folder = args.next().expect("the folder of the traces");
    let (mut traces, mut policies, mut retentions, mut shares, mut caps) = (vec![], vec![], vec![], vec![], vec![]);
    let (mut uniform, mut page, mut json) = (false, 64, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value");
        match arg.as_str() {
            "--trace" => traces.push(value()),
            "--policy" => policies.push(PolicyKind::parse(&value()).expect("a policy")),
            "--retention" => retentions.push(value()),
            "--share" => shares.push(value().parse::<f64>().expect("a share")),
            "--cap" => caps.push(value().parse::<f64>().expect("a capacity in percent")),
            "--page" => page = value().parse().expect("tokens of a page"),
            "--uniform" => uniform = true,
            "--json" => json = Some(value()),
            other => panic!("what is {other}"),
        }
    }
    if policies.is_empty() {
        policies.extend(PolicyKind::all());
    }
    if retentions.is_empty() {
        retentions.push("default".into());
    }
    if shares.is_empty() || uniform {
        shares = vec![if uniform { 0.0 } else { 0.1 }];
    }
    let kv = KvBytes::of_model(if uniform { "uniform" } else { "mimo-v2.5-pro" }, page).expect("a model");
    for (name, one, two) in TRACES.iter().filter(|t| traces.is_empty() || traces.iter().any(|n| n == t.0)) {
        let own = if uniform { one } else { two };
        let caps: &[f64] = if caps.is_empty() { own } else { &caps };
        println!("{name} {} at {caps:?} %", if uniform { "uniform" } else { "hybrid" });
        for policy in &policies {
            for rules in &retentions {
                for &share in &shares {
                    let mut line = format!("  {:12} {rules:34} {share:5.3}", policy.name());
                    let mut seconds = 0.0;
                    for &cap in caps {
                        let retention = match rules.as_str() {
                            "default" => Retention::default(),
                            other => Retention::parse(other).expect("rules of retention"),
                        };
                        let options = Options {
                            kv,
                            capacity: Capacity::Share(cap / 100.0),
                            swa_share: share,
                            split: Split::Fixed,
                            retention,
                            policy: *policy,
                            page_size: page,
                            chunk: 8192,
                            seed: 0,
                            skip_bad: false,
                            service: None,
                            samples: 0,
                            host: None,
                        };
                        let path = Path::new(&folder).join(format!("{name}.jsonl.gz"));
                        match run(&path, &options, |_| true) {
                            Ok(Some(o)) => {
                                let (hit, full) = (100.0 * o.token_hit_rate(), 100.0 * o.full_kv_hit_rate());
                                line +=
                                    &if uniform { format!(" {hit:6.2}") } else { format!(" {hit:6.2} ({full:5.2})") };
                                seconds += o.seconds;
                                if let Some(file) = &json {
                                    let row = serde_json::json!({
                                        "trace": name, "model": if uniform { "uniform" } else { "mimo-v2.5-pro" },
                                        "policy": policy.name(), "retention": rules, "swa_share": share, "percent": cap,
                                        "page_size": page, "token_hit_rate": o.token_hit_rate(),
                                        "full_kv_hit_rate": o.full_kv_hit_rate(), "seconds": o.seconds,
                                        "full_evicted": o.full_evicted, "checkpoints_evicted": o.checkpoints_evicted,
                                        "checkpoints": o.checkpoints,
                                    });
                                    let mut file = std::fs::File::options().create(true).append(true).open(file);
                                    let file = file.as_mut().expect("a file to add lines to");
                                    writeln!(file, "{row}").expect("room for a line");
                                }
                            }
                            Ok(None) => unreachable!("nobody stops it"),
                            // Too small for a window and one checkpoint.
                            Err(_) => line += if uniform { "      -" } else { "      -        " },
                        }
                    }
                    println!("{line}  {seconds:.1} s");
                }
            }
        }
    }
}
