//! The folder of specs that container runtimes read: one file for each kind, replaced as a whole.
//!
//! The name of a file says whose it is: `<vendor>-<class>_<owner>.json`, the form the specification has for generated specs.
//! An annotation would need version 0.6.0 of the specification, and a list kept elsewhere could be lost. Files with such a
//! name belong to the one process that uses the folder; all others are never read, replaced or removed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::names::{class_problem, vendor_problem};
use crate::spec::{InvalidSpec, Spec};

/// The mode of spec files: every user's runtime reads them.
const MODE: u32 = 0o644;
/// How the names of temporary files end. No runtime reads them.
const TEMPORARY: &str = ".tmp";
/// The most bytes of a file's name.
const MAX_NAME: usize = 255;
/// The machine has no more file descriptors.
const ENFILE: i32 = 23;
/// The process has no more file descriptors.
const EMFILE: i32 = 24;

/// Why a spec was not written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A runtime would refuse the spec.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// The spec is of another vendor than the folder was opened for.
    #[error("kind {kind} is not of vendor {vendor}")]
    OtherVendor {
        /// The kind.
        kind: String,
        /// The vendor.
        vendor: String,
    },
    /// A file system has no room for the name of its file.
    #[error(
        "cannot write a CDI spec for class {class}: the name of its file would be {length} bytes long, {MAX_NAME} are possible; choose a shorter name"
    )]
    LongClass {
        /// The class.
        class: String,
        /// How long the name would be.
        length: usize,
    },
    /// The file system refused.
    #[error("cannot {action} {}: {remedy}", path.display())]
    Io {
        /// What was attempted: `write`, `read`, `remove`, `create folder`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What to do about it.
        remedy: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The spec has no JSON form.
    #[error("cannot encode the spec of kind {kind}")]
    Encode {
        /// The kind.
        kind: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
}

/// What a write changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The file is new.
    Created,
    /// The file had other content.
    Replaced,
    /// The file had this content already; nothing was written.
    Unchanged,
}

/// What the owner has in the folder.
#[derive(Debug, Default)]
pub struct Published {
    /// By class.
    pub specs: BTreeMap<String, Spec>,
    /// Classes whose file is no spec of that class, and why: to be written again, or removed.
    pub damaged: BTreeMap<String, String>,
}

/// A folder of specs, for the files of one vendor and owner. Only one process may use it at a time. All methods block.
#[derive(Debug, Clone)]
pub struct SpecDir {
    directory: PathBuf,
    vendor: String,
    owner: String,
}

impl SpecDir {
    /// Names the folder; it need not exist. `owner` is the program whose files they are, in letters and digits.
    pub fn new(
        directory: impl Into<PathBuf>,
        vendor: &str,
        owner: &str,
    ) -> Result<Self, InvalidSpec> {
        let invalid = |part, text: &str, problem| InvalidSpec::Name {
            part,
            text: text.to_owned(),
            problem,
        };
        if let Some(problem) = vendor_problem(vendor) {
            return Err(invalid("vendor", vendor, problem));
        }
        if owner.is_empty() || !owner.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(invalid("owner", owner, "is not letters and digits"));
        }
        Ok(Self {
            directory: directory.into(),
            vendor: vendor.to_owned(),
            owner: owner.to_owned(),
        })
    }

    /// The folder.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of a class.
    pub fn path(&self, class: &str) -> PathBuf {
        let Self {
            directory,
            vendor,
            owner,
        } = self;
        directory.join(format!("{vendor}-{class}_{owner}.json"))
    }

    /// Makes the folder if need be.
    pub fn create(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.directory)
            .map_err(|source| failed("create folder", &self.directory, source))
    }

    /// Reads the owner's files. Removes the temporary file of a write that was interrupted. A missing folder counts as empty.
    pub fn read(&self) -> Result<Published, Error> {
        let mut published = Published::default();
        for path in self.entries()? {
            let Some(name) = path.file_name().and_then(OsStr::to_str) else {
                continue;
            };
            if name.starts_with(&format!(".{}-", self.vendor))
                && name.ends_with(&format!("_{}{TEMPORARY}", self.owner))
            {
                fs::remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                continue;
            }
            let Some(class) = self.class_of(name) else {
                continue;
            };
            match self.spec(class, &path)? {
                Ok(spec) => drop(published.specs.insert(class.to_owned(), spec)),
                Err(why) => drop(published.damaged.insert(class.to_owned(), why)),
            }
        }
        Ok(published)
    }

    /// Writes the spec to its file. It is complete and durable when this returns, and no reader ever sees a part of it.
    pub fn write(&self, spec: &Spec) -> Result<Written, Error> {
        spec.validate()?;
        let (vendor, class) = spec.vendor_and_class()?;
        if vendor != self.vendor {
            return Err(Error::OtherVendor {
                kind: spec.kind.clone(),
                vendor: self.vendor.clone(),
            });
        }
        let bytes = spec.to_json().map_err(|source| Error::Encode {
            kind: spec.kind.clone(),
            source,
        })?;
        let path = self.path(class);
        let length = path.file_name().map_or(0, OsStr::len);
        if length > MAX_NAME {
            return Err(Error::LongClass {
                class: class.to_owned(),
                length,
            });
        }
        let written = match fs::symlink_metadata(&path) {
            Ok(there) if there.is_file() => match fs::read(&path) {
                Ok(old) if old == bytes => return Ok(Written::Unchanged),
                _ => Written::Replaced,
            },
            Ok(_) => Written::Replaced,
            Err(_) => Written::Created,
        };
        self.create()?;
        self.replace(&bytes, &path)?;
        Ok(written)
    }

    /// Removes the file of a class. Returns whether there was one.
    pub fn remove(&self, class: &str) -> Result<bool, Error> {
        let path = self.path(class);
        match fs::remove_file(&path) {
            Ok(()) => {
                self.sync()?;
                Ok(true)
            }
            // A name that is too long is no file's.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::InvalidFilename
                ) =>
            {
                Ok(false)
            }
            Err(source) => Err(failed("remove", &path, source)),
        }
    }

    /// The class in the name of a file of the owner.
    fn class_of<'a>(&self, file_name: &'a str) -> Option<&'a str> {
        file_name
            .strip_prefix(self.vendor.as_str())?
            .strip_prefix('-')?
            .strip_suffix(".json")?
            .strip_suffix(self.owner.as_str())?
            .strip_suffix('_')
            .filter(|class| class_problem(class).is_none())
    }

    /// The spec in the file of a class, or why it holds none of that class.
    fn spec(&self, class: &str, path: &Path) -> Result<Result<Spec, String>, Error> {
        let fail = |source| failed("read", path, source);
        // To open a pipe is to wait for its other end.
        if !fs::symlink_metadata(path).map_err(fail)?.is_file() {
            return Ok(Err("it is not a regular file".to_owned()));
        }
        let bytes = fs::read(path).map_err(fail)?;
        Ok(match Spec::from_json(&bytes) {
            Ok(spec) if spec.kind == format!("{}/{class}", self.vendor) => Ok(spec),
            Ok(_) => Err("it holds another kind".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn entries(&self) -> Result<Vec<PathBuf>, Error> {
        let fail = |source| failed("read", &self.directory, source);
        let mut paths = match fs::read_dir(&self.directory) {
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<io::Result<Vec<_>>>()
                .map_err(fail)?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(fail(error)),
        };
        paths.sort();
        Ok(paths)
    }

    fn temporary(&self) -> Result<tempfile::NamedTempFile, Error> {
        tempfile::Builder::new()
            .prefix(&format!(".{}-", self.vendor))
            .suffix(&format!("_{}{TEMPORARY}", self.owner))
            // Opened here, since tempfile's errors hide the kernel's number and differ by the name each time.
            .make_in(&self.directory, |path| {
                let mut options = fs::OpenOptions::new();
                options.write(true).create_new(true).mode(0o600).open(path)
            })
            .map_err(|source| failed("write into", &self.directory, source))
    }

    fn replace(&self, bytes: &[u8], path: &Path) -> Result<(), Error> {
        let mut file = self.temporary()?;
        file.as_file_mut()
            .write_all(bytes)
            .and_then(|()| {
                file.as_file()
                    .set_permissions(fs::Permissions::from_mode(MODE))
            })
            .and_then(|()| file.as_file().sync_all())
            .map_err(|source| failed("write", path, source))?;
        file.persist(path)
            .map_err(|error| failed("write", path, error.error))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), Error> {
        fs::File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| failed("write", &self.directory, source))
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> Error {
    let remedy = match source.kind() {
        ErrorKind::PermissionDenied => {
            "permission denied; run as root, or name a folder of your own with --cdi-dir"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; name another folder with --cdi-dir"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "no space is left; free some, it is tried again"
        }
        ErrorKind::InvalidFilename => {
            "the folder's file system knows no such long names; name another one with --cdi-dir"
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "it, or a part of its path, is not a folder; name another one with --cdi-dir"
        }
        _ if matches!(source.raw_os_error(), Some(ENFILE | EMFILE)) => {
            "too many files are open; raise the agent's limit (ulimit -n, LimitNOFILE), it is tried again"
        }
        _ => "see the cause; another folder can be named with --cdi-dir",
    };
    Error::Io {
        action,
        path: path.to_owned(),
        remedy,
        source,
    }
}

#[cfg(test)]
mod tests;
