//! Native code on disk, so that an agent's start compiles nothing.
//!
//! Whoever can put native code here runs it in the agent. So only the agent's user may access the folder, and every file begins
//! with a keyed digest (BLAKE2b-256) of its name and content; the key is random and only the agent's user can read it. A plain digest
//! would show that a file is whole, not that this agent wrote it: a file from an image, from a backup or from a time when
//! others could write to the folder would pass. The agent loads the very bytes that it verified, not the file, which may change afterwards.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leafhost_core::handler::{Digest, MOST_HANDLERS};
use nix::fcntl::OFlag;
use tempfile::NamedTempFile;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::compiler::MAX_NATIVE;
use crate::timeouts::CACHE_UNUSED;

mod seal;

pub use seal::Seal;
use seal::{HEAD, KEY};

/// At most so many entries are kept: of all handlers, or each start would compile those anew that lost their place to the others, and
/// some of versions before, for who goes back to them.
const ENTRIES: usize = MOST_HANDLERS + 28;
/// At most so many bytes are kept: a component's native code may have half of it.
const BYTES: u64 = 512 << 20;
/// The file with the key.
const KEY_FILE: &str = "key";
/// How names of files begin that are being written.
const NEW: &str = ".new-";
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
    #[error("cannot write native code to {path}: {source}; {}", remedy(source))]
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
    seal: Seal,
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
            seal: Seal::new(key),
        };
        cache.prune();
        Ok(cache)
    }

    /// The native code for the component with that digest, if this agent made it for an engine like this. Blocks.
    pub(crate) fn load(&self, engine: &Engine, digest: &Digest) -> Option<Component> {
        let name = self.name(digest);
        let path = self.folder.join(&name);
        let (file, bytes) = match read(&path) {
            Ok((file, bytes)) => (Some(file), bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            // No file: whatever it is, it is in the way.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => (None, Vec::new()),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cached native code cannot be read, compiling again");
                return None;
            }
        };
        let Some(component) = self.seal.verify(&name, &bytes).and_then(|code| {
            deserialize(engine, code)
                .inspect_err(
                    |error| tracing::debug!(%error, name, "cached native code does not fit"),
                )
                .ok()
        }) else {
            tracing::warn!(path = %path.display(), "cached native code is not this agent's or damaged, compiling again");
            clear(&path);
            return None;
        };
        // Shows that it is used; a failure only means that it is compiled again some day.
        let _ = file.map(|file| file.set_modified(SystemTime::now()));
        Some(component)
    }

    /// Keeps what the compiler made, and gives it back ready to run. Blocks.
    pub(crate) fn keep(
        &self,
        engine: &Engine,
        digest: &Digest,
        code: &[u8],
    ) -> Result<wasmtime::Result<Component>, CacheError> {
        let name = self.name(digest);
        let write = |source| self.write_error(source);
        // First, as there may be room for no more.
        let mut file = prepare(&self.folder).map_err(write)?;
        let store = file.as_file_mut();
        store
            .write_all(&self.seal.head(&name, code))
            .and_then(|()| store.write_all(code))
            .and_then(|()| file.as_file().sync_all())
            .map_err(write)?;
        let component = match deserialize(engine, code) {
            Ok(component) => component,
            Err(error) => return Ok(Err(error)),
        };
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

    fn write_error(&self, source: std::io::Error) -> CacheError {
        CacheError::Write {
            path: self.folder.clone(),
            source,
        }
    }

    /// Removes entries of other engines, entries long unused, those that were not asked for the longest beyond the number and
    /// the bytes, and what a crash left.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let ours = format!("-{}{SUFFIX}", crate::text::cut(&self.fingerprint, 16));
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let metadata = entry.metadata();
            let size = metadata.as_ref().map_or(0, std::fs::Metadata::len);
            let used = metadata.and_then(|metadata| metadata.modified());
            let age = used.as_ref().map_or(Duration::MAX, |used| {
                now.duration_since(*used).unwrap_or_default()
            });
            let remove = if name.ends_with(SUFFIX) {
                !name.ends_with(&ours) || age > CACHE_UNUSED
            } else {
                name.starts_with(NEW)
                    && (is_abandoned(&entry.path()) || age > Duration::from_hours(1))
            };
            if remove {
                let _ = std::fs::remove_file(entry.path());
            } else if name.ends_with(SUFFIX) {
                kept.push((age, entry.path(), size));
            }
        }
        kept.sort();
        let mut bytes = 0_u64;
        for (number, (_, path, size)) in kept.iter().enumerate() {
            bytes = bytes.saturating_add(*size);
            if number >= ENTRIES || bytes > BYTES {
                let _ = std::fs::remove_file(path);
            }
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
    // `keep` has it from the child's own pipe, `load` verified the keyed digest.
    unsafe { Component::deserialize(engine, code) }
}

/// Whether nobody but the owner may do anything with it.
fn is_private(metadata: &std::fs::Metadata) -> bool {
    let others = metadata.mode() & 0o077;
    others == 0
}

/// What an operator can do about native code that cannot be written.
fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match (error.kind(), error.raw_os_error()) {
        (StorageFull | QuotaExceeded, _) => "free some space, it is tried again",
        (ReadOnlyFilesystem | PermissionDenied, _) => {
            "make it writable or name another folder with --state-dir, it is tried again"
        }
        (_, Some(nix::libc::EMFILE | nix::libc::ENFILE)) => {
            "too many files are open; raise the agent's limit (ulimit -n, LimitNOFILE), it is tried again"
        }
        _ => "it is tried again",
    }
}

/// Removes what is at a path, whatever it is: only this agent's own belongs in the folder.
fn clear(path: &Path) {
    if std::fs::remove_file(path).is_err() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Opens a regular file and nothing else: not what a link leads to, and no pipe that nobody writes to.
fn open(path: &Path) -> std::io::Result<(File, std::fs::Metadata)> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // It may be another by now.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    Ok((file, metadata))
}

/// What an entry holds, as far as one may be long.
fn read(path: &Path) -> std::io::Result<(File, Vec<u8>)> {
    let (file, _) = open(path)?;
    let most = u64::try_from(HEAD + MAX_NATIVE).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    (&file).take(most).read_to_end(&mut bytes)?;
    Ok((file, bytes))
}

/// The key, if its file is ours alone and whole.
fn read_key(folder: &Path, user: u32) -> Option<[u8; KEY]> {
    let (mut file, metadata) = open(&folder.join(KEY_FILE)).ok()?;
    let ours = metadata.uid() == user && is_private(&metadata);
    let mut key = [0; KEY];
    let whole = metadata.len() == u64::try_from(KEY).ok()? && file.read_exact(&mut key).is_ok();
    (ours && whole).then_some(key)
}

/// A new file that is locked as long as it is written to.
fn prepare(folder: &Path) -> std::io::Result<NamedTempFile> {
    loop {
        // Opened here, since tempfile's errors hide the kernel's number and differ by the name each time.
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(path)
        };
        let file = tempfile::Builder::new().prefix(NEW).make_in(folder, open)?;
        // Where files cannot be locked, only their age tells that they were left.
        let _ = file.as_file().lock();
        // Another process may have looked before it was locked.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Whether whoever was writing the file was killed.
fn is_abandoned(path: &Path) -> bool {
    open(path).is_ok_and(|(file, _)| file.try_lock().is_ok())
}

/// A new key; entries under an old one no longer verify.
fn new_key(folder: &Path) -> std::io::Result<[u8; KEY]> {
    let key: [u8; KEY] = rand::random();
    let mut file = prepare(folder)?;
    file.as_file_mut().write_all(&key)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(KEY_FILE))
        .map_err(|error| error.error)?;
    Ok(key)
}

#[cfg(test)]
mod tests;
