//! Looks at a GCache cluster: `docs/operations.md`.

use clap::{Parser, Subcommand};
use mimo_cache::member::read_text;
use mimo_cache::node::auth::MAX_TOKEN_FILE_BYTES;
use mimo_cache::node::ctl::{self, Cluster};
use std::process::ExitCode;

/// Looks at a GCache cluster.
#[derive(Debug, Parser)]
#[command(name = "gcachectl", version)]
struct Args {
    /// A node: name=host:port, name=unix:/path, with *weight after it where weights differ; may be given several times.
    #[arg(long = "node", env = "GCACHE_NODES", value_delimiter = ',', value_name = "NAME=ADDRESS", global = true)]
    nodes: Vec<String>,
    /// File with the token to send.
    #[arg(long, env = "GCACHE_TOKEN_FILE", value_name = "FILE", global = true)]
    token_file: Option<std::path::PathBuf>,
    /// Tenant to act for.
    #[arg(long, default_value_t = 0, global = true)]
    tenant: u64,
    /// Seconds that one node may take.
    #[arg(long, default_value_t = 2.0, global = true)]
    deadline: f64,
    /// Buckets of the placement table.
    #[arg(long, default_value_t = mimo_cache::ring::DEFAULT_BUCKETS, global = true)]
    buckets: u32,
    /// JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Which nodes answer, and what they hold.
    Status,
    /// Which node owns an extent.
    Locate {
        /// Chain key of the extent's first page: 64 hexadecimal digits.
        #[arg(required = true)]
        extents: Vec<String>,
    },
    /// Puts values of random bytes, gets them back, compares, and says how fast that was. They are deleted afterwards.
    Bench {
        /// Bytes of a value.
        #[arg(long, default_value = "1MiB")]
        size: String,
        /// Values.
        #[arg(long, default_value_t = 256)]
        count: u32,
        /// Values of one request.
        #[arg(long, default_value_t = 32)]
        batch: u32,
    },
    /// Lets the nodes compare values with their CRCs; what differs is dropped.
    Verify {
        /// KEY:PART[:EXTENT], keys as 64 hexadecimal digits; the extent is the key where it is left out. `-` reads lines.
        #[arg(required = true)]
        objects: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok((text, fine)) => {
            // Whoever reads only the status must not take it for well what could not be said.
            if let Err(sentence) = ctl::say(&text) {
                return ctl::complain("gcachectl", &sentence, 2);
            }
            if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(sentence) => ctl::complain("gcachectl", &sentence, 2),
    }
}

/// What to print, and whether all is well.
fn run(args: Args) -> Result<(String, bool), String> {
    let read = |path: &std::path::Path| {
        let text = read_text(path, MAX_TOKEN_FILE_BYTES).map_err(|e| format!("token file {}: {e}", path.display()))?;
        Ok::<_, String>(text.trim().to_string())
    };
    let token = args.token_file.as_deref().map(read).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let cluster = Cluster::new(&args.nodes, args.buckets, args.tenant, token, args.deadline)?;
        match args.command {
            Command::Status => ctl::status(&cluster, args.json).await,
            Command::Locate { extents } => ctl::locate(&cluster, &extents, args.json),
            Command::Bench { size, count, batch } => ctl::bench(&cluster, &size, count, batch, args.json).await,
            Command::Verify { objects } => ctl::verify(&cluster, &objects, args.json).await,
        }
    })
}
