//! Native code on disk, so that an agent's start compiles nothing.
//!
//! Whoever can put native code here runs it in the agent. So the folder is this user's alone, and every file begins
//! with a keyed digest (BLAKE2b-256) of its name and content; the key is random and in a file only this user reads. A plain digest
//! beside a file would say that it is whole, not that this agent made it: a file brought along (an image, a
//! restored backup, a folder that once was writable for others) would pass. What is verified is what is loaded: the bytes in
//! memory, not a mapped file that may change afterwards.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{KeyInit as _, Mac as _};
use leafhost_core::handler::Digest;
use tempfile::NamedTempFile;
use wasmtime::Engine;
use wasmtime::component::Component;

type Authenticator = Blake2bMac<U32>;

/// The bytes of the key.
const KEY: usize = 64;
/// The bytes before the native code: the keyed digest.
const HEAD: usize = 32;
/// An entry that no load asked for so long is removed.
const UNUSED: Duration = Duration::from_hours(30 * 24);
/// At most so many entries are kept.
const ENTRIES: usize = 64;
/// The file with the key.
const KEY_FILE: &str = "key";
/// How names of entries end.
const SUFFIX: &str = ".native";

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder.
    #[error(
        "cannot use {path} for native code: {source}; make it writable or choose another folder"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The folder is not ours alone.
    #[error(
        "will not use {path} for native code: it belongs to user {owner}, the agent runs as {user}; remove it or choose another folder"
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The agent.
        user: u32,
    },
    /// A file in it.
    #[error("cannot write native code to {path}: {source}; is the disk full?")]
    Write {
        /// The folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

/// The folder of native code.
pub(crate) struct Cache {
    folder: PathBuf,
    fingerprint: String,
    key: [u8; KEY],
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Uses `folder`, makes it if it is not there, and removes what nobody asks for any more. Blocks.
    pub(crate) fn open(folder: &Path, fingerprint: String) -> Result<Self, CacheError> {
        let broken = |source| CacheError::Folder {
            path: folder.to_owned(),
            source,
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(broken)?;
        let metadata = std::fs::metadata(folder).map_err(broken)?;
        let user = nix::unistd::geteuid().as_raw();
        if metadata.uid() != user {
            return Err(CacheError::Owner {
                path: folder.to_owned(),
                owner: metadata.uid(),
                user,
            });
        }
        if !is_private(&metadata) {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
                .map_err(broken)?;
        }
        let key = match read_key(folder, user) {
            Some(key) => key,
            None => new_key(folder).map_err(broken)?,
        };
        let cache = Self {
            folder: folder.to_owned(),
            fingerprint,
            key,
        };
        cache.prune();
        Ok(cache)
    }

    /// The native code for the component with that digest, if this agent made it for an engine like this. Blocks.
    pub(crate) fn load(&self, engine: &Engine, digest: &Digest) -> Option<Component> {
        let name = self.name(digest);
        let path = self.folder.join(&name);
        let mut file = File::open(&path).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let Some(component) = self.verify(&name, &bytes).and_then(|code| {
            deserialize(engine, code)
                .inspect_err(
                    |error| tracing::debug!(%error, name, "cached native code does not fit"),
                )
                .ok()
        }) else {
            tracing::warn!(path = %path.display(), "cached native code is not this agent's or damaged, compiling again");
            let _ = std::fs::remove_file(&path);
            return None;
        };
        // Shows that it is used; a failure only means that it is compiled again some day.
        let _ = file.set_modified(SystemTime::now());
        Some(component)
    }

    /// A new file, and a handle on it for the compiler to write to: the place for the keyed digest is left free. Blocks.
    pub(crate) fn create(&self) -> Result<(NamedTempFile, File), CacheError> {
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(&self.folder)
            .map_err(|source| self.write_error(source))?;
        // Both handles share one position, so the compiler continues behind the head.
        let output = file
            .write_all(&[0; HEAD])
            .and_then(|()| file.as_file().try_clone())
            .map_err(|source| self.write_error(source))?;
        Ok((file, output))
    }

    /// Keeps what the compiler wrote to `file`, and gives it back ready to run. Blocks.
    pub(crate) fn keep(
        &self,
        engine: &Engine,
        digest: &Digest,
        mut file: NamedTempFile,
    ) -> Result<wasmtime::Result<Component>, CacheError> {
        let name = self.name(digest);
        let write = |source| self.write_error(source);
        let mut bytes = Vec::new();
        file.as_file_mut()
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.as_file_mut().read_to_end(&mut bytes))
            .map_err(write)?;
        let code = bytes.get(HEAD..).unwrap_or_default();
        let component = match deserialize(engine, code) {
            Ok(component) => component,
            Err(error) => return Ok(Err(error)),
        };
        let head = self.authenticator(&name, code).finalize().into_bytes();
        let store = file.as_file_mut();
        store
            .seek(SeekFrom::Start(0))
            .and_then(|_| store.write_all(&head))
            .and_then(|()| store.sync_all())
            .map_err(write)?;
        file.persist(self.folder.join(&name))
            .map_err(|error| self.write_error(error.error))?;
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        self.prune();
        Ok(Ok(component))
    }

    fn name(&self, digest: &Digest) -> String {
        let fingerprint = crate::text::cut(&self.fingerprint, 16);
        format!("{}-{fingerprint}{SUFFIX}", digest.0)
    }

    fn authenticator(&self, name: &str, code: &[u8]) -> Authenticator {
        let mut authenticator = Authenticator::new(&self.key.into());
        authenticator.update(name.as_bytes());
        authenticator.update(&[0]);
        authenticator.update(code);
        authenticator
    }

    fn verify<'a>(&self, name: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (head, code) = bytes.split_at_checked(HEAD)?;
        self.authenticator(name, code).verify_slice(head).ok()?;
        Some(code)
    }

    fn write_error(&self, source: std::io::Error) -> CacheError {
        CacheError::Write {
            path: self.folder.clone(),
            source,
        }
    }

    /// Removes entries of other engines, entries long unused, the oldest ones beyond the number, and what a crash left.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let ours = format!("-{}{SUFFIX}", crate::text::cut(&self.fingerprint, 16));
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = entry.metadata().and_then(|metadata| metadata.modified());
            let age = used.as_ref().map_or(Duration::MAX, |used| {
                now.duration_since(*used).unwrap_or_default()
            });
            let remove = if name.ends_with(SUFFIX) {
                !name.ends_with(&ours) || age > UNUSED
            } else {
                // Another load may be writing one now.
                name.starts_with(".new-") && age > Duration::from_hours(1)
            };
            if remove {
                let _ = std::fs::remove_file(entry.path());
            } else if name.ends_with(SUFFIX) {
                kept.push((age, entry.path()));
            }
        }
        kept.sort();
        for (_, path) in kept.iter().skip(ENTRIES) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes native code runnable.
#[allow(
    unsafe_code,
    reason = "the engine cannot tell forged native code from its own; every caller has code that this agent's compiler \
              child wrote, either just now or, by its keyed digest, earlier"
)]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` is the output of `Engine::precompile_component` by the compiler child, unchanged since:
    // `keep` read it from the private file that only the child wrote to, `load` verified the keyed digest.
    unsafe { Component::deserialize(engine, code) }
}

/// Whether nobody but the owner may do anything with it.
fn is_private(metadata: &std::fs::Metadata) -> bool {
    let others = metadata.mode() & 0o077;
    others == 0
}

/// The key, if its file is ours alone and whole.
fn read_key(folder: &Path, user: u32) -> Option<[u8; KEY]> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(folder.join(KEY_FILE))
        .ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.is_file() && metadata.uid() == user && is_private(&metadata);
    let mut key = [0; KEY];
    let whole = metadata.len() == u64::try_from(KEY).ok()? && file.read_exact(&mut key).is_ok();
    (ours && whole).then_some(key)
}

/// A new key; entries under an old one no longer verify.
fn new_key(folder: &Path) -> std::io::Result<[u8; KEY]> {
    let key: [u8; KEY] = rand::random();
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(std::fs::Permissions::from_mode(0o600))
        .tempfile_in(folder)?;
    file.write_all(&key)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(KEY_FILE))
        .map_err(|error| error.error)?;
    Ok(key)
}

#[cfg(test)]
mod tests;
