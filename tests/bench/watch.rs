//! Observes the kernel's device events and file changes during a bench.
//!
//! One thread receives both and takes the time at once, independently of the bench.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{Socket, SocketAddr};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Netlink group of the kernel's own messages, before udevd has seen them.
const KERNEL: u32 = 1;

/// Observation and its time.
#[derive(Debug, Clone)]
pub struct Observation {
    pub at: Instant,
    pub what: What,
}

/// Kind of observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Device event, such as `add@/devices/virtual/block/zram1`.
    Device(String),
    /// A complete file was renamed into place.
    Placed(PathBuf),
    /// Any other change of a file: created, written, removed.
    Touched(PathBuf),
}

/// Thread that observes until this is dropped.
pub struct Watch {
    observed: Receiver<Observation>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to observe the kernel's events and the files directly in these folders.
    pub fn new(folders: &[PathBuf]) -> Result<Self> {
        let mut kernel = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        kernel.bind(&SocketAddr::new(0, KERNEL))?;
        kernel.set_non_blocking(true)?;
        let files = Inotify::init()?;
        let changes = WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::DELETE;
        let mut watched = HashMap::new();
        for folder in folders {
            let added = files.watches().add(folder, changes);
            let added = added.with_context(|| format!("cannot watch {}", folder.display()))?;
            watched.insert(added, folder.clone());
        }
        let (stop, stopped) = UnixStream::pair()?;
        let (sender, observed) = channel();
        let listener = Listener {
            kernel,
            files,
            watched,
            stopped,
            observed: sender,
        };
        Ok(Self {
            observed,
            stop: Some(stop),
            thread: Some(std::thread::spawn(move || listener.listen())),
        })
    }

    /// Returns the next observation that `fits`, within a minute; drops others.
    pub fn next(&self, what: &str, fits: impl Fn(&What) -> bool) -> Result<Observation> {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.observed.recv_timeout(left) {
                Ok(observed) if fits(&observed.what) => return Ok(observed),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("{what}: not within a minute"),
                Err(RecvTimeoutError::Disconnected) => bail!("{what}: the watch has ended"),
            }
        }
    }

    /// Returns all observations so far.
    pub fn all(&self) -> Vec<Observation> {
        self.observed.try_iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns true if a file with this extension was renamed into place.
pub fn is_placed(what: &What, extension: &str) -> bool {
    matches!(what, What::Placed(path) if path.extension().is_some_and(|has| has == extension))
}

/// Returns a folder and those below it.
pub fn folders(top: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![top.to_owned()];
    let mut index = 0;
    while let Some(folder) = found.get(index).cloned() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        index += 1;
    }
    Ok(found)
}

struct Listener {
    kernel: Socket,
    files: Inotify,
    watched: HashMap<WatchDescriptor, PathBuf>,
    stopped: UnixStream,
    observed: Sender<Observation>,
}

impl Listener {
    fn listen(mut self) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            if let Err(error) = self.wait() {
                eprintln!("the watch has ended: {error}");
                return;
            }
            let at = Instant::now();
            let mut observed = Vec::new();
            while let Ok((message, _)) = self.kernel.recv_from_full() {
                let text = String::from_utf8_lossy(&message);
                let first = text.split('\0').next().unwrap_or_default();
                observed.push(What::Device(first.to_owned()));
            }
            match self.files.read_events(&mut buffer) {
                Ok(events) => observed.extend(events.filter_map(|event| {
                    let path = self.watched.get(&event.wd)?.join(event.name?);
                    let is_placed = event.mask.contains(EventMask::MOVED_TO);
                    Some(if is_placed {
                        What::Placed(path)
                    } else {
                        What::Touched(path)
                    })
                })),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => eprintln!("files are not watched any more: {error}"),
            }
            for what in observed {
                if self.observed.send(Observation { at, what }).is_err() {
                    return;
                }
            }
            if self.is_stopped() {
                return;
            }
        }
    }

    fn wait(&self) -> nix::Result<()> {
        let mut listener = [
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.files.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.kernel.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut listener, PollTimeout::NONE).map(drop)
    }

    fn is_stopped(&self) -> bool {
        let mut end = [PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN)];
        poll(&mut end, PollTimeout::ZERO) != Ok(0)
    }
}
