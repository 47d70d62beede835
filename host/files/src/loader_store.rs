//! The loader's state in the state folder: the last accepted versions of handler files, and the versions that are being loaded.
//!
//! A version is one small file with its grants and the digest of its bytes, which are in a separate file. The bytes are written first, so that bytes
//! and grants change together or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leafhost_core::handler::{Digest, Registration};
use leafhost_core::ports::{
    AcceptedVersion, LoaderStore, Owner, SourceFile, SourceProblem, SourceVersion,
};
use serde::{Deserialize, Serialize};

use crate::blocking::blocking;
use crate::handlers::MAX;
use crate::own_yaml;
use crate::regular::{self, Error};
use leafhost_disk::atomic;

mod loads;
mod owners;
use loads::Loads;

const VERSION: &str = ".yaml";
const BYTES: &str = "bytes";

/// File of a version.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grants: Option<String>,
    handler: String,
    number: u64,
}

/// Store of the loader.
#[derive(Debug)]
pub struct FileLoaderStore {
    /// Folder of the accepted versions.
    folder: PathBuf,
    /// Versions found when the store was opened.
    accepted: BTreeMap<String, AcceptedVersion>,
    state: PathBuf,
    loads: Loads,
}

impl FileLoaderStore {
    /// Reads the accepted versions in `folder`, and the versions being loaded from the state folder. Ignores damaged versions.
    pub async fn open(folder: PathBuf, state: PathBuf) -> io::Result<Self> {
        blocking(move || {
            Ok(Self {
                accepted: accepted(&folder)?,
                loads: Loads::open(state.clone()),
                state,
                folder,
            })
        })
        .await
    }

    fn write(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        files: &BTreeMap<String, SourceFile>,
    ) -> io::Result<()> {
        let bytes = self.folder.join(BYTES);
        let stored = atomic::open(&bytes)?;
        // A version that cannot be written does not stop the others.
        let mut written = Ok(());
        for (name, accepted) in accepted {
            let result = self.write_one(name, accepted, files.get(name));
            written = written.and(result);
        }
        for file in atomic::open(&self.folder)? {
            let name = file.strip_suffix(VERSION);
            if !name.is_some_and(|name| accepted.contains_key(name)) {
                atomic::remove(&self.folder, &file)?;
            }
        }
        // Until all versions are written, the files of earlier ones name these bytes.
        written?;
        let used: BTreeSet<_> = accepted
            .values()
            .map(|accepted| &accepted.version.digest.0)
            .collect();
        let mut unused = stored.iter().filter(|digest| !used.contains(digest));
        unused.try_for_each(|digest| atomic::remove(&bytes, digest))
    }

    fn write_one(
        &self,
        name: &str,
        accepted: &AcceptedVersion,
        file: Option<&SourceFile>,
    ) -> io::Result<()> {
        let AcceptedVersion {
            version,
            registration,
        } = accepted;
        if let Some(file) = file
            && !is_whole(&self.folder, &version.digest)?
        {
            let bytes = self.folder.join(BYTES);
            atomic::write(&bytes, &version.digest.0, &file.bytes)?;
        }
        let text = own_yaml::write(&Version {
            digest: version.digest.0.clone(),
            grants: version.grants.as_deref().map(str::to_owned),
            handler: registration.handler.clone(),
            number: registration.number,
        })?;
        let file = format!("{name}{VERSION}");
        let is_written =
            fs::read(self.folder.join(&file)).is_ok_and(|written| written == text.as_bytes());
        if is_written {
            return Ok(());
        }
        atomic::write(&self.folder, &file, text.as_bytes())
    }
}

impl LoaderStore for FileLoaderStore {
    fn accepted(&self) -> BTreeMap<String, AcceptedVersion> {
        self.accepted.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Option<SourceFile> {
        let path = self.folder.join(BYTES).join(&version.digest.0);
        let file = regular::open(&path, MAX).ok()?;
        let bytes = regular::read(&file, MAX).ok()?;
        (regular::digest_of(&bytes) == version.digest).then(|| SourceFile {
            name: name.to_owned(),
            bytes: bytes.into(),
            grants: version.grants.clone(),
        })
    }

    fn set_accepted(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        files: &BTreeMap<String, SourceFile>,
    ) -> Result<(), Box<SourceProblem>> {
        self.write(accepted, files).map_err(|error| {
            let message = format!(
                "cannot store the accepted handlers: they stay in use, but not after a restart with a broken file: {}: {error}",
                atomic::remedy(&error)
            );
            Box::new(SourceProblem::new(self.folder.display().to_string(), message))
        })
    }

    fn owners(&self) -> BTreeMap<String, Owner> {
        owners::read(&self.state)
    }

    fn set_owners(&self, owners: &BTreeMap<String, Owner>) -> Result<(), Box<SourceProblem>> {
        owners::write(&self.state, owners).map_err(|error| {
            let message = format!(
                "cannot store the owner of each handler's name: {}: {error}",
                atomic::remedy(&error)
            );
            Box::new(SourceProblem::new("the state folder", message))
        })
    }

    fn deaths(&self, version: &SourceVersion) -> u32 {
        self.loads.deaths(version)
    }

    fn set_loading(&self, versions: &[SourceVersion]) {
        if let Err(error) = self.loads.set(versions) {
            // The handlers stay in use even if this fails.
            tracing::debug!(%error, "cannot record what is being loaded");
        }
    }
}

/// Returns the versions whose bytes are complete.
fn accepted(folder: &Path) -> io::Result<BTreeMap<String, AcceptedVersion>> {
    atomic::open(&folder.join(BYTES))?;
    let mut accepted = BTreeMap::new();
    for file in atomic::open(folder)? {
        let Some(name) = file.strip_suffix(VERSION) else {
            continue;
        };
        let bytes = fs::read(folder.join(&file))?;
        let Ok(read) = own_yaml::read::<Version>(&bytes) else {
            continue;
        };
        let version = SourceVersion {
            digest: Digest(read.digest),
            grants: read.grants.map(Into::into),
        };
        if is_whole(folder, &version.digest)? {
            let registration = Registration {
                handler: read.handler,
                number: read.number,
            };
            let version = AcceptedVersion {
                version,
                registration,
            };
            accepted.insert(name.to_owned(), version);
        }
    }
    Ok(accepted)
}

/// Returns true if the bytes with that digest exist and are undamaged.
fn is_whole(folder: &Path, digest: &Digest) -> io::Result<bool> {
    let opened = regular::open(&folder.join(BYTES).join(&digest.0), MAX);
    match opened.and_then(|file| Ok(regular::digest(&file, MAX)?)) {
        Ok(found) => Ok(found == *digest),
        Err(Error::Refused(_)) => Ok(false),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(Error::Io(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests;
