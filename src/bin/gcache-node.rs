//! The GCache node: `docs/operations.md`.

use clap::{Parser, Subcommand};
use mimo_cache::node::config::from_env;
use mimo_cache::node::ctl::{complain, say};
use mimo_cache::node::{Node, NodeConfig};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Serves a memory tier to many engines.
///
/// Settings come from the file, then from the environment (GCACHE_MEMORY__SIZE=8GiB sets memory.size), then from flags.
#[derive(Debug, Parser)]
#[command(name = "gcache-node", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads the configuration, says what is wrong with it, and ends.
    CheckConfig {
        #[command(flatten)]
        settings: Settings,
    },
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// The configuration file.
    #[arg(long, env = "GCACHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the node; placement uses it.
    #[arg(long)]
    name: Option<String>,
    /// Address for gRPC, host:port or unix:/path; may be given several times.
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Port of all TCP addresses of `listen`.
    #[arg(long)]
    port: Option<u16>,
    /// Address of /metrics and /health.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Path of the same-host socket.
    #[arg(long, value_name = "PATH")]
    fast_path: Option<String>,
    /// File of the memory tier.
    #[arg(long, value_name = "PATH")]
    memory_path: Option<String>,
    /// Size of the memory tier, as in 8GiB.
    #[arg(long)]
    memory_size: Option<String>,
    /// Listen off this machine without tokens: anybody who reaches the node may read and write everything.
    #[arg(long)]
    insecure: bool,
    /// Any other setting, as in limits.stall=5s; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// Flags as overrides.
    fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        let mut found = from_env(std::env::vars_os())?;
        let text = |value: &str| toml::Value::String(value.to_string()).to_string();
        let mut put = |key: &str, value: String| found.push((key.to_string(), value));
        let texts = [
            ("name", &self.name),
            ("metrics", &self.metrics),
            ("fast_path", &self.fast_path),
            ("memory.path", &self.memory_path),
            ("memory.size", &self.memory_size),
        ];
        for (key, value) in texts {
            value.iter().for_each(|v| put(key, v.clone()));
        }
        if !self.listen.is_empty() {
            put("listen", format!("[{}]", self.listen.iter().map(|a| text(a)).collect::<Vec<_>>().join(", ")));
        }
        if self.insecure {
            put("insecure", "true".into());
        }
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(format!("--set {pair}: allowed is KEY=VALUE, as in limits.stall=5s"));
            };
            put(key, value.to_string());
        }
        Ok(found)
    }

    fn read(&self) -> Result<NodeConfig, String> {
        let overrides = self.overrides()?;
        let mut config = match &self.config {
            Some(path) => NodeConfig::load(path, &overrides),
            None => NodeConfig::read("", &overrides).map_err(|e| format!("without --config: {e}")),
        }?;
        if let Some(port) = self.port {
            config.listen = config.listen.iter().map(|a| a.with_port(port)).collect();
            config.check()?;
        }
        Ok(config)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::CheckConfig { settings }) => settings.read().and_then(|config| {
            config.check_files()?;
            say(&format!("the configuration of node {:?} is fine", config.name))
        }),
        None => args.settings.read().and_then(serve),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => complain("gcache-node", &sentence, 1),
    }
}

/// Runs a node until it is told to stop.
fn serve(config: NodeConfig) -> Result<(), String> {
    let filter = config.log.filter()?;
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    if config.log.json {
        tracing_subscriber::registry().with(layer.json()).with(filter).init();
    } else {
        tracing_subscriber::registry().with(layer.with_ansi(false)).with(filter).init();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let failed = |e: std::io::Error| format!("cannot wait for signals: {e}");
        // Before the node says that it serves: who reads that may send one.
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let name = config.name.clone();
        let (node, found) = Node::start(config).await?;
        tracing::info!(
            node = %name,
            addresses = ?node.addresses(),
            metrics = node.metrics_address(),
            created = found.created,
            objects = found.objects,
            value_bytes = found.value_bytes,
            unfinished = found.unfinished,
            damaged = found.damaged_headers + found.damaged_spans,
            other_boot = found.other_boot,
            attach_seconds = found.elapsed.as_secs_f64(),
            "serving"
        );
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(node = %name, "stopping");
        tokio::select! {
            () = node.stop() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(node = %name, "stopped; values stay in the memory tier's file");
        Ok(())
    })
}
