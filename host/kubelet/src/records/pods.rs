//! The folders of the pods, `<kubelet's folder>/pods/<uid>`: a folder goes when the kubelet has stopped a pod's containers
//! and let go of its volumes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

#[cfg(test)]
mod tests;

/// How often the folder is watched anew, for what inotify does not report: it was missing, or something was mounted over it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// Whether the kubelet still has a folder for the pod. `None` where that cannot be told: the folder of all pods cannot be
/// read, or `uid` is not 1 to 64 letters, digits and `-`. Blocks.
pub fn pod_exists(kubelet_root: &Path, uid: &str) -> Option<bool> {
    if !is_uid(uid) {
        return None;
    }
    let pods = kubelet_root.join("pods");
    let identity = || {
        let metadata = fs::metadata(&pods).ok().filter(fs::Metadata::is_dir)?;
        Some((metadata.dev(), metadata.ino()))
    };
    let before = identity()?;
    match fs::symlink_metadata(pods.join(uid)) {
        Ok(_) => Some(true),
        // Absence counts only if the folder of all pods was the same before and after.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (identity()? == before).then_some(false)
        }
        Err(_) => None,
    }
}

fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Watches the folder of the pods.
#[derive(Debug)]
pub struct PodsFolder {
    path: PathBuf,
    changes: watch::Sender<u64>,
}

impl PodsFolder {
    /// Of the kubelet whose folder is `kubelet_root`, usually `/var/lib/kubelet`. It need not be there yet.
    pub fn new(kubelet_root: &Path) -> Self {
        Self {
            path: kubelet_root.join("pods"),
            changes: watch::Sender::new(0),
        }
    }

    /// A number that grows when pods' folders come or go, and when that may have happened unseen: the folder of all pods
    /// comes, goes, or cannot be watched. Several at once may count as one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Watches until `stop`. Never fails: what cannot be watched is tried again every 30 seconds.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch()).await;
    }

    async fn watch(&self) {
        loop {
            match Watcher::new() {
                Ok(mut watcher) => self.follow(&mut watcher).await,
                Err(error) => warn!(
                    %error,
                    "cannot watch the pods' folders: raise fs.inotify.max_user_instances; the folder is read every 30 s until then"
                ),
            }
            // Something may have happened unseen.
            self.count();
            tokio::time::sleep(BACKSTOP).await;
        }
    }

    /// Counts changes until inotify fails.
    async fn follow(&self, watcher: &mut Watcher) {
        loop {
            if watcher.watch(&self.path) {
                self.count();
            }
            let again = Instant::now() + BACKSTOP;
            loop {
                tokio::select! {
                    () = sleep_until(again) => break,
                    change = watcher.next() => match change {
                        Change::Pod => self.count(),
                        Change::Moved => {
                            self.count();
                            break;
                        }
                        Change::Nothing => {}
                        Change::End => return,
                    },
                }
            }
        }
    }

    fn count(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

enum Change {
    /// A pod's folder came or went, or events were lost.
    Pod,
    /// The folder of all pods is not the one that was watched.
    Moved,
    Nothing,
    /// No event will ever come.
    End,
}

struct Watcher {
    stream: EventStream<[u8; 1024]>,
    watches: Watches,
    watched: Option<WatchDescriptor>,
}

impl Watcher {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self {
            stream: inotify.into_event_stream([0; 1024])?,
            watches,
            watched: None,
        })
    }

    /// Watches what is at `path` now. Returns whether that is another folder than before, or none where one was.
    fn watch(&mut self, path: &Path) -> bool {
        let mask = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        // The same folder gives the same descriptor again.
        let now = match self.watches.add(path, mask) {
            Ok(now) => Some(now),
            Err(error) => {
                debug!(%error, path = %path.display(), "cannot watch the pods' folders");
                None
            }
        };
        if now == self.watched {
            return false;
        }
        if let Some(before) = std::mem::replace(&mut self.watched, now) {
            // The kernel has dropped it already where the folder is gone.
            drop(self.watches.remove(before));
        }
        true
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Change {
        let event = match self.stream.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                warn!(%error, "cannot read the events of the pods' folders");
                return Change::End;
            }
            None => return Change::End,
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Change::Pod;
        }
        if self.watched.as_ref() != Some(&event.wd) {
            return Change::Nothing;
        }
        let of_all =
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
        match event.name {
            _ if event.mask.intersects(of_all) => Change::Moved,
            Some(name)
                if event.mask.contains(EventMask::ISDIR) && name.to_str().is_some_and(is_uid) =>
            {
                Change::Pod
            }
            _ => Change::Nothing,
        }
    }
}
