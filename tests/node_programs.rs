//! `gcache-node check-config` and `gcachectl` as an operator calls them: what they read ends, what they print may fail, and
//! nothing panics.
#![cfg(all(feature = "gcache", target_os = "linux"))]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NODE: &str = env!("CARGO_BIN_EXE_gcache-node");
const CTL: &str = env!("CARGO_BIN_EXE_gcachectl");
/// Far more than any of them may take; they run at once.
const PATIENCE: Duration = Duration::from_secs(30);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mimo-programs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn config(&self, more: &str) -> PathBuf {
        let memory = self.0.join("memory");
        let text = format!(
            "name = 'a'\nlisten = ['unix:{}']\n[memory]\npath = '{}'\nsize = '64MiB'\nprefault = false\n{more}",
            self.0.join("sock").display(),
            memory.display()
        );
        self.file("config.toml", &text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a plain call with a string that lives.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// The outcome; a command that does not end is killed and fails the test.
fn run(command: &mut Command) -> Output {
    let mut child = command.env_remove("GCACHE_NODES").stderr(Stdio::piped()).spawn().unwrap();
    ended(&mut child);
    child.wait_with_output().unwrap()
}

fn ended(child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Status, standard output, standard error.
fn told(command: &mut Command) -> (i32, String, String) {
    let output = run(command.stdout(Stdio::piped()));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap_or(-1), out, err)
}

fn check(config: &Path) -> Command {
    let mut command = Command::new(NODE);
    command.arg("check-config").arg("--config").arg(config);
    command
}

#[test]
fn variables_of_others_do_not_matter() {
    let folder = Folder::new("env");
    let config = folder.config("");
    let odd = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let (status, out, err) = told(check(&config).env("OTHER", odd(b"a\xff")).env(odd(b"ODD\xff"), "x"));
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("node \"a\" is fine"), "{out}");
    for (name, value) in [(odd(b"GCACHE_NAME"), odd(b"a\xff")), (odd(b"GCACHE_\xff"), odd(b"a"))] {
        let (status, _, err) = told(check(&config).env(name, value));
        assert!(status == 1 && err.contains("not UTF-8"), "{err}");
    }
    let (status, _, err) =
        told(Command::new(CTL).arg("status").env("GCACHE_TOKEN_FILE", odd(b"/x\xff")).env("A", odd(b"\xff")));
    assert!(status == 2 && err.contains("token file"), "{err}");
}

#[test]
fn what_start_refuses_is_refused_before() {
    let folder = Folder::new("tokens");
    let missing = folder.0.join("missing");
    let short = folder.file("short", "short");
    let long = folder.file("long", &"x".repeat(20_000));
    for (path, words) in
        [(&missing, "os error 2"), (&short, "has 5 bytes"), (&folder.0, "a folder"), (&long, "longer than")]
    {
        let config = folder.config(&format!("[[tokens]]\nfile = '{}'\nall_tenants = true\n", path.display()));
        let checked = told(&mut check(&config));
        assert!(checked.0 == 1 && checked.2.contains(words), "{checked:?}");
        assert_eq!(told(Command::new(NODE).arg("--config").arg(&config)).2, checked.2, "the same words");
    }
    let config = folder.config("lease = '1GiB'\n");
    let checked = told(&mut check(&config));
    assert!(checked.2.contains("memory.lease in bytes is 1073741824"), "{checked:?}");
    assert_eq!(told(Command::new(NODE).arg("--config").arg(&config)).2, checked.2);
    let disk = format!("[[disk]]\npath = '{}'\nsize = '64MiB'\n", folder.0.join("disk").display());
    for (disk, url, words) in [
        ("", "s3://kv-cache", "remote is set and disk is not"),
        (&disk, "s3://kv cache", "remote.url is \"s3://kv cache\""),
        (&disk, "s3://kv-cache", if cfg!(feature = "remote") { "" } else { "built without the remote tier" }),
    ] {
        let config = folder.config(&format!("{disk}[remote]\nurl = '{url}'\n"));
        let checked = told(&mut check(&config));
        assert!(checked.0 == i32::from(!words.is_empty()) && checked.2.contains(words), "{checked:?}");
        if !words.is_empty() {
            assert_eq!(told(Command::new(NODE).arg("--config").arg(&config)).2, checked.2);
        }
    }
    let fine = folder.file("fine", "a-token-of-some-length\n");
    told(&mut check(&folder.config(&format!("[[tokens]]\nfile = '{}'\nall_tenants = true\n", fine.display()))));
}

#[test]
fn files_without_an_end_are_not_read() {
    let folder = Folder::new("endless");
    let pipe = folder.0.join("fifo");
    fifo(&pipe);
    let link = folder.0.join("zero");
    symlink("/dev/zero", &link).unwrap();
    for endless in [&pipe, &link, Path::new("/dev/zero")] {
        let (status, _, err) = told(&mut check(endless));
        assert!(status == 1 && err.contains("no regular file"), "{err}");
        let tokens = format!("[[tokens]]\nfile = '{}'\nall_tenants = true\n", endless.display());
        let (status, _, err) = told(&mut check(&folder.config(&tokens)));
        assert!(status == 1 && err.contains("no regular file"), "{err}");
        let mut ctl = Command::new(CTL);
        let (status, _, err) = told(ctl.args(["--node=a=127.0.0.1:1", "status", "--token-file"]).arg(endless));
        assert!(status == 2 && err.contains("no regular file"), "{err}");
    }
    let mut verify = Command::new(CTL);
    verify.args(["--node=a=127.0.0.1:1", "verify", "-"]).stdin(File::open("/dev/zero").unwrap());
    let (status, _, err) = told(&mut verify);
    assert!(status == 2 && err.contains("line 1 of standard input: it has more than 1024 bytes"), "{err}");
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let folder = Folder::new("full");
    let config = folder.config("");
    let mut locate = Command::new(CTL);
    locate.args(["--node=a=127.0.0.1:1", "locate"]).arg("00".repeat(32));
    for (command, status) in [(&mut check(&config), 1), (&mut locate, 2)] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        // A pipe that nobody reads.
        let (reader, gone) = std::io::pipe().unwrap();
        drop(reader);
        for out in [Stdio::from(full), Stdio::from(gone)] {
            let output = run(command.stdout(out));
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(status), "{err}");
            assert!(err.contains("cannot write to standard output") && !err.contains("panicked"), "{err}");
        }
    }
    // Nor can its error be told.
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (program, arguments, status) in [(NODE, ["check-config", "--name=/"], 1), (CTL, ["status", "--json"], 2)] {
        let mut child =
            Command::new(program).args(arguments).env_remove("GCACHE_NODES").stderr(full()).spawn().unwrap();
        ended(&mut child);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{program}");
    }
}

#[test]
fn every_command_that_asks_looks_at_names() {
    let folder = Folder::new("names");
    let mut node = Command::new(NODE).arg("--config").arg(folder.config("")).stderr(Stdio::null()).spawn().unwrap();
    let socket = folder.0.join("sock");
    let start = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < PATIENCE, "the node does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let object = format!("{}:0", "00".repeat(32));
    let ask = |name: &str, arguments: &[&str]| {
        let address = format!("--node={name}=unix:{}", socket.display());
        told(Command::new(CTL).arg("--deadline=20").arg(address).args(arguments.iter().map(OsStr::new)))
    };
    let commands: [&[&str]; 3] = [&["status"], &["bench", "--count=4", "--size=1KiB"], &["verify", &object]];
    let found = commands.map(|arguments| (ask("a", arguments), ask("zz", arguments)));
    node.kill().unwrap();
    node.wait().unwrap();
    for (arguments, (fine, wrong)) in commands.iter().zip(found) {
        assert!(
            fine.0 == i32::from(arguments[0] == "verify"),
            "{fine:?}: the object is missing, and nothing else is wrong"
        );
        let words = format!("{}{}", wrong.1, wrong.2);
        assert!(wrong.0 != 0 && words.contains("calls itself \"a\""), "{wrong:?}");
    }
}
