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

/// How often the folder is looked for where the kernel cannot tell: it is missing, or something was mounted over it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// Whether the kubelet still has a folder for the pod. `None` where that cannot be told: the folder of all pods cannot be
/// read, or `uid` is not 1 to 64 letters, digits and `-`. Blocks for three looks.
pub fn pod_exists(kubelet_root: &Path, uid: &str) -> Option<bool> {
    if !is_uid(uid) {
        return None;
    }
    let pods = kubelet_root.join("pods");
    let place = || {
        let metadata = fs::metadata(&pods).ok().filter(fs::Metadata::is_dir)?;
        Some((metadata.dev(), metadata.ino()))
    };
    let before = place()?;
    match fs::symlink_metadata(pods.join(uid)) {
        Ok(_) => Some(true),
        // Absence is believed only if it is of the folder that was there before and is there still.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (place()? == before).then_some(false)
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
            match Ear::new() {
                Ok(mut ear) => self.listen(&mut ear).await,
                Err(error) => warn!(
                    %error,
                    "cannot watch the pods' folders: raise fs.inotify.max_user_instances; looking every 30 s until then"
                ),
            }
            // Nobody listens: something may have happened.
            self.count();
            tokio::time::sleep(BACKSTOP).await;
        }
    }

    /// Until the ear is deaf.
    async fn listen(&self, ear: &mut Ear) {
        loop {
            if ear.turn_to(&self.path) {
                self.count();
            }
            let again = Instant::now() + BACKSTOP;
            loop {
                tokio::select! {
                    () = sleep_until(again) => break,
                    heard = ear.next() => match heard {
                        Heard::Pod => self.count(),
                        Heard::Moved => {
                            self.count();
                            break;
                        }
                        Heard::Nothing => {}
                        Heard::End => return,
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

enum Heard {
    /// A pod's folder came or went, or events were lost.
    Pod,
    /// The folder of all pods is not the one that was watched.
    Moved,
    Nothing,
    /// No event will ever come.
    End,
}

struct Ear {
    stream: EventStream<[u8; 1024]>,
    watches: Watches,
    watched: Option<WatchDescriptor>,
}

impl Ear {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self {
            stream: inotify.into_event_stream([0; 1024])?,
            watches,
            watched: None,
        })
    }

    /// Watches what is at `path` now; whether that is another folder than before, or none where one was.
    fn turn_to(&mut self, path: &Path) -> bool {
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
    async fn next(&mut self) -> Heard {
        let event = match self.stream.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                warn!(%error, "cannot hear of the pods' folders");
                return Heard::End;
            }
            None => return Heard::End,
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Heard::Pod;
        }
        if self.watched.as_ref() != Some(&event.wd) {
            return Heard::Nothing;
        }
        let of_all =
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
        match event.name {
            _ if event.mask.intersects(of_all) => Heard::Moved,
            Some(name)
                if event.mask.contains(EventMask::ISDIR) && name.to_str().is_some_and(is_uid) =>
            {
                Heard::Pod
            }
            _ => Heard::Nothing,
        }
    }
}
