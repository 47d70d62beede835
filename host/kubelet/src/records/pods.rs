//! Watches the folders of pods, `<kubelet's folder>/pods/<uid>`: the kubelet removes a folder when it has stopped the pod's containers and
//! released its volumes. The volumes go first, and the folder up to two seconds later.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
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

/// Interval at which the watch is renewed, for changes that inotify does not report: the folder was missing, or something was mounted over
/// it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// Name of the folder of a pod's volumes; it has a folder for each kind of volume.
const VOLUMES: &str = "volumes";
/// Maximum number of watched folders below that of all pods.
const MOST: usize = 4096;

/// Returns true if the kubelet still has a folder for the pod. `None` if that is unknown: the folder of all pods cannot be read, or `uid`
/// is not 1 to 64 letters, digits and `-`. Blocks.
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

/// Returns true if a pod has a volume; the removal of its volumes shows that its containers have ended. Blocks.
pub fn pod_has_volumes(kubelet_root: &Path, uid: &str) -> bool {
    let volumes = kubelet_root.join("pods").join(uid).join(VOLUMES);
    let kinds = folders(&volumes).into_iter();
    is_uid(uid)
        && kinds
            .map(|kind| volumes.join(kind))
            .any(|kind| !folders(&kind).is_empty())
}

fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Watcher of the folder of all pods.
#[derive(Debug)]
pub struct PodsFolder {
    path: PathBuf,
    changes: watch::Sender<u64>,
}

impl PodsFolder {
    /// Creates the watcher for the kubelet whose folder is `kubelet_root`, usually `/var/lib/kubelet`. The folder need not exist yet.
    pub fn new(kubelet_root: &Path) -> Self {
        Self {
            path: kubelet_root.join("pods"),
            changes: watch::Sender::new(0),
        }
    }

    /// Returns a counter that grows when folders of pods are added or removed or lose a volume, and when that may have gone unnoticed: the
    /// folder of all pods is added, removed, or cannot be watched. Several changes at once may count as one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Watches until `stop`. Never fails: folders that cannot be watched are tried again every 30 seconds.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch()).await;
    }

    async fn watch(&self) {
        loop {
            match Watcher::new(&self.path) {
                Ok(mut watcher) => self.follow(&mut watcher).await,
                Err(error) => warn!(
                    %error,
                    "cannot watch the pods' folders; raise fs.inotify.max_user_instances; until then the folder is read every 30 s"
                ),
            }
            // Changes may have gone unnoticed.
            self.count();
            tokio::time::sleep(BACKSTOP).await;
        }
    }

    /// Counts changes until inotify fails.
    async fn follow(&self, watcher: &mut Watcher) {
        loop {
            if watcher.watch() {
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
    /// A pod's folder was added or removed, or events were lost.
    Pod,
    /// The folder of all pods is no longer the watched one.
    Moved,
    Nothing,
    /// No further event will come.
    End,
}

struct Watcher {
    stream: EventStream<[u8; 1024]>,
    watches: Watches,
    watched: Option<WatchDescriptor>,
    /// Folder of all pods.
    pods: PathBuf,
    /// Folders below that of all pods.
    below: HashMap<WatchDescriptor, (PathBuf, FolderLevel)>,
}

/// Level of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FolderLevel {
    /// Folder of a pod.
    Pod,
    /// Folder of a pod's volumes.
    Volumes,
    /// Folder of volumes of one kind.
    Kind,
}

impl FolderLevel {
    /// Returns the level of the subfolder `name`, if it is watched.
    fn below(self, name: &OsStr) -> Option<Self> {
        match self {
            Self::Pod => (name == VOLUMES).then_some(Self::Volumes),
            Self::Volumes => Some(Self::Kind),
            Self::Kind => None,
        }
    }
}

impl Watcher {
    fn new(pods: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self {
            stream: inotify.into_event_stream([0; 1024])?,
            watches,
            watched: None,
            pods: pods.to_owned(),
            below: HashMap::new(),
        })
    }

    /// Watches the folder of all pods. Returns true if it is another folder than before, or if there is none and there was one.
    fn watch(&mut self) -> bool {
        let mask = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        // Watching the same folder again returns the same descriptor.
        let now = self.watches.add(&self.pods, mask).inspect_err(
            |error| debug!(%error, path = %self.pods.display(), "cannot watch the pods' folders"),
        );
        let now = now.ok();
        if now == self.watched {
            return false;
        }
        if let Some(before) = std::mem::replace(&mut self.watched, now) {
            // If the folder is gone, the kernel has dropped it already.
            drop(self.watches.remove(before));
        }
        for (before, _) in self.below.drain() {
            drop(self.watches.remove(before));
        }
        for name in folders(&self.pods) {
            if name.to_str().is_some_and(is_uid) {
                self.enter(self.pods.join(name), FolderLevel::Pod);
            }
        }
        true
    }

    /// Watches a folder below that of all pods, with its subfolders. A folder that cannot be watched is skipped: the removal of the pod's
    /// own folder is noticed later.
    fn enter(&mut self, path: PathBuf, level: FolderLevel) {
        let mask = WatchMask::ONLYDIR
            | WatchMask::DONT_FOLLOW
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO;
        if self.below.len() >= MOST {
            return;
        }
        let Ok(watch) = self.watches.add(&path, mask) else {
            return;
        };
        for name in folders(&path) {
            if let Some(level) = level.below(&name) {
                self.enter(path.join(name), level);
            }
        }
        self.below.insert(watch, (path, level));
    }

    /// Returns the next change. Cancel-safe.
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
        let (mask, name) = (event.mask, event.name);
        let goes = mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM);
        let folder = name.filter(|_| mask.contains(EventMask::ISDIR));
        if let Some((path, level)) = self.below.get(&event.wd) {
            if mask.contains(EventMask::IGNORED) {
                self.below.remove(&event.wd);
            } else if goes && folder.is_some() && *level == FolderLevel::Kind {
                return Change::Pod;
            } else if !goes
                && let Some(name) = folder
                && let Some(level) = level.below(&name)
            {
                let path = path.join(name);
                self.enter(path, level);
            }
            return Change::Nothing;
        }
        if self.watched.as_ref() != Some(&event.wd) {
            return Change::Nothing;
        }
        let of_all =
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
        if mask.intersects(of_all) {
            return Change::Moved;
        }
        let Some(uid) = folder.filter(|name| name.to_str().is_some_and(is_uid)) else {
            return Change::Nothing;
        };
        if !goes {
            self.enter(self.pods.join(uid), FolderLevel::Pod);
        }
        Change::Pod
    }
}

/// Returns the names of the subfolders.
fn folders(path: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.file_name()).collect()
}
