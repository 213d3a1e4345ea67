//! Membership: which nodes there are, and who says so.
//!
//! A [`Membership`] publishes [`View`]s: a list of nodes with its epoch, and the trouble that keeps it from being renewed.
//! Losing the source of the list freezes it and nothing else: the last good list stays, [`View::trouble`] says why, and
//! readers go on. [`Fixed`] takes a list, or a file that is read again when it changes. Lists are bounded in nodes and bytes
//! whatever the source says.

mod file;
mod fixed;
mod list;
mod text;

pub use file::{MAX_FILE_BYTES, parse};
pub use fixed::Fixed;
pub use list::{Address, MAX_ADDRESSES, Member, NodeList};
pub use text::read_text;

use std::sync::Arc;
use tokio::sync::watch;

/// What a source of membership says now.
#[derive(Debug, Clone)]
pub struct View {
    /// The last good list.
    pub list: Arc<NodeList>,
    /// Why the list may be old; `None` while its source answers and makes sense.
    pub trouble: Option<String>,
}

/// A source of node lists.
pub trait Membership: Send + Sync + 'static {
    /// The views of this source: the one of now, and a notice of each change. A list that changed has a higher epoch; a
    /// view may also change in its trouble alone. Views that nobody looked at are skipped.
    fn watch(&self) -> watch::Receiver<View>;
}
