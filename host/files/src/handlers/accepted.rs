//! The versions of handler files that were last accepted, in the state folder.
//!
//! On the disk a version is one small file with its grants and the digest of its bytes, which are a file of their own:
//! bytes and grants change together or not at all. Which handler it is, and its place among the sources of that, is written
//! before any bytes and outlives them. In memory are the versions; bytes only until they are on the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leafhost_core::handler::{Digest, Registration};
use leafhost_core::ports::{SourceFile, SourceProblem, SourceVersion};
use leafhost_core::timeouts::FOLDER_BACKSTOP;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::atomic;
use crate::blocking::blocking;
use crate::handlers::{MAX, Places};
use crate::own;
use crate::regular::{self, Error};

const VERSION: &str = ".yaml";
const BYTES: &str = "bytes";
/// The most bytes of a version's file: grants, which may have to be written with escapes.
const MAX_VERSION: u64 = 1 << 20;
/// Digits of a digest.
const DIGITS: usize = 64;

/// By source name.
type Files = BTreeMap<String, Held>;

#[derive(Debug, Clone)]
struct Held {
    /// Absent if its bytes were lost: of the file only the registration is known then.
    version: Option<SourceVersion>,
    /// Absent in what an older agent has left.
    registration: Option<Registration>,
    /// Until they are on the disk.
    bytes: Option<Arc<[u8]>>,
}

/// What is on the disk of one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grants: Option<String>,
    /// The handler it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    /// Its place among the sources of that handler.
    #[serde(default)]
    number: u64,
}

/// Where they are on the disk, and where they came from.
struct Store {
    folder: PathBuf,
    places: Places,
}

/// The accepted versions.
pub struct Accepted {
    store: Arc<Store>,
    files: Mutex<Files>,
    changed: mpsc::UnboundedSender<()>,
    problem: watch::Sender<Option<SourceProblem>>,
}

impl Accepted {
    /// Reads what was kept of the files that lie in `places`. Bytes that are damaged are not, and go.
    pub async fn open(
        folder: PathBuf,
        places: Places,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<Arc<Self>> {
        let store = Arc::new(Store { folder, places });
        let read = Arc::clone(&store);
        let files = blocking(move || read.files()).await?;
        let (changed, receiver) = mpsc::unbounded_channel();
        let accepted = Arc::new(Self {
            store,
            files: Mutex::new(files),
            changed,
            problem: watch::Sender::default(),
        });
        tasks.spawn(write(Arc::clone(&accepted), receiver));
        // Removes what a crash has left.
        accepted.notify();
        Ok(accepted)
    }

    /// Why the folder does not hold what it should, while it does not.
    pub fn problem(&self) -> watch::Receiver<Option<SourceProblem>> {
        self.problem.subscribe()
    }

    pub fn get(&self, name: &str) -> Option<SourceVersion> {
        self.lock().get(name)?.version.clone()
    }

    pub fn registration(&self, name: &str) -> Option<Registration> {
        self.lock().get(name)?.registration.clone()
    }

    pub fn all(&self) -> BTreeMap<String, SourceVersion> {
        let files = self.lock();
        files
            .iter()
            .filter_map(|(name, held)| Some((name.clone(), held.version.clone()?)))
            .collect()
    }

    /// The bytes of a file that have that digest: as kept, or as they lie where they came from. Blocks.
    pub fn read(&self, name: &str, digest: &Digest) -> Result<Arc<[u8]>, String> {
        let held = self.lock().get(name).cloned();
        let mut damage = String::new();
        if let Some(held) = held.filter(|held| held.digest() == Some(digest)) {
            match held.bytes.map_or_else(|| self.store.fetch(digest), Ok) {
                Ok(bytes) => return Ok(bytes),
                Err(why) => damage = format!(", and {why}"),
            }
        }
        match self.store.places.fetch(name, digest) {
            Ok(bytes) => {
                if !damage.is_empty() {
                    self.restore(name, digest, &bytes);
                }
                Ok(bytes)
            }
            Err(why) => Err(why + &damage),
        }
    }

    /// Has the bytes of an accepted version written again.
    fn restore(&self, name: &str, digest: &Digest, bytes: &Arc<[u8]>) {
        let mut files = self.lock();
        if let Some(held) = files.get_mut(name)
            && held.digest() == Some(digest)
        {
            held.bytes = Some(Arc::clone(bytes));
            drop(files);
            self.notify();
        }
    }

    pub fn keep(&self, file: &SourceFile, handler: &str) {
        let version = Some(SourceVersion {
            digest: regular::digest_of(&file.bytes),
            grants: file.grants.clone(),
        });
        let mut files = self.lock();
        let held = files.get(&file.name);
        let known = held.and_then(|held| held.registration.clone());
        let known = known.filter(|known| known.handler == handler);
        if known.is_some() && held.is_some_and(|held| held.version == version) {
            return;
        }
        let others = files.values().filter_map(|held| held.registration.as_ref());
        let held = Held {
            version,
            registration: Some(known.unwrap_or_else(|| Registration::after(others, handler))),
            bytes: Some(Arc::clone(&file.bytes)),
        };
        files.insert(file.name.clone(), held);
        drop(files);
        self.notify();
    }

    /// Forgets the versions of files that are gone.
    pub fn forget_all_but<T>(&self, names: &BTreeMap<String, T>) {
        let mut files = self.lock();
        let before = files.len();
        files.retain(|name, _| names.contains_key(name));
        if files.len() != before {
            drop(files);
            self.notify();
        }
    }

    /// Drops the bytes that are on the disk by now.
    fn drop_stored(&self, stored: &Files) {
        let mut files = self.lock();
        for (name, stored) in stored {
            if let Some(held) = files.get_mut(name)
                && stored.bytes.is_none()
                && stored.digest() == held.digest()
            {
                held.bytes = None;
            }
        }
    }

    fn notify(&self) {
        // The writer ends with the runtime only.
        let _ = self.changed.send(());
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        // Every change is one call on the map: it is whole even after a panic.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(accepted: Arc<Accepted>, mut receiver: mpsc::UnboundedReceiver<()>) {
    let mut failed = false;
    loop {
        tokio::select! {
            change = receiver.recv() => if change.is_none() {
                return;
            },
            () = tokio::time::sleep(FOLDER_BACKSTOP), if failed => {}
        }
        while receiver.try_recv().is_ok() {}
        let mut files = accepted.lock().clone();
        let store = Arc::clone(&accepted.store);
        let (files, result) = blocking(move || {
            let result = store.hold(&mut files);
            (files, result)
        })
        .await;
        accepted.drop_stored(&files);
        let problem = result.err().map(|error| SourceProblem {
            source: accepted.store.folder.display().to_string(),
            line: None,
            path: String::new(),
            message: format!(
                "cannot keep the accepted handlers, which serve, but not after a restart with a broken file: {}: {error}",
                atomic::remedy(&error)
            ),
            configuration: None,
        });
        failed = problem.is_some();
        accepted.problem.send_if_modified(|held| {
            let differs = *held != problem;
            *held = problem;
            differs
        });
    }
}

impl Store {
    fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.join(BYTES).join(&digest.0)
    }

    /// What is there and whole.
    fn files(&self) -> io::Result<Files> {
        atomic::open(&self.folder.join(BYTES))?;
        let mut files = Files::new();
        for file in atomic::open(&self.folder)? {
            let Some(name) = file.strip_suffix(VERSION) else {
                continue;
            };
            let Some(Version {
                digest,
                grants,
                handler,
                number,
            }) = version(&self.folder.join(&file))?
            else {
                continue;
            };
            let version = SourceVersion {
                digest: Digest(digest),
                grants: grants.map(Into::into),
            };
            let held = Held {
                version: self.has(&version.digest)?.then_some(version),
                registration: handler.map(|handler| Registration { handler, number }),
                bytes: None,
            };
            if held.version.is_some() || held.registration.is_some() {
                files.insert(name.to_owned(), held);
            }
        }
        Ok(files)
    }

    /// Whether the bytes are there and whole.
    fn has(&self, digest: &Digest) -> io::Result<bool> {
        let opened = regular::open(&self.blob(digest), MAX);
        match opened.and_then(|file| Ok(regular::digest(&file, MAX)?)) {
            Ok(found) => Ok(found == *digest),
            Err(Error::Refused(_)) => Ok(false),
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(Error::Io(error)) => Err(error),
        }
    }

    fn fetch(&self, digest: &Digest) -> Result<Arc<[u8]>, String> {
        let path = self.blob(digest);
        let opened = regular::open(&path, MAX);
        let why = match opened.and_then(|file| Ok(regular::read(&file, MAX)?)) {
            Ok(bytes) if regular::digest_of(&bytes) == *digest => return Ok(bytes.into()),
            Ok(_) => "is damaged".to_owned(),
            Err(Error::Refused(why)) => why,
            Err(Error::Io(error)) => format!("cannot be read: {error}"),
        };
        Err(format!("what was kept of it in {} {why}", path.display()))
    }

    /// Makes the folder hold exactly `files`: writes registrations first, which are small, then bytes, then the versions that name
    /// them, and then removes the rest. Drops the bytes in memory that are on the disk by then.
    fn hold(&self, files: &mut Files) -> io::Result<()> {
        let there = atomic::open(&self.folder.join(BYTES))?;
        let mut held = Ok(());
        for (name, file) in &*files {
            held = held.and(self.register(name, file));
        }
        for (name, file) in files.iter_mut() {
            match self.hold_one(name, file) {
                Ok(()) => file.bytes = None,
                Err(error) => held = held.and(Err(error)),
            }
        }
        for file in atomic::open(&self.folder)? {
            let name = file.strip_suffix(VERSION);
            if !name.is_some_and(|name| files.contains_key(name)) {
                atomic::remove(&self.folder, &file)?;
            }
        }
        // Until then the bytes that were there are better than none.
        held?;
        let named: BTreeSet<_> = files
            .values()
            .filter_map(|file| Some(file.digest()?.0.as_str()))
            .collect();
        for digest in there {
            if !named.contains(digest.as_str()) {
                atomic::remove(&self.folder.join(BYTES), &digest)?;
            }
        }
        Ok(())
    }

    /// Writes which handler a source is where the disk has another, next to the version that is there: what becomes of the
    /// bytes says nothing about who was first.
    fn register(&self, name: &str, file: &Held) -> io::Result<()> {
        let Some(wanted) = file.on_disk() else {
            return Ok(());
        };
        let there = self.there(name)?;
        let registered = match there.clone() {
            Some(there) => Version {
                handler: wanted.handler,
                number: wanted.number,
                ..there
            },
            None if wanted.handler.is_none() => return Ok(()),
            None => wanted,
        };
        if there.as_ref() == Some(&registered) {
            return Ok(());
        }
        self.put(name, &registered)
    }

    /// Writes the bytes of a version, then the version.
    fn hold_one(&self, name: &str, file: &Held) -> io::Result<()> {
        let (Some(digest), Some(wanted)) = (file.digest(), file.on_disk()) else {
            return Ok(());
        };
        let is_there = match file.bytes {
            Some(_) => self.has(digest)?,
            None => self.blob(digest).is_file(),
        };
        if !is_there {
            let bytes = match &file.bytes {
                Some(bytes) => Arc::clone(bytes),
                None => self.places.fetch(name, digest).map_err(|why| {
                    io::Error::other(format!("what was kept of {name} is gone, and {why}"))
                })?,
            };
            atomic::write(&self.folder.join(BYTES), &digest.0, &bytes)?;
        }
        if self.there(name)?.as_ref() == Some(&wanted) {
            return Ok(());
        }
        self.put(name, &wanted)
    }

    /// What is on the disk of a source, if that can be read.
    fn there(&self, name: &str) -> io::Result<Option<Version>> {
        let path = self.folder.join(format!("{name}{VERSION}"));
        if path.is_file() {
            version(&path)
        } else {
            Ok(None)
        }
    }

    fn put(&self, name: &str, version: &Version) -> io::Result<()> {
        let text = serde_yaml_ng::to_string(version).map_err(io::Error::other)?;
        let file = format!("{name}{VERSION}");
        atomic::write(&self.folder, &file, text.as_bytes())
    }
}

impl Held {
    fn digest(&self) -> Option<&Digest> {
        self.version.as_ref().map(|version| &version.digest)
    }

    /// What of it is written.
    fn on_disk(&self) -> Option<Version> {
        let SourceVersion { digest, grants } = self.version.as_ref()?;
        let registration = self.registration.as_ref();
        Some(Version {
            digest: digest.0.clone(),
            grants: grants.as_deref().map(str::to_owned),
            handler: registration.map(|one| one.handler.clone()),
            number: registration.map_or(0, |one| one.number),
        })
    }
}

fn version(path: &Path) -> io::Result<Option<Version>> {
    let version: Option<Version> = match own::read(path, MAX_VERSION) {
        Ok(bytes) => own::parse(&bytes).ok(),
        Err(Error::Refused(_)) => None,
        Err(Error::Io(error)) => return Err(error),
    };
    // The digest becomes a file name.
    Ok(version.filter(|Version { digest, .. }| {
        digest.len() == DIGITS && digest.bytes().all(|digit| digit.is_ascii_hexdigit())
    }))
}

#[cfg(test)]
mod tests;
