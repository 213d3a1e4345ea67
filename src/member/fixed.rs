//! Membership without a service: a list given once, or a file that is read again when it changes.

use super::file::{parse_file, read};
use super::list::{Member, NodeList};
use super::{Membership, View};
use crate::error::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A fixed list. Dropped, it stops looking at its file.
#[derive(Debug)]
pub struct Fixed {
    views: watch::Sender<View>,
    task: Option<JoinHandle<()>>,
}

impl Fixed {
    /// A list that never changes.
    ///
    /// # Errors
    /// What [`NodeList::new`] refuses.
    pub fn new(members: Vec<Member>) -> Result<Fixed> {
        let list = Arc::new(NodeList::new(1, members)?);
        Ok(Fixed { views: watch::Sender::new(View { list, trouble: None }), task: None })
    }

    /// The list in the file at `path`, looked at again every `interval` by a task of the runtime that this is called in.
    /// A file that is missing or broken later keeps the last good list and says so in [`View::trouble`].
    ///
    /// # Errors
    /// What cannot be read now: there is no last good list yet.
    pub fn file(path: &Path, interval: Duration) -> Result<Fixed> {
        let mut source = Source::open(path)?;
        let views = watch::Sender::new(source.view());
        let sender = views.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                // The file may be on a slow disk, so other tasks must not wait for it.
                let looked = tokio::task::spawn_blocking(move || (source.look(), source)).await;
                let Ok((changed, back)) = looked else { return };
                source = back;
                if changed {
                    sender.send_replace(source.view());
                }
            }
        });
        Ok(Fixed { views, task: Some(task) })
    }
}

impl Membership for Fixed {
    fn watch(&self) -> watch::Receiver<View> {
        self.views.subscribe()
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// A file and what was last read from it.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    text: String,
    view: View,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let text = read(path)?;
        let list = Arc::new(parse_file(path, &text, 1)?);
        Ok(Source { path: path.to_path_buf(), text, view: View { list, trouble: None } })
    }

    fn view(&self) -> View {
        self.view.clone()
    }

    /// Reads the file again; true if the view is another one now. Texts are compared, not times: a file can be replaced
    /// within one tick of its clock, and reading a few kilobytes costs nothing.
    fn look(&mut self) -> bool {
        let epoch = self.view.list.epoch() + 1;
        let read = match read(&self.path) {
            Ok(text) if text == self.text => Ok(None),
            Ok(text) => parse_file(&self.path, &text, epoch).map(|list| Some((text, list))),
            Err(error) => Err(error),
        };
        match read {
            Ok(None) => self.view.trouble.take().is_some(),
            Ok(Some((text, list))) => {
                self.text = text;
                let recovered = self.view.trouble.take().is_some();
                let differs = list.members() != self.view.list.members();
                if differs {
                    self.view.list = Arc::new(list);
                }
                differs || recovered
            }
            Err(error) => {
                let words = format!("{error}; the list of epoch {} stays", epoch - 1);
                let changed = self.view.trouble.as_ref() != Some(&words);
                self.view.trouble = Some(words);
                changed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::MAX_FILE_BYTES;

    const ONE: &str = "[[node]]\nname = \"a\"\naddresses = [\"localhost:1\"]\n";
    const TWO: &str = "[[node]]\nname = \"a\"\naddresses = [\"localhost:1\"]\n[[node]]\nname = \"b\"\nweight = 3\naddresses = [\"localhost:2\", \"unix:/x\"]\n";

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mimo-member-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_broken_file_keeps_the_last_good_list_and_says_so() {
        let folder = folder("broken");
        let path = folder.join("nodes.toml");
        for broken in ["", "[[node]]\nname = ", "[[node]]\nname = \"a\"\naddresses = [\"x\"]"] {
            std::fs::write(&path, broken).unwrap();
            let error = Source::open(&path).unwrap_err().to_string();
            assert_eq!(error.matches("nodes.toml: ").count(), 1, "{error}");
        }
        std::fs::write(&path, ONE).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!((source.view.list.epoch(), source.look()), (1, false));
        let unknown = "[[node]]\nname = \"a\"\ncolour = 1\naddresses = [\"x:1\"]";
        for broken in ["", "[[node]]\nname = ", unknown, "[[node]]\nname = \"a\"\naddresses = [\"x\"]"] {
            std::fs::write(&path, broken).unwrap();
            assert!(source.look(), "{broken}");
            assert!(!source.look(), "told once");
            let trouble = source.view.trouble.as_ref().unwrap();
            assert!(trouble.contains("the list of epoch 1 stays"));
            assert_eq!(trouble.matches("nodes.toml: ").count(), 1, "{trouble}");
            assert_eq!((source.view.list.epoch(), source.view.list.members().len()), (1, 1));
        }
        std::fs::write(&path, vec![b'#'; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(source.look() && source.view.trouble.as_ref().unwrap().contains("longer than"));
        std::fs::write(&path, [b'#', 0xff]).unwrap();
        assert!(source.look() && source.view.trouble.as_ref().unwrap().contains("not UTF-8 at byte 1"));
        std::fs::remove_file(&path).unwrap();
        assert!(source.look());
        // What never ends, or has no size, is not waited for.
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(source.look() && source.view.trouble.as_ref().unwrap().contains("no regular file"));
        std::fs::remove_file(&path).unwrap();
        // Back as it was: the trouble ends, the epoch stays.
        std::fs::write(&path, ONE).unwrap();
        assert!(source.look() && source.view.trouble.is_none() && source.view.list.epoch() == 1);
        std::fs::write(&path, TWO).unwrap();
        assert!(source.look());
        assert_eq!((source.view.list.epoch(), source.view.list.members()[1].weight), (2, 3));
        // Other words for the same nodes are no change.
        std::fs::write(&path, format!("# two\n{TWO}")).unwrap();
        assert!(!source.look() && source.view.list.epoch() == 2);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_file_is_told_to_watchers() {
        let folder = folder("watch");
        let path = folder.join("nodes.toml");
        assert!(Fixed::file(&path, Duration::from_secs(1)).is_err());
        std::fs::write(&path, ONE).unwrap();
        let fixed = Fixed::file(&path, Duration::from_secs(1)).unwrap();
        let mut views = fixed.watch();
        std::fs::write(&path, TWO).unwrap();
        views.changed().await.unwrap();
        assert_eq!(views.borrow_and_update().list.epoch(), 2);
        drop(fixed);
        // The task ends with its owner.
        assert!(views.changed().await.is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
