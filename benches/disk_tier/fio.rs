//! fio beside the tier: direct I/O of one process, same sizes and depth, in the same directory.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Asynchronous engines, the better one first.
const ENGINES: [&str; 2] = ["io_uring", "libaio"];

/// The engine that works here; none without fio. Said once.
fn engine(dir: &Path) -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let file = dir.join("fio-probe");
        let works = |engine: &&str| one(engine, "write", std::slice::from_ref(&file), 4096, 1, None).is_some();
        let found = ENGINES.into_iter().find(works);
        let _ = std::fs::remove_file(&file);
        match found {
            Some(engine) => eprintln!("disk: beside fio with {engine}"),
            None => {
                eprintln!("disk: fio is not installed or has no asynchronous engine here, so its figures are left out")
            }
        }
        found
    })
}

/// MB/s of random reads of these files for so long.
pub fn random_reads(dir: &Path, files: &[PathBuf], size: usize, depth: usize, time: Duration) -> Option<f64> {
    one(engine(dir)?, "randread", files, size, depth, Some(time))
}

/// MB/s of sequential writes over a file that is there, for so long.
pub fn writes(dir: &Path, file: &PathBuf, size: usize, depth: usize, time: Duration) -> Option<f64> {
    one(engine(dir)?, "write", std::slice::from_ref(file), size, depth, Some(time))
}

fn one(engine: &str, what: &str, files: &[PathBuf], size: usize, depth: usize, time: Option<Duration>) -> Option<f64> {
    // A colon separates names, so those in paths are escaped.
    let names: Vec<String> = files.iter().map(|f| f.display().to_string().replace(':', "\\:")).collect();
    let mut command = Command::new("fio");
    command.args(["--name=beside", "--direct=1", "--output-format=json", "--allow_file_create=1"]);
    command.args(["--norandommap", "--randrepeat=0", "--file_service_type=random"]);
    command.arg(format!("--filename={}", names.join(":")));
    command.args([format!("--ioengine={engine}"), format!("--rw={what}")]);
    command.args([format!("--bs={size}"), format!("--iodepth={depth}")]);
    match time {
        Some(time) => command.args(["--time_based".into(), format!("--runtime={}ms", time.as_millis())]),
        None => command.arg(format!("--size={size}")),
    };
    if what == "randread" {
        command.arg("--readonly");
    }
    let done = command.output().ok()?;
    if !done.status.success() {
        eprintln!("disk: fio with {engine} says: {}", String::from_utf8_lossy(&done.stderr).trim_end());
        return None;
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let report: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = &report["jobs"][0][if what == "write" { "write" } else { "read" }];
    Some(job["bw_bytes"].as_f64()? / 1e6)
}
