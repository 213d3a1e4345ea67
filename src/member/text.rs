//! Short text files that a person names: settings, tokens, lists of nodes. Whatever is at the path, reading it ends soon
//! and takes bounded memory.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// The system's words, or: it is no regular file (a FIFO never ends and may have no writer, `/dev/zero` has no size), it
/// is longer, it is not UTF-8. The path is not in the sentence.
pub fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let kind = |found: std::fs::Metadata| {
        let what = if found.is_dir() { "a folder" } else { "no regular file" };
        if found.is_file() { Ok(()) } else { Err(format!("it is {what}, allowed is a regular file")) }
    };
    // Before it is opened, which some devices notice; and after, since another file may be there by then.
    kind(std::fs::metadata(path).map_err(|e| e.to_string())?)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = file.map_err(|e| e.to_string())?;
    kind(file.metadata().map_err(|e| e.to_string())?)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|e| format!("it is not UTF-8 at byte {}", e.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_short_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("mimo-text-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        std::fs::write(&path, "four").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for fine in [&path, &link] {
            assert_eq!(read_text(fine, 4).as_deref(), Ok("four"));
        }
        assert_eq!(read_text(&path, 3), Err("it is longer than 3 bytes".into()));
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        assert_eq!(read_text(&path, 4), Err("it is not UTF-8 at byte 1".into()));
        let fifo = folder.join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a plain call with a string that lives.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for (wrong, words) in [
            (fifo.as_path(), "no regular file"),
            (Path::new("/dev/zero"), "no regular file"),
            (folder.as_path(), "a folder"),
            (Path::new("/nonexistent/x"), "os error 2"),
            (Path::new("a\0b"), "NUL"),
        ] {
            let found = read_text(wrong, 4).unwrap_err();
            assert!(found.contains(words), "{wrong:?}: {found}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
