//! Watches a folder for names that come and go.

use std::io;
use std::path::Path;

use inotify::{EventStream, Inotify, WatchMask};

/// The most bytes of events that are read at once.
const EVENTS: usize = 1024;

/// What happens in a folder.
pub type Events = EventStream<[u8; EVENTS]>;

/// Events of a folder when a name comes or goes.
pub fn names_of(folder: &Path) -> io::Result<Events> {
    events(
        folder,
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE,
    )
}

/// The events of a folder.
pub fn events(folder: &Path, kinds: WatchMask) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    inotify.watches().add(folder, kinds)?;
    inotify.into_event_stream([0; EVENTS])
}
