//! Making a file, or attaching to one: what is accepted and what is refused.

use super::available::{self, Available};
use super::config::{BootId, Prefault, Recovery, StoreConfig};
use super::error::ShmError;
use super::layout::{ENTRY_BYTES, Geometry};
use super::ledger::Ledger;
use super::mapped::{Mapped, io_error, open_locked, refused};
use super::superblock::{
    self, EPOCH_AT, Fault, MAGIC, MAGIC_NEW, MAX_EPOCH, PROCESS_AT, Page, Superblock, epoch_word, read_epoch,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are looked at at once for one that is not zero.
const BLANK_STEP: usize = 1 << 20;
/// Epochs that are left over, so that a running process never lacks one.
const SPARE_EPOCHS: u32 = 1000;

/// Opens the file of a store and reads what is in it.
pub fn open(config: &StoreConfig, boot: BootId) -> Result<(Ledger, Recovery), ShmError> {
    let start = Instant::now();
    let geometry = Geometry::of(config.size_bytes, config.slab_bytes)?;
    let file = open_locked(config)?;
    let mut page: Page = [0; size_of::<Page>()];
    let len = read_page(&file, &mut page).map_err(|e| io_error(&config.path, "read the superblock", e))?;
    let wanted = Superblock { geometry, fingerprint: config.fingerprint, boot };
    let created = len == 0
        || superblock::is_unfinished(&page)
        || len == config.size_bytes && is_blank(&file, len).map_err(|e| io_error(&config.path, "read the file", e))?;
    let mut recovery = Recovery { created, ..Recovery::default() };
    let map = if recovery.created {
        make_file(config, file, &wanted)?
    } else {
        let found = superblock::read(&page).map_err(|fault| explain(config, fault))?;
        compare(config, &found, &wanted, len)?;
        let holes = config.prefault == Prefault::Threads && available::taken(&file) < geometry.file_bytes;
        if holes {
            check_room(config, &file, geometry.file_bytes)?;
        }
        let map = Mapped::new(file, &config.path, geometry, config.probe.clone())?;
        if holes {
            // It was made with `Prefault::OnUse`: a use of a hole that finds no memory would be answered with a signal.
            map.populate()?;
        }
        recovery.other_boot = found.boot != boot;
        if recovery.other_boot {
            make(&map, &wanted);
        }
        map
    };
    let epoch = read_epoch(map.region.load(EPOCH_AT)).map_err(|fault| explain(config, fault))?;
    if epoch >= MAX_EPOCH - SPARE_EPOCHS {
        return Err(refused(&config.path, format!("it was attached {epoch} times"), REMOVE));
    }
    map.region.store(EPOCH_AT, epoch_word(epoch + 1));
    map.region.store(PROCESS_AT, u64::from(std::process::id()));
    let mut ledger = Ledger::new(Arc::new(map), epoch + 1, config.lease_bytes);
    ledger.recover(&mut recovery);
    recovery.elapsed = start.elapsed();
    Ok((ledger, recovery))
}

/// Refuses a file of `bytes` whose memory cannot be had.
fn check_room(config: &StoreConfig, file: &File, bytes: u64) -> Result<(), ShmError> {
    let missing = bytes.saturating_sub(available::taken(file));
    match Available::now(file).short_of(missing) {
        None => Ok(()),
        Some(reason) => {
            let remedy = "configure a smaller size, or make room: a larger file system, more memory, a higher limit";
            Err(refused(&config.path, format!("its {bytes} bytes cannot be had: {reason}"), remedy))
        }
    }
}

const REMOVE: &str = "remove the file to start empty";

fn read_page(file: &File, page: &mut Page) -> std::io::Result<u64> {
    let len = file.metadata()?.len();
    let part = page.len().min(len as usize);
    file.read_exact_at(&mut page[..part], 0)?;
    Ok(len)
}

/// Whether the whole file is zeros. hugetlbfs cannot be marked before it is mapped, so that is how a file of just the right
/// size looks whose making was interrupted there. A zero superblock with anything behind it is damage, or somebody else's file.
fn is_blank(file: &File, len: u64) -> std::io::Result<bool> {
    let mut block = vec![0u8; BLANK_STEP];
    let mut at = 0;
    while at < len {
        // SAFETY: a plain call on an open file. Holes are zeros; where the file system knows of none, everything is read.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        at = match data {
            -1 if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => return Ok(true),
            -1 => at,
            data => at.max(data as u64),
        };
        let part = block.len().min((len - at.min(len)) as usize);
        file.read_exact_at(&mut block[..part], at)?;
        if block[..part].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += part as u64;
    }
    Ok(true)
}

fn make_file(config: &StoreConfig, file: File, wanted: &Superblock) -> Result<Mapped, ShmError> {
    if config.prefault == Prefault::Threads {
        // Before anything of it is taken: the system would end processes, or the machine hang, where it cannot be had.
        check_room(config, &file, config.size_bytes)?;
    }
    let sized = |e| io_error(&config.path, "set the size of the file", e);
    // Emptied first, so that nothing of an interrupted making is left. The mark tells the next process that the file is
    // ours even if this one dies before it is mapped; hugetlbfs cannot be written to and goes without.
    file.set_len(0).map_err(sized)?;
    let _ = file.write_all_at(&MAGIC_NEW.to_le_bytes(), 0);
    file.set_len(config.size_bytes).map_err(sized)?;
    let map = Mapped::new(file, &config.path, wanted.geometry, config.probe.clone())?;
    if config.prefault == Prefault::Threads
        && let Err(error) = map.populate()
    {
        map.give_up();
        return Err(error);
    }
    make(&map, wanted);
    Ok(map)
}

/// Writes an empty slab table and the superblock.
fn make(map: &Mapped, wanted: &Superblock) {
    let (g, region) = (&wanted.geometry, &map.region);
    region.store(0, MAGIC_NEW);
    for slab in 0..g.slabs {
        (0..ENTRY_BYTES).step_by(8).filter(|at| region.load(g.entry_at(slab) + at) != 0).for_each(|at| {
            region.store(g.entry_at(slab) + at, 0);
        });
    }
    // Generations go on where they were, should the file have had any.
    if read_epoch(region.load(EPOCH_AT)).is_err() {
        region.store(EPOCH_AT, epoch_word(0));
    }
    let words = wanted.encode();
    for (n, word) in words.iter().enumerate().skip(1) {
        region.store(8 * n as u64, *word);
    }
    region.store(0, MAGIC);
}

fn compare(config: &StoreConfig, found: &Superblock, wanted: &Superblock, len: u64) -> Result<(), ShmError> {
    let refuse = |reason: String, remedy: &str| Err(refused(&config.path, reason, remedy));
    let (old, new) = (&found.geometry, &wanted.geometry);
    if len != old.file_bytes {
        return refuse(format!("it has {len} bytes and was made with {}", old.file_bytes), REMOVE);
    }
    if (old.file_bytes, old.slab_bytes) != (new.file_bytes, new.slab_bytes) {
        let reason = format!(
            "it was made with {} bytes in slabs of {}, and {} bytes in slabs of {} are configured",
            old.file_bytes, old.slab_bytes, new.file_bytes, new.slab_bytes
        );
        return refuse(reason, "configure the sizes it has, or remove the file to start empty with the new ones");
    }
    if found.fingerprint != wanted.fingerprint {
        let hex = |f: &[u8; 32]| f[..8].iter().map(|b| format!("{b:02x}")).collect::<String>();
        let reason = format!(
            "it belongs to another configuration (fingerprint {}..., configured is {}...)",
            hex(&found.fingerprint),
            hex(&wanted.fingerprint)
        );
        return refuse(reason, "give this node a path of its own, or remove the file to start empty");
    }
    Ok(())
}

fn explain(config: &StoreConfig, fault: Fault) -> ShmError {
    let (reason, remedy) = match fault {
        Fault::Magic => {
            ("it is not a shared-memory file of this program".to_string(), "give this node a path of its own")
        }
        Fault::Version(found) => {
            let (oldest, newest) = superblock::readable();
            let reason =
                format!("its layout has version {found}, and this program reads versions {oldest} to {newest}");
            (reason, "run the program that made it, or remove the file to start empty")
        }
        Fault::Checksum => ("its superblock is damaged: the checksum does not match".to_string(), REMOVE),
        Fault::Geometry => ("its superblock is damaged: sizes contradict each other".to_string(), REMOVE),
        Fault::Epoch => ("its superblock is damaged: the epoch does not match its checksum".to_string(), REMOVE),
    };
    refused(&config.path, reason, remedy)
}
