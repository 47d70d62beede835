//! A file that turns the devices on and off, as with Akri's `debugEcho` handler: lets users try out the effect of devices that go and
//! return.

use std::io;
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use inotify::WatchMask;
use leafhost_core::tasks::Tasks;
use leafhost_core::wait;
use tokio::sync::watch;

/// Content of the file while there are no devices.
const OFFLINE: &str = "OFFLINE";
/// Events of a file that is written, removed or renamed.
const CHANGES: WatchMask = WatchMask::CLOSE_WRITE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE);

/// Follows the file; the returned value is false while the file says `OFFLINE`.
///
/// # Errors
/// Returns an error if the folder of the file cannot be watched.
pub fn follow(file: PathBuf, tasks: &mut Tasks) -> io::Result<watch::Receiver<bool>> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut events = leafhost_uds::events(folder, CHANGES)?;
    let (sender, is_available) = watch::channel(!is_offline(&file));
    tasks.add_loop("availability file", async move {
        while events.next().await.is_some() {
            wait::publish(&sender, !is_offline(&file));
        }
    });
    Ok(is_available)
}

/// Returns true if the file says `OFFLINE`; a file that cannot be read does not.
fn is_offline(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.trim() == OFFLINE)
}
