//! Hears what happens in folders, from the kernel.
//!
//! Opening and reading are not listened to, so that the agent's own look through a folder wakes nobody.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use crate::settle::Heard;

/// Something that was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sound {
    /// A file in a folder.
    File {
        /// The folder, as it was named.
        folder: PathBuf,
        /// The file's name.
        name: OsString,
        /// What happened; nothing where the file left.
        heard: Option<Heard>,
    },
    /// A folder itself came, went, or was replaced.
    Folder,
    /// Events were lost.
    Lost,
}

/// One ear for many folders.
pub struct Listener {
    stream: EventStream<[u8; 4096]>,
    watches: Watches,
    folders: HashMap<WatchDescriptor, PathBuf>,
}

impl Listener {
    /// Opens it. Fails where the user's instances (`fs.inotify.max_user_instances`) are used up.
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self {
            stream: inotify.into_event_stream([0; 4096])?,
            watches,
            folders: HashMap::new(),
        })
    }

    /// Listens to exactly these folders from now on; those that are there already stay. Returns the first failure other
    /// than that a folder is missing.
    pub fn listen(&mut self, wanted: &BTreeSet<PathBuf>) -> io::Result<()> {
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
        let mut now = HashMap::new();
        let mut result = Ok(());
        for folder in wanted {
            // The same folder gives the same descriptor again; a new one under the old name another.
            match self.watches.add(folder, mask) {
                Ok(descriptor) => drop(now.insert(descriptor, folder.clone())),
                Err(error) if is_missing(&error) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        for (descriptor, _) in self.folders.drain() {
            if !now.contains_key(&descriptor) {
                // The kernel has dropped it already where the folder is gone.
                drop(self.watches.remove(descriptor));
            }
        }
        self.folders = now;
        result
    }

    /// Waits for the next sound. Cancel-safe.
    pub async fn next(&mut self) -> Sound {
        loop {
            let event = match self.stream.next().await {
                Some(Ok(event)) => event,
                // Nothing more can be heard: the backstop goes on alone.
                None => std::future::pending().await,
                Some(Err(_)) => return Sound::Lost,
            };
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return Sound::Lost;
            }
            let of_folder = EventMask::DELETE_SELF
                | EventMask::MOVE_SELF
                | EventMask::IGNORED
                | EventMask::ISDIR;
            let Some(folder) = self.folders.get(&event.wd) else {
                continue;
            };
            match event.name {
                Some(name) if !event.mask.intersects(of_folder) => {
                    return Sound::File {
                        folder: folder.clone(),
                        name,
                        heard: heard(event.mask),
                    };
                }
                _ => return Sound::Folder,
            }
        }
    }
}

/// Whether there is no folder at a path.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The nearest folder above `path`: where it would be heard coming.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("/"),
    }
}

fn heard(mask: EventMask) -> Option<Heard> {
    if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
        Some(Heard::Closed)
    } else if mask.contains(EventMask::MODIFY) {
        Some(Heard::Written)
    } else if mask.contains(EventMask::CREATE) {
        Some(Heard::Created)
    } else {
        None
    }
}
