//! What the store has from before: its names are listed once after the start, beside everything else, so that an `exists`
//! reports them again. A listing that fails goes on later from where it was; one that is forbidden ends.

use super::Name;
use super::bucket::Refused;
use super::recent::Known;
use super::tier::{Remote, lock};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Pause before a listing that failed goes on.
const PAUSE: Duration = Duration::from_secs(30);

impl Remote {
    pub(super) async fn list(self: Arc<Self>) {
        let mut after = String::new();
        while let Err(refused) = self.list_on(&mut after).await {
            if !refused.unsure {
                let why = refused.sentence;
                tracing::warn!(why, "objects from before are not reported, since the object store does not list them");
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// To the end, or to the name up to which it came.
    async fn list_on(&self, after: &mut String) -> Result<(), Refused> {
        let mut names = self.bucket.list(self.names.start(), after);
        let late = |_| Refused::late(self.config.timeout.as_millis());
        while let Some(name) = timeout(self.config.timeout, names.next()).await.map_err(late)? {
            let name = name?;
            if let Some(name) = self.names.parse(&name) {
                self.listed(&name);
            }
            *after = name;
            if lock(&self.record).is_full() {
                tracing::info!("objects from before are reported as far as there is room (remote.keys)");
                break;
            }
        }
        Ok(())
    }

    /// A listing is older than what was asked since.
    fn listed(&self, name: &Name) {
        let is_deleted = lock(&self.busy).deletes.contains_key(name)
            || lock(&self.recent).get(name, Instant::now()) == Some(Known::Absent);
        if !is_deleted {
            lock(&self.record).add(name);
        }
    }
}
