//! A watched folder: its files once they have settled, as snapshots.
//!
//! Only whole files of the wanted names come out, never half a one. Knows nothing of what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use leafhost_core::handler::Digest;
use leafhost_core::timeouts::{FILE_GONE, FILE_SETTLE, FOLDER_BACKSTOP};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::atomic;
use crate::blocking::blocking;
use crate::listen::{self, Listener, Sound};
use crate::settle::{LOOK_SPACING, Settled, Settling, Stamp};

mod look;
mod names;
mod room;
pub use look::{Kind, LONGEST_NAME, Rules, fetch};
use look::{Look, Read};
use room::Rank;

/// The most files that are told one by one.
const MAX_TOLD: usize = 20;

/// What a file holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// Its bytes, of a kind that is held.
    Bytes(Arc<[u8]>),
    /// The digest of its bytes, of a kind that is not.
    Digest(Digest),
    /// It cannot be used, and why.
    Refused(String),
    /// It was there when the folder was first seen and has not settled since.
    Pending,
}

/// Without the bytes: they may be secret.
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

/// The files of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether the folder has been read once. What is in a folder that cannot be read stays as it was last seen.
    pub complete: bool,
    /// Whether there is a folder.
    pub exists: bool,
    /// What is there instead, if something is: `is not a folder`.
    pub obstructed: Option<&'static str>,
    /// By name; in a nested folder `SUBFOLDER/NAME`.
    pub files: BTreeMap<String, Content>,
    /// When each was last changed before it was first seen, in seconds and nanoseconds.
    pub ages: BTreeMap<String, (i64, i64)>,
    /// What concerns the folder as a whole.
    pub problems: Vec<String>,
}

impl Snapshot {
    /// The folder as it is at this moment, whether at rest or not. Blocks.
    pub fn now(path: &Path, rules: &Rules) -> Self {
        let mut look = Look::at(path, rules);
        let left = room::leave_out(&mut look.found, rules, 0, |_, _| Rank::New);
        look.problems.extend(left.problems);
        let content = |(name, stamp): (&String, &Stamp)| {
            let read = look::read(path, name, rules.kind(name)?, *stamp);
            Some((name.clone(), read.content()?))
        };
        Self {
            complete: true,
            exists: look.exists,
            obstructed: look.obstructed,
            files: look.found.iter().filter_map(content).collect(),
            ages: look
                .found
                .iter()
                .map(|(name, stamp)| (name.clone(), stamp.modified))
                .collect(),
            problems: look.problems,
        }
    }

    /// Takes down when new files were last changed, and forgets those that are gone.
    fn age(&mut self, found: &BTreeMap<String, Stamp>) {
        let Self { files, ages, .. } = self;
        ages.retain(|name, _| files.contains_key(name));
        for name in files.keys() {
            if let Some(stamp) = found.get(name).filter(|_| !ages.contains_key(name)) {
                ages.insert(name.clone(), stamp.modified);
            }
        }
    }
}

/// A folder and what is wanted of it.
pub struct Folder {
    path: PathBuf,
    rules: Rules,
    kept: BTreeSet<String>,
    snapshot: watch::Sender<Arc<Snapshot>>,
}

impl Folder {
    /// Names the folder; it need not exist. What was `kept` of an earlier run goes before new files where not all can be read.
    pub fn new(path: impl Into<PathBuf>, rules: Rules, kept: BTreeSet<String>) -> Self {
        Self {
            path: path.into(),
            rules,
            kept,
            snapshot: watch::Sender::default(),
        }
    }

    /// The snapshots, from [`Folder::watch`].
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshot.subscribe()
    }

    /// Watches until it is dropped. An idle folder is looked through every ten seconds and costs nothing else.
    pub async fn watch(self) {
        let mut ear = Ear::open();
        let mut settling = Settling::default();
        let mut snapshot = Snapshot::default();
        // Until then what is in the folder is not the whole of it.
        let mut unpacked = None;
        let mut begun = false;
        let mut device = None;
        let mut unread = BTreeMap::new();
        let mut followed = BTreeSet::new();
        let (mut before, mut beyond) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let mut look = self.look(&mut ear).await;
            for folder in &look.unread {
                look.found.extend(settling.seen_in(folder));
            }
            if !snapshot.files.is_empty() && look.device.is_some() && look.device != device {
                look.refuse_if_empty();
            }
            let now = Instant::now();
            if look.readable {
                device = look.device.or(device);
                if begun {
                    let there = |name: &String| look.found.contains_key(name);
                    followed.retain(|name| there(name) || settling.knows(name));
                }
                let left = self.leave_out(&mut look, &settling, &followed, &beyond);
                before = std::mem::replace(&mut beyond, left);
                followed.extend(look.found.keys().cloned());
                settling.seen(&look.found, now);
            }
            // It may have happened after the look, which then says nothing of it.
            let mut missed = false;
            while let Some(sound) = ear.next().now_or_never() {
                missed |= self.note(sound, &mut settling, &mut ear, now);
            }
            if look.readable {
                let settled = settling.take(now);
                unread.retain(|name, _| look.found.contains_key(name));
                self.read(settled, &look, &mut settling, &mut snapshot, &mut unread)
                    .await;
                // One that is there and not read any more is not gone.
                unsay(&look, &mut snapshot, &before, &beyond);
            }
            if look.exists && !snapshot.exists && snapshot.complete {
                // It has come back, and its files may not be there yet.
                unpacked = Some(now + FILE_GONE);
                begun = false;
            }
            snapshot.exists = look.exists;
            snapshot.obstructed = look.obstructed;
            snapshot.problems = look.problems;
            snapshot.problems.extend(ear.deaf.clone());
            snapshot.problems.extend(told(&unread));
            let whole = *unpacked.get_or_insert(now + FILE_SETTLE);
            // What cannot be looked at does not settle.
            let settles = settling.next().filter(|_| look.readable);
            let mut wake = settles.unwrap_or(now + FOLDER_BACKSTOP);
            wake = wake.min(now + FOLDER_BACKSTOP);
            if missed {
                wake = wake.min(now + LOOK_SPACING);
            }
            if now < whole {
                wake = wake.min(whole);
            } else {
                if look.readable && !std::mem::replace(&mut begun, true) {
                    let unsettled = settling.take_unsettled().into_iter();
                    let pending = unsettled.map(|name| (name, Content::Pending));
                    snapshot.files.extend(pending);
                    snapshot.complete = true;
                }
                snapshot.age(&look.found);
                self.publish(&snapshot);
            }
            self.wait(&mut ear, &mut settling, now, wake).await;
        }
    }

    /// Looks through the folder, having listened to all of it before.
    async fn look(&self, ear: &mut Ear) -> Look {
        if ear.in_doubt {
            ear.turn_to(ear.turned_to.clone());
        }
        loop {
            let (path, rules) = (self.path.clone(), self.rules.clone());
            let look = blocking(move || Look::at(&path, &rules)).await;
            let mut wanted = look.subfolders.clone();
            wanted.insert(self.path.clone());
            if !look.exists || !look.readable {
                wanted.insert(listen::parent(&self.path));
            }
            if !ear.turn_to(wanted) {
                return look;
            }
        }
    }

    /// Takes out of a look what is not read, and yields that; `beyond` is what was not read before.
    fn leave_out(
        &self,
        look: &mut Look,
        settling: &Settling,
        followed: &BTreeSet<String>,
        beyond: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let rank = |name: &str, stamp: &Stamp| match settling.stamp(name) {
            Some(seen) if seen == *stamp => Rank::Same,
            _ if followed.contains(name) && beyond.contains(name) => Rank::Waiting,
            _ if followed.contains(name) => Rank::Changed,
            _ if self.kept.contains(name) => Rank::Kept,
            _ => Rank::New,
        };
        let away = settling.away(&look.found);
        let left = room::leave_out(&mut look.found, &self.rules, away, rank);
        look.problems.extend(left.problems);
        left.names
    }

    async fn read(
        &self,
        settled: Vec<(String, Settled)>,
        look: &Look,
        settling: &mut Settling,
        snapshot: &mut Snapshot,
        unread: &mut BTreeMap<String, String>,
    ) {
        for (name, settled) in settled {
            let (Settled::Rests, Some(stamp)) = (settled, look.found.get(&name).copied()) else {
                snapshot.files.remove(&name);
                continue;
            };
            let Some(kind) = self.rules.kind(&name) else {
                continue;
            };
            let (path, file) = (self.path.clone(), name.clone());
            match blocking(move || look::read(&path, &file, kind, stamp)).await {
                Read::MovedOn => {
                    settling.moved_on(&name, Instant::now());
                    // It is there, whatever it says.
                    snapshot.files.entry(name).or_insert(Content::Pending);
                }
                Read::NotNow(why) => {
                    settling.unread(&name, Instant::now());
                    snapshot
                        .files
                        .entry(name.clone())
                        .or_insert(Content::Pending);
                    unread.insert(name, why);
                }
                Read::Content(content) => {
                    unread.remove(&name);
                    let held = snapshot.files.entry(name).or_insert(Content::Pending);
                    // What is equal stays the very same bytes, so that comparing them costs nothing.
                    if *held != content {
                        *held = content;
                    }
                }
            }
        }
    }

    fn publish(&self, snapshot: &Snapshot) {
        self.snapshot.send_if_modified(|published| {
            let differs = **published != *snapshot;
            if differs {
                *published = Arc::new(snapshot.clone());
            }
            differs
        });
    }

    /// Waits until something is due: at `wake`, or earlier if something of interest is heard.
    async fn wait(&self, ear: &mut Ear, settling: &mut Settling, looked: Instant, wake: Instant) {
        let backstop = looked + FOLDER_BACKSTOP;
        let mut wake = wake;
        loop {
            let sound = tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {
                    if wake >= backstop {
                        ear.doubt();
                    }
                    return;
                }
                sound = ear.next() => sound,
            };
            let now = Instant::now();
            if self.note(sound, settling, ear, now) {
                wake = wake.min((looked + LOOK_SPACING).max(now));
            }
        }
    }

    /// Takes note of a sound. Returns whether it is worth a look.
    fn note(&self, sound: Sound, settling: &mut Settling, ear: &mut Ear, now: Instant) -> bool {
        match sound {
            Sound::Folder => {
                ear.doubt();
                true
            }
            Sound::Lost => {
                settling.lost(now);
                ear.doubt();
                true
            }
            Sound::File {
                folder,
                name,
                heard,
            } => {
                let path = folder.join(name);
                let name = path.strip_prefix(&self.path).unwrap_or(&path);
                if self.rules.wanted(name.as_os_str()).is_none() {
                    return false;
                }
                let name = name.to_str().filter(|name| self.rules.kind(name).is_some());
                if let (Some(name), Some(heard)) = (name, heard) {
                    settling.heard(name, heard, now);
                }
                true
            }
        }
    }
}

/// What is told of files that cannot be read at this moment.
fn told(unread: &BTreeMap<String, String>) -> Vec<String> {
    let first = unread.iter().take(MAX_TOLD);
    let mut told: Vec<String> = first
        .map(|(name, why)| format!("{name} cannot be read, what it held last keeps serving: {why}"))
        .collect();
    let more = unread.len().saturating_sub(MAX_TOLD);
    if more > 0 {
        told.push(format!(
            "has {more} more files that cannot be read, what they held last keeps serving"
        ));
    }
    told
}

/// Nothing is said of what the files hold that are `beyond` what is read: they are there, and what was accepted of them serves.
fn unsay(
    look: &Look,
    snapshot: &mut Snapshot,
    before: &BTreeSet<String>,
    beyond: &BTreeSet<String>,
) {
    for name in before.difference(beyond) {
        if !look.found.contains_key(name) {
            snapshot.files.remove(name);
        }
    }
    for name in beyond {
        snapshot.files.insert(name.clone(), Content::Pending);
    }
}

/// What the folder listens with, as far as the kernel lets it.
struct Ear {
    listener: Option<Listener>,
    turned_to: BTreeSet<PathBuf>,
    /// Whether what it is turned to may be another folder by now.
    in_doubt: bool,
    /// Why not everything is heard.
    deaf: Option<String>,
}

impl Ear {
    fn open() -> Self {
        let mut ear = Self {
            listener: None,
            turned_to: BTreeSet::new(),
            in_doubt: false,
            deaf: None,
        };
        match Listener::new() {
            Ok(listener) => ear.listener = Some(listener),
            Err(error) => ear.fail(&error),
        }
        ear
    }

    /// Listens to these folders. Returns whether it did not before, so that something may have been missed.
    fn turn_to(&mut self, wanted: BTreeSet<PathBuf>) -> bool {
        let Some(listener) = self.listener.as_mut() else {
            return false;
        };
        if self.turned_to == wanted && !self.in_doubt {
            return false;
        }
        match listener.listen(&wanted) {
            Ok(()) => self.deaf = None,
            Err(error) => self.fail(&error),
        }
        self.turned_to = wanted;
        self.in_doubt = false;
        true
    }

    /// A folder may have been replaced by another of the same name: listen anew.
    fn doubt(&mut self) {
        self.in_doubt = true;
    }

    async fn next(&mut self) -> Sound {
        match &mut self.listener {
            Some(listener) => listener.next().await,
            None => std::future::pending().await,
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.deaf = Some(deaf(error));
    }
}

/// What is told of a folder whose changes are not heard.
fn deaf(error: &io::Error) -> String {
    // So the kernel says that a user's instances or watches are used up.
    let used_up = error.kind() == ErrorKind::StorageFull || atomic::is_out_of_files(error);
    let remedy = if used_up {
        "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches"
    } else {
        "make it readable for the agent"
    };
    format!(
        "the kernel does not tell of changes ({error}), they are seen every 10 seconds; {remedy}"
    )
}

#[cfg(test)]
mod tests;
