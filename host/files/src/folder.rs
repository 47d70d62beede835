//! A watched folder: its files once they have settled, as snapshots.
//!
//! A snapshot has only complete files with the wanted names. Does not know their content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use leafhost_core::handler::Digest;
use leafhost_core::ports::SourceProblem;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts::{FILE_GONE, FILE_SETTLE, FOLDER_BACKSTOP};
use leafhost_core::wait::publish;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::events::{self, Event, FolderEvents};
use crate::settle::{SCAN_SPACING, Settled, Settling, Stamp};

mod scan;
pub mod stray;
pub use scan::{Kind, Rules, fetch};
use scan::{Read, Scan};
use stray::Stray;

/// Maximum number of unreadable files that are reported.
const MAX_NAMED: usize = 20;

/// Content of a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// Bytes of a file whose kind is held.
    Bytes(Arc<[u8]>),
    /// Digest of the bytes of a file whose kind is not held.
    Digest(Digest),
    /// The file cannot be used, with the reason.
    Refused(String),
    /// The file existed when the folder was first seen and has not settled since.
    Pending,
}

/// Omits the bytes, which may be secret.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Digest(digest) => write!(f, "Digest({})", digest.short()),
            Self::Refused(why) => write!(f, "Refused({why:?})"),
            Self::Pending => f.write_str("Pending"),
        }
    }
}

/// Files of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// True once the folder has been read. The files of a folder that cannot be read stay as last seen.
    pub complete: bool,
    /// True if the folder exists.
    pub exists: bool,
    /// Files by name; in a nested folder by `SUBFOLDER/NAME`.
    pub files: BTreeMap<String, Content>,
    /// Problems of the folder as a whole.
    pub problems: Vec<String>,
    /// Files that an operator should know about.
    pub stray: Stray,
}

impl Snapshot {
    /// Reads the folder as it is now, even if its files have not settled. Blocks.
    pub fn now(path: &Path, rules: &Rules) -> Self {
        let mut scan = Scan::of(path, rules);
        scan.limit(rules);
        let content = |(name, stamp): (&String, &Stamp)| {
            let read = scan::read(path, name, rules.kind(name)?, *stamp);
            Some((name.clone(), read.content()?))
        };
        Self {
            complete: true,
            exists: scan.exists,
            files: scan.found.iter().filter_map(content).collect(),
            problems: scan.problems,
            stray: scan.stray,
        }
    }

    /// Returns the problems of the folder as a whole, for the folder at `path`.
    pub fn problems_of(&self, path: impl AsRef<Path>) -> Vec<SourceProblem> {
        let folder = path.as_ref().display().to_string();
        let problems = self.problems.iter().cloned();
        problems
            .map(|message| SourceProblem::new(folder.clone(), message))
            .collect()
    }

    /// Returns the problem of a missing folder in which `what` is expected.
    pub fn missing(&self, path: &Path, what: &str) -> Option<SourceProblem> {
        let message = format!(
            "is missing, or is not a folder; create it and put {what} there, or leave it empty; until then accepted {what} stay in use"
        );
        (!self.exists).then(|| SourceProblem::new(path.display().to_string(), message))
    }

    /// Marks the files beyond the limit as pending: they exist, but are not read. `before` has those of the last scan.
    fn set_beyond(&mut self, before: &BTreeSet<String>, scan: &Scan) {
        for name in before.difference(&scan.beyond) {
            // A file that is read from now on has no content until it has settled.
            if !scan.found.contains_key(name) {
                self.files.remove(name);
            }
        }
        for name in &scan.beyond {
            self.files.insert(name.clone(), Content::Pending);
        }
    }
}

/// Returns the notes about files of a folder that are not read. Reads no file. Blocks.
pub fn notes(path: &Path, rules: &Rules) -> Vec<SourceProblem> {
    Scan::of(path, rules).stray.notes(path)
}

/// Watches a folder, which need not exist, with a task named `name`. Without events the folder is scanned every ten seconds.
pub fn watch(
    path: impl Into<PathBuf>,
    rules: Rules,
    name: &'static str,
    tasks: &mut Tasks,
) -> watch::Receiver<Arc<Snapshot>> {
    let path = path.into();
    let (sender, snapshots) = watch::channel(Arc::default());
    tasks.add_loop(name, Folder { path, rules }.watch(sender));
    snapshots
}

/// A folder and the rules for its files.
struct Folder {
    path: PathBuf,
    rules: Rules,
}

impl Folder {
    async fn watch(self, published: watch::Sender<Arc<Snapshot>>) {
        let mut events = FolderEvents::new();
        let mut settling = Settling::default();
        let mut snapshot = Snapshot::default();
        // Before this time the scan may not have found all files.
        let mut complete_at = None;
        // True once the files of the first complete scan are in the snapshot.
        let mut begun = false;
        let mut existed = false;
        let mut device = None;
        let mut unreadable = BTreeMap::new();
        let mut beyond = BTreeSet::new();
        loop {
            let mut scan = self.scan(&mut events).await;
            for folder in &scan.unreadable {
                scan.found.extend(settling.seen_in(folder));
            }
            if !snapshot.files.is_empty() && scan.device.is_some() && scan.device != device {
                scan.refuse_if_empty();
            }
            scan.limit(&self.rules);
            let now = Instant::now();
            if scan.readable {
                device = scan.device.or(device);
                settling.scanned(&scan.found, now);
            }
            // The changes of these events may be newer than the scan, which then does not show them.
            let mut scan_again = false;
            while let Some(event) = events.next().now_or_never() {
                scan_again |= self.take_event(event, &mut settling, &mut events, now);
            }
            if scan.readable {
                let settled = settling.take(now);
                unreadable.retain(|name, _| scan.found.contains_key(name));
                self.read(
                    settled,
                    &scan,
                    &mut settling,
                    &mut snapshot,
                    &mut unreadable,
                )
                .await;
                snapshot.set_beyond(&beyond, &scan);
                beyond = scan.beyond;
            }
            if scan.exists && !snapshot.exists && snapshot.complete {
                // If the folder has come back, its files may not be there yet.
                let wait = if existed { FILE_GONE } else { FILE_SETTLE };
                complete_at = Some(now + wait);
                begun = false;
            }
            existed |= scan.exists;
            snapshot.exists = scan.exists;
            snapshot.problems = scan.problems;
            snapshot.stray = scan.stray;
            snapshot.problems.extend(events.problem.clone());
            let cannot = |(name, why)| {
                format!("{name} cannot be read, its last content stays in use: {why}")
            };
            snapshot
                .problems
                .extend(unreadable.iter().take(MAX_NAMED).map(cannot));
            let complete_at = *complete_at.get_or_insert(now + FILE_SETTLE);
            // A folder that cannot be scanned has no files that settle.
            let settles = settling.next().filter(|_| scan.readable);
            let mut wake = settles.unwrap_or(now + FOLDER_BACKSTOP);
            wake = wake.min(now + FOLDER_BACKSTOP);
            if scan_again {
                wake = wake.min(now + SCAN_SPACING);
            }
            if now < complete_at {
                wake = wake.min(complete_at);
            } else {
                if scan.readable && !std::mem::replace(&mut begun, true) {
                    let unsettled = settling.take_unsettled().into_iter();
                    let pending = unsettled.map(|name| (name, Content::Pending));
                    snapshot.files.extend(pending);
                    snapshot.complete = true;
                }
                publish(&published, Arc::new(snapshot.clone()));
            }
            self.wait(&mut events, &mut settling, now, wake).await;
        }
    }

    /// Scans the folder once all of it is watched.
    async fn scan(&self, events: &mut FolderEvents) -> Scan {
        loop {
            let (path, rules) = (self.path.clone(), self.rules.clone());
            let (scan, parent) = blocking(move || {
                let scan = Scan::of(&path, &rules);
                let absent = !scan.exists || !scan.readable;
                (scan, absent.then(|| events::parent(&path)))
            })
            .await;
            let mut wanted = scan.subfolders.clone();
            wanted.insert(self.path.clone());
            wanted.extend(parent);
            if !events.watch(wanted) {
                return scan;
            }
        }
    }

    async fn read(
        &self,
        settled: Vec<(String, Settled)>,
        scan: &Scan,
        settling: &mut Settling,
        snapshot: &mut Snapshot,
        unreadable: &mut BTreeMap<String, String>,
    ) {
        for (name, settled) in settled {
            let (Settled::Stable, Some(stamp)) = (settled, scan.found.get(&name).copied()) else {
                snapshot.files.remove(&name);
                continue;
            };
            let Some(kind) = self.rules.kind(&name) else {
                continue;
            };
            let (path, file) = (self.path.clone(), name.clone());
            match blocking(move || scan::read(&path, &file, kind, stamp)).await {
                Read::Changed => {
                    settling.changed_while_read(&name, Instant::now());
                    // The file exists, whatever its content.
                    snapshot.files.entry(name).or_insert(Content::Pending);
                }
                Read::Failed(why) => {
                    settling.unreadable(&name, Instant::now());
                    snapshot
                        .files
                        .entry(name.clone())
                        .or_insert(Content::Pending);
                    unreadable.insert(name, why);
                }
                Read::Content(content) => {
                    unreadable.remove(&name);
                    let held = snapshot.files.entry(name).or_insert(Content::Pending);
                    // Equal content keeps its allocation, so that comparing it costs nothing.
                    if *held != content {
                        *held = content;
                    }
                }
            }
        }
    }

    /// Waits until the next scan is due: at `wake`, or earlier if an event asks for it.
    async fn wait(
        &self,
        events: &mut FolderEvents,
        settling: &mut Settling,
        scanned: Instant,
        wake: Instant,
    ) {
        let backstop = scanned + FOLDER_BACKSTOP;
        let mut wake = wake;
        loop {
            let event = tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {
                    if wake >= backstop {
                        events.set_stale();
                    }
                    return;
                }
                event = events.next() => event,
            };
            let now = Instant::now();
            if self.take_event(event, settling, events, now) {
                wake = wake.min((scanned + SCAN_SPACING).max(now));
            }
        }
    }

    /// Records an event. Returns true if the folder should be scanned.
    fn take_event(
        &self,
        event: Event,
        settling: &mut Settling,
        events: &mut FolderEvents,
        now: Instant,
    ) -> bool {
        match event {
            Event::Folder => {
                events.set_stale();
                true
            }
            Event::Lost => {
                settling.events_lost(now);
                events.set_stale();
                true
            }
            Event::File { path, event } => {
                let name = path.strip_prefix(&self.path).unwrap_or(&path);
                let Some(name) = name.to_str().filter(|name| self.rules.kind(name).is_some())
                else {
                    // A file that is not read may be reported as a problem or a note.
                    let stray = |name| self.rules.why_stray(name, false).is_some();
                    return self.rules.has_suffix(name.as_os_str())
                        || name.to_str().is_some_and(stray);
                };
                if let Some(event) = event {
                    settling.event(name, event, now);
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
