//! The versions of handler files that were last accepted, in memory and in the state folder.
//!
//! On the disk a version is one small file with its grants and the digest of its bytes, which are a file of their own:
//! bytes and grants change together or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leafhost_core::ports::{SourceFile, SourceProblem};
use leafhost_core::timeouts::FOLDER_BACKSTOP;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::atomic;
use crate::blocking::blocking;

const VERSION: &str = ".yaml";
const BYTES: &str = "bytes";

/// By source name.
type Files = BTreeMap<String, SourceFile>;

/// What is on the disk of one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grants: Option<String>,
}

/// The accepted versions.
pub struct Accepted {
    files: Mutex<Files>,
    told: mpsc::UnboundedSender<()>,
    problem: watch::Sender<Option<SourceProblem>>,
}

impl Accepted {
    /// Reads what was kept. What is damaged is not, and goes.
    pub async fn open(folder: PathBuf, tasks: &mut JoinSet<()>) -> io::Result<Arc<Self>> {
        let (folder, files) = blocking(move || {
            let files = read(&folder);
            (folder, files)
        })
        .await;
        let (told, changes) = mpsc::unbounded_channel();
        let accepted = Arc::new(Self {
            files: Mutex::new(files?),
            told,
            problem: watch::Sender::default(),
        });
        tasks.spawn(write(folder, Arc::clone(&accepted), changes));
        // What a crash has left goes.
        accepted.tell();
        Ok(accepted)
    }

    /// Why the folder does not hold what it should, while it does not.
    pub fn problem(&self) -> watch::Receiver<Option<SourceProblem>> {
        self.problem.subscribe()
    }

    pub fn get(&self, name: &str) -> Option<SourceFile> {
        self.lock().get(name).cloned()
    }

    pub fn all(&self) -> BTreeMap<String, Arc<SourceFile>> {
        let files = self.lock();
        files
            .iter()
            .map(|(name, file)| (name.clone(), Arc::new(file.clone())))
            .collect()
    }

    pub fn keep(&self, file: &SourceFile) {
        let before = self.lock().insert(file.name.clone(), file.clone());
        if before.as_ref() != Some(file) {
            self.tell();
        }
    }

    /// Forgets the versions of files that are gone.
    pub fn forget_all_but<T>(&self, names: &BTreeMap<String, T>) {
        let mut files = self.lock();
        let before = files.len();
        files.retain(|name, _| names.contains_key(name));
        if files.len() != before {
            drop(files);
            self.tell();
        }
    }

    fn tell(&self) {
        // The writer ends with the runtime only.
        let _ = self.told.send(());
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        // Every change is one call on the map: it is whole even after a panic.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(folder: PathBuf, accepted: Arc<Accepted>, mut changes: mpsc::UnboundedReceiver<()>) {
    let mut failed = false;
    loop {
        tokio::select! {
            told = changes.recv() => if told.is_none() {
                return;
            },
            () = tokio::time::sleep(FOLDER_BACKSTOP), if failed => {}
        }
        while changes.try_recv().is_ok() {}
        let files = accepted.lock().clone();
        let folder = folder.clone();
        let problem = blocking(move || {
            let error = store(&folder, &files).err()?;
            Some(SourceProblem {
                source: folder.display().to_string(),
                line: None,
                path: String::new(),
                message: format!(
                    "cannot keep the accepted handlers, which serve, but not after a restart with a broken file: {}: {error}",
                    atomic::remedy(&error)
                ),
                configuration: None,
            })
        })
        .await;
        failed = problem.is_some();
        accepted.problem.send_if_modified(|held| {
            let differs = *held != problem;
            *held = problem;
            differs
        });
    }
}

fn read(folder: &Path) -> io::Result<Files> {
    let bytes_folder = folder.join(BYTES);
    atomic::open(&bytes_folder)?;
    let mut files = Files::new();
    for file in atomic::open(folder)? {
        let Some(name) = file.strip_suffix(VERSION) else {
            continue;
        };
        let Some(Version { digest, grants }) = version(&folder.join(&file))? else {
            continue;
        };
        match std::fs::read(bytes_folder.join(&digest)) {
            Ok(bytes) if hex(&bytes) == digest => {
                let source = SourceFile {
                    name: name.to_owned(),
                    bytes: bytes.into(),
                    grants: grants.map(Into::into),
                };
                files.insert(name.to_owned(), source);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(files)
}

fn version(path: &Path) -> io::Result<Option<Version>> {
    let bytes = std::fs::read(path)?;
    let version: Option<Version> = serde_yaml_ng::from_slice(&bytes).ok();
    // The digest becomes a file name.
    Ok(version.filter(|version| version.digest.bytes().all(|b| b.is_ascii_hexdigit())))
}

/// Makes the folder hold exactly `files`: bytes first, then the versions that name them, then what nobody names goes.
fn store(folder: &Path, files: &Files) -> io::Result<()> {
    let bytes_folder = folder.join(BYTES);
    let there: BTreeSet<_> = atomic::open(&bytes_folder)?.into_iter().collect();
    let mut digests = BTreeSet::new();
    let mut versions = BTreeSet::new();
    for (name, source) in files {
        let digest = hex(&source.bytes);
        if !there.contains(&digest) && digests.insert(digest.clone()) {
            atomic::write(&bytes_folder, &digest, &source.bytes)?;
        }
        let file = format!("{name}{VERSION}");
        let wanted = Version {
            digest: digest.clone(),
            grants: source.grants.as_deref().map(str::to_owned),
        };
        let path = folder.join(&file);
        if !path.is_file() || version(&path)?.as_ref() != Some(&wanted) {
            let text = serde_yaml_ng::to_string(&wanted).map_err(io::Error::other)?;
            atomic::write(folder, &file, text.as_bytes())?;
        }
        digests.insert(digest);
        versions.insert(file);
    }
    for file in atomic::open(folder)? {
        if !versions.contains(&file) {
            atomic::remove(folder, &file)?;
        }
    }
    for digest in there.difference(&digests) {
        atomic::remove(&bytes_folder, digest)?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
