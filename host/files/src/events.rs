//! Folder events of the kernel, through inotify.
//!
//! Opening and reading are not watched, so that the agent's own scan of a folder causes no event.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use crate::settle::FileEvent;
use leafhost_disk::atomic;

/// An event in a watched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A file of a folder changed.
    File {
        /// Path of the file, below the folder's path as given.
        path: PathBuf,
        /// Kind of the event; `None` if the file was removed.
        event: Option<FileEvent>,
    },
    /// A folder was created, removed or replaced.
    Folder,
    /// The kernel dropped events.
    Lost,
}

/// Watcher of folders, as far as the kernel permits.
pub struct FolderEvents {
    inotify: Option<(EventStream<[u8; 4096]>, Watches)>,
    folders: HashMap<WatchDescriptor, PathBuf>,
    watched: BTreeSet<PathBuf>,
    /// True if a path may lead to another folder than the watched one by now.
    stale: bool,
    /// Reason why some changes are not reported, if there is one.
    pub problem: Option<String>,
}

impl FolderEvents {
    /// Creates a watcher that watches nothing yet.
    pub fn new() -> Self {
        let inotify = Inotify::init().and_then(|inotify| {
            let watches = inotify.watches();
            Ok((inotify.into_event_stream([0; 4096])?, watches))
        });
        Self {
            problem: inotify.as_ref().err().map(problem),
            inotify: inotify.ok(),
            folders: HashMap::new(),
            watched: BTreeSet::new(),
            stale: false,
        }
    }

    /// Watches exactly these folders from now on. Returns true if a watch is new, so that earlier changes were not reported.
    pub fn watch(&mut self, wanted: BTreeSet<PathBuf>) -> bool {
        let Some((_, watches)) = self.inotify.as_mut() else {
            return false;
        };
        if self.watched == wanted && !self.stale {
            return false;
        }
        let mask = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        self.problem = None;
        let mut folders = HashMap::new();
        for folder in &wanted {
            // The kernel returns the same descriptor for the same folder, and another one for a new folder of that name.
            match watches.add(folder, mask) {
                Ok(descriptor) => drop(folders.insert(descriptor, folder.clone())),
                Err(error) if is_missing(&error) => {}
                Err(error) => self.problem = Some(problem(&error)),
            }
        }
        for (descriptor, _) in self.folders.drain() {
            if !folders.contains_key(&descriptor) {
                // Fails if the folder is gone, because its watch went with it.
                drop(watches.remove(descriptor));
            }
        }
        self.folders = folders;
        self.watched = wanted;
        self.stale = false;
        true
    }

    /// Records that a path may lead to another folder than before.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> Event {
        let Some((stream, _)) = &mut self.inotify else {
            return std::future::pending().await;
        };
        loop {
            let event = match stream.next().await {
                Some(Ok(event)) => event,
                Some(Err(_)) => return Event::Lost,
                // No more events can arrive; only the regular scans continue.
                None => std::future::pending().await,
            };
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return Event::Lost;
            }
            let of_folder = EventMask::DELETE_SELF
                | EventMask::MOVE_SELF
                | EventMask::IGNORED
                | EventMask::ISDIR;
            let Some(folder) = self.folders.get(&event.wd) else {
                continue;
            };
            return match event.name {
                Some(name) if !event.mask.intersects(of_folder) => Event::File {
                    path: folder.join::<OsString>(name),
                    event: file_event(event.mask),
                },
                _ => Event::Folder,
            };
        }
    }
}

/// Returns true if the error means that there is no folder at the path.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the nearest existing folder above `path`, whose events report that `path` or a part of it is created. Blocks.
pub fn parent(path: &Path) -> PathBuf {
    let mut parents = path.ancestors().skip(1);
    let nearest = parents.find(|parent| parent.is_dir());
    let none = if path.is_absolute() { "/" } else { "." };
    nearest.unwrap_or(Path::new(none)).to_owned()
}

fn file_event(mask: EventMask) -> Option<FileEvent> {
    if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
        Some(FileEvent::Closed)
    } else if mask.contains(EventMask::MODIFY) {
        Some(FileEvent::Written)
    } else if mask.contains(EventMask::CREATE) {
        Some(FileEvent::Created)
    } else {
        None
    }
}

fn problem(error: &io::Error) -> String {
    // inotify reports exhausted watches of a user as a full disk.
    let used_up = error.kind() == ErrorKind::StorageFull || atomic::is_out_of_files(error);
    let remedy = if used_up {
        "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches"
    } else {
        "make the folder readable for the agent"
    };
    format!("cannot be watched, so the agent sees changes only every 10 seconds: {error}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_limits_are_to_be_raised_only_where_they_are_reached() {
        for (number, limits) in [(24, true), (23, true), (28, true), (13, false), (40, false)] {
            let problem = problem(&io::Error::from_raw_os_error(number));
            assert_eq!(problem.contains("raise fs.inotify"), limits, "{problem}");
            assert_eq!(problem.contains("make the folder readable"), !limits);
        }
    }
}
