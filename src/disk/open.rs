//! Making a directory, or attaching to one: what is accepted and what is refused.

use super::config::{DiskConfig, DiskRecovery};
use super::core::Core;
use super::device::Device;
use super::error::DiskError;
use super::io::Io;
use super::layout::DirectoryId;
use super::manifest::{self, Fault, Manifest, Page};
use super::recover::is_ours;
use super::segment::{Phase, number_of};
use super::shared::Shared;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Instant;

const EMPTY_IT: &str = "remove what is in the directory to start empty";

/// Reads a directory and makes the tier ready to serve.
pub fn open(config: &DiskConfig, device: Arc<dyn Device>) -> Result<(Arc<Shared>, DiskRecovery), DiskError> {
    let start = Instant::now();
    config.validate()?;
    let path = device.path();
    let failed = |action| {
        let path = path.clone();
        move |e: io::Error| DiskError::io(path, action, &e)
    };
    let names = device.list().map_err(failed("list the directory"))?;
    let mut report = DiskRecovery { backend: device.name(), ..DiskRecovery::default() };
    let found = find_manifest(&device, &names, &path)?;
    report.created = found.is_none();
    let mut manifest = match found {
        Some(manifest) => compare(config, manifest, &path)?,
        None => Manifest {
            directory: random_id(),
            fingerprint: config.fingerprint,
            epoch: 0,
            capacity_bytes: 0,
            segment_bytes: 0,
        },
    };
    // What a crash left half made.
    for (name, _) in names.iter().filter(|(n, _)| n.ends_with(".new")) {
        device.remove(name).map_err(failed("remove a file that was only begun"))?;
    }
    manifest.epoch += 1;
    manifest.capacity_bytes = config.capacity_bytes;
    manifest.segment_bytes = config.segment_bytes;
    device.replace_file(manifest::NAME, &manifest.encode()).map_err(failed("write the manifest"))?;
    let core = Core::new(config.clone(), manifest.directory, manifest.epoch);
    let shared = Arc::new(Shared::new(Arc::new(Io::new(device)), core));
    shared.recover(&names, &mut report).map_err(failed("read the segments"))?;
    shared.with(|core, _| core.whole_moves = 2 * core.each().count())?;
    // Some segments to begin with; the worker makes the others, and reclaims.
    while shared.with(|core, _| core.count(Phase::Free) < core.config.spare_segments())? && shared.prepare_one(false) {}
    (report.objects, report.block_bytes) = shared.with(|core, _| core.summed())?;
    report.elapsed = start.elapsed();
    Ok((shared, report))
}

/// The manifest; none in a directory that is to be made.
fn find_manifest(device: &Arc<dyn Device>, names: &[(String, u64)], path: &str) -> Result<Option<Manifest>, DiskError> {
    if names.iter().any(|(n, _)| n == manifest::NAME) {
        let bytes = device
            .read_file(manifest::NAME, 2 * size_of::<Page>())
            .map_err(|e| DiskError::io(path, "read the manifest", &e))?;
        return Manifest::decode(&bytes).map(Some).map_err(|fault| explain(path, fault));
    }
    if names.iter().any(|(n, _)| number_of(n).is_some()) {
        let reason = "it has segments and no manifest";
        return Err(DiskError::refused(path, reason, format!("restore the file `{}`, or {EMPTY_IT}", manifest::NAME)));
    }
    if let Some((name, _)) = names.iter().find(|(n, _)| !is_ours(n)) {
        let reason = format!("it is not a directory of the disk tier: {name:?} is in it");
        return Err(DiskError::refused(path, reason, "give this node an empty directory of its own"));
    }
    Ok(None)
}

fn compare(config: &DiskConfig, found: Manifest, path: &str) -> Result<Manifest, DiskError> {
    if found.fingerprint == config.fingerprint {
        return Ok(found);
    }
    let hex = |f: &[u8; 32]| f[..8].iter().map(|b| format!("{b:02x}")).collect::<String>();
    let reason = format!(
        "it belongs to another configuration (fingerprint {}..., configured is {}...)",
        hex(&found.fingerprint),
        hex(&config.fingerprint)
    );
    Err(DiskError::refused(path, reason, format!("give this node a directory of its own, or {EMPTY_IT}")))
}

fn explain(path: &str, fault: Fault) -> DiskError {
    let (reason, remedy) = match fault {
        Fault::Magic => (
            "its manifest is not one of this program".to_string(),
            "give this node an empty directory of its own".into(),
        ),
        Fault::Version(found) => {
            let (oldest, newest) = manifest::readable();
            let reason =
                format!("its format has version {found}, and this program reads versions {oldest} to {newest}");
            (reason, format!("run the program that made it, or {EMPTY_IT}"))
        }
        Fault::Checksum => ("its manifest is damaged: the checksum does not match".to_string(), EMPTY_IT.to_string()),
        Fault::Epoch => ("it was opened four billion times".to_string(), EMPTY_IT.to_string()),
    };
    DiskError::refused(path, reason, remedy)
}

/// Sixteen bytes that no other directory has.
fn random_id() -> DirectoryId {
    let mut id = [0; 16];
    for half in id.chunks_exact_mut(8) {
        // A hasher's keys come from the system's random numbers.
        half.copy_from_slice(&RandomState::new().hash_one(std::process::id()).to_le_bytes());
    }
    id
}
