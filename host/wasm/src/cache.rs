//! Cache of native code on disk, so that an agent that starts again does not compile the same components again.
//!
//! Anyone who can place native code here runs it in the agent. So only the agent's user may access the folder, and every file begins
//! with a keyed digest (BLAKE2b-256) of its name and content; the key is random and only the agent's user can read it. A plain digest
//! would show that a file is complete, but not that this agent wrote it: a file from an image, from a backup or from a time when others
//! could write to the folder would pass. The agent loads the very bytes that it verified, not the file, which may change afterwards.

use std::fs::{File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leafhost_core::handler::Digest;
use leafhost_core::ports::SourceProblem;
use leafhost_core::text::clean;
use leafhost_disk::atomic;
use nix::errno::Errno;
use nix::unistd::AccessFlags;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::compiler::MAX_NATIVE;
use crate::refusal::Refusal;

mod seal;

pub use seal::Seal;
use seal::{HEAD, KEY};

/// Maximum size of all entries, in bytes: the native code of one component may take half of it.
const BYTES: u64 = 512 << 20;
const KEY_FILE: &str = "key";
/// Suffix of the names of entries.
const SUFFIX: &str = ".native";

/// Folder of native code.
pub(crate) struct Cache {
    folder: PathBuf,
    fingerprint: String,
    seal: Seal,
    /// Reason why no entry is added, if nothing can be written.
    pub(crate) unkept: Option<SourceProblem>,
}

impl Cache {
    /// Opens `folder`, creates it if it is missing, and prunes it. If nothing can be written, existing entries are used and none is added.
    /// Blocks.
    pub(crate) fn open(folder: &Path, fingerprint: String) -> std::io::Result<Self> {
        // Entries sealed with a key that is not on disk fail verification later.
        let mut key = rand::random();
        let mut failed = restrict(folder, &mut key).err();
        if let Some(error) = failed.take_if(|error| !is_of_the_disk(error)) {
            return Err(error);
        }
        let unkept = failed.map(|error| {
            let message = format!(
                "cannot store native code: {error}; {}; until then each start compiles the handlers that are not in the cache",
                restart_remedy(&error)
            );
            SourceProblem::new(folder.display().to_string(), message)
        });
        let cache = Self {
            folder: folder.to_owned(),
            fingerprint,
            seal: Seal::new(key),
            unkept,
        };
        cache.prune();
        Ok(cache)
    }

    /// Returns the native code of the component with that digest, if this agent made it for an equal engine. Blocks.
    pub(crate) fn load(&self, engine: &Engine, digest: &Digest) -> Option<Component> {
        let name = self.name(digest);
        let path = self.folder.join(&name);
        let file = File::open(&path).ok()?;
        let most = u64::try_from(HEAD + MAX_NATIVE).unwrap_or(u64::MAX);
        let mut bytes = Vec::new();
        if let Err(error) = (&file).take(most).read_to_end(&mut bytes) {
            tracing::warn!(%error, path = %path.display(), "cannot read cached native code; compiling again");
            return None;
        }
        let Some(component) = self.seal.verify(&name, &bytes).and_then(|code| {
            deserialize(engine, code)
                .inspect_err(
                    |error| tracing::debug!(%error, name, "cached native code does not fit"),
                )
                .ok()
        }) else {
            tracing::warn!(path = %path.display(), "cached native code is not this agent's or damaged, compiling again");
            return None;
        };
        // Marks the entry as used; after a failure it may be pruned and compiled again.
        let _ = file.set_modified(SystemTime::now());
        Some(component)
    }

    /// Stores the output of the compiler and returns it ready to run. Blocks.
    pub(crate) fn keep(
        &self,
        engine: &Engine,
        digest: &Digest,
        code: &[u8],
    ) -> Result<Component, Refusal> {
        let component = deserialize(engine, code).map_err(|error| unusable(&error))?;
        if self.unkept.is_some() {
            return Ok(component);
        }
        let name = self.name(digest);
        let head = self.seal.head(&name, code);
        let written = atomic::write_with(&self.folder, &name, |file| {
            file.write_all(&head)?;
            file.write_all(code)
        });
        written.map_err(|error| {
            Refusal::for_now(format!(
                "cannot write native code to {}: {error}; {}",
                self.folder.display(),
                atomic::remedy(&error)
            ))
        })?;
        self.prune();
        Ok(component)
    }

    fn name(&self, digest: &Digest) -> String {
        format!("{}-{}", digest.0, self.suffix())
    }

    /// Returns the suffix of the names of entries for this engine.
    fn suffix(&self) -> String {
        format!("{}{SUFFIX}", leafhost_grants::cut(&self.fingerprint, 16))
    }

    /// Removes entries of other engines, and the least recently used ones beyond [`BYTES`].
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let ours = self.suffix();
        let mut kept = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(&ours) {
                let metadata = entry.metadata();
                let size = metadata.as_ref().map_or(0, std::fs::Metadata::len);
                let used = metadata.and_then(|metadata| metadata.modified()).ok();
                kept.push((used, entry.path(), size));
            } else if name.ends_with(SUFFIX) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        kept.sort();
        let mut bytes = 0_u64;
        for (_, path, size) in kept.iter().rev() {
            bytes = bytes.saturating_add(*size);
            if bytes > BYTES {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

#[allow(
    unsafe_code,
    reason = "the engine cannot tell forged native code from its own; every caller has code that this agent's compiler \
              child wrote, either just now or, by its keyed digest, earlier"
)]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` is the unchanged output of `Engine::precompile_component` from the compiler child:
    // `keep` has it from the child's own pipe, `load` verified the keyed digest.
    unsafe { Component::deserialize(engine, code) }
}

/// Creates the refusal of a component whose native code this engine does not accept.
fn unusable(error: &wasmtime::Error) -> Refusal {
    let why = format!("{error:#}");
    // wasmtime has no error type for this case.
    let is_large = why.contains("pooling allocator");
    let why = clean(&why, 1024);
    if is_large {
        Refusal::of_file(format!(
            "the component has more instances, memories or tables than a handler may have: {why}; build it as one component"
        ))
    } else {
        Refusal::for_now(format!(
            "the compiler's output is not for this agent ({why}); install leafhost and leafhost-compile of one version together"
        ))
    }
}

/// Returns true if the error only prevents writing, so that existing entries can still be used.
fn is_of_the_disk(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(
        error.kind(),
        QuotaExceeded | ReadOnlyFilesystem | StorageFull
    )
}

/// Restricts the folder to this user. Replaces `key` with the key that is stored in the folder, or stores `key` there.
fn restrict(folder: &Path, key: &mut [u8; KEY]) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let metadata = std::fs::metadata(folder)?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let restricted = if metadata.mode() & 0o7777 == 0o700 {
        Ok(())
    } else {
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))
    };
    // Read before the error is returned: existing entries are used even if nothing can be written.
    let known = read_key(folder);
    *key = known.unwrap_or(*key);
    restricted?;
    // Removes the temporary files that a killed agent has left.
    atomic::open(folder)?;
    if known.is_none() {
        return atomic::write(folder, KEY_FILE, key);
    }
    match nix::unistd::access(folder, AccessFlags::W_OK) {
        Err(error @ Errno::EROFS) => Err(error.into()),
        // Other errors are reported when an entry is written.
        _ => Ok(()),
    }
}

/// Returns the remedy for a folder that could not be written to when the agent started.
fn restart_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => {
            "make it writable and restart the agent, or name another folder with --state-dir"
        }
        _ => "free some space and restart the agent",
    }
}

/// Returns the key if its file is complete and private to this user.
fn read_key(folder: &Path) -> Option<[u8; KEY]> {
    let mut file = File::open(folder.join(KEY_FILE)).ok()?;
    let metadata = file.metadata().ok()?;
    let user = nix::unistd::geteuid().as_raw();
    let private = metadata.uid() == user && metadata.mode() & 0o077 == 0;
    let mut key = Vec::new();
    file.read_to_end(&mut key).ok()?;
    key.try_into().ok().filter(|_| private)
}

#[cfg(test)]
mod tests;
