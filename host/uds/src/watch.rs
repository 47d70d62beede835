//! Watches a folder for names that appear and disappear.

use std::io;
use std::path::Path;

use inotify::{EventStream, Inotify, WatchMask};

/// Size of the event buffer, in bytes.
const EVENTS: usize = 1024;

/// Stream of events of a folder.
pub type Events = EventStream<[u8; EVENTS]>;

/// Watches a folder for names that are created, deleted or moved.
pub fn names_of(folder: &Path) -> io::Result<Events> {
    events(
        folder,
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE,
    )
}

/// Watches a folder for the given kinds of events.
pub fn events(folder: &Path, kinds: WatchMask) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    inotify.watches().add(folder, kinds)?;
    inotify.into_event_stream([0; EVENTS])
}
