//! The folder of specs that container runtimes read: one file for each kind, replaced as a whole.
//!
//! The name of a file says whose it is: `<vendor>-<class>_<owner>.json`, the form the specification has for generated specs.
//! An annotation would need version 0.6.0 of the specification, and a list kept elsewhere could be lost. Files with such a
//! name belong to the one process that holds the folder; all others are never read, replaced or removed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::names::{class_problem, vendor_problem};
use crate::spec::{InvalidSpec, Spec};

mod lock;

pub use lock::SpecLock;

/// How many bytes are compared at once.
const PIECE: usize = 64 << 10;
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
    /// Another process uses the folder.
    #[error(
        "the folder of CDI specs {} is in use by the agent with pid {pid}; stop that one, or name another folder with --cdi-dir",
        directory.display()
    )]
    InUse {
        /// The folder.
        directory: PathBuf,
        /// The other process, as far as it said so.
        pid: String,
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

/// The users whose container runtimes read the specs. They say which variables workloads get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Each user: podman without root reads the folder as who calls it.
    Everybody,
    /// Root, as whom a node's runtime runs, and root's group.
    Root,
}

impl Readers {
    /// The mode of spec files.
    fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o644,
            Self::Root => 0o640,
        }
    }
}

/// A folder of specs, for the files of one vendor and owner. Only one process may use it at a time. All methods block.
#[derive(Debug, Clone)]
pub struct SpecDir {
    directory: PathBuf,
    vendor: String,
    owner: String,
    readers: Readers,
}

impl SpecDir {
    /// Names the folder; it need not exist. `owner` is the program whose files they are, in letters and digits.
    pub fn new(
        directory: impl Into<PathBuf>,
        vendor: &str,
        owner: &str,
        readers: Readers,
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
            readers,
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
            readers: _,
        } = self;
        directory.join(format!("{vendor}-{class}_{owner}.json"))
    }

    /// Makes the folder if need be.
    pub fn create(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.directory)
            .map_err(|source| failed("create folder", &self.directory, source))
    }

    /// Returns the classes that the owner has a file of. Removes the temporary file of a write that was interrupted. A missing folder
    /// counts as empty.
    pub fn classes(&self) -> Result<BTreeSet<String>, Error> {
        let mut classes = BTreeSet::new();
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
            classes.extend(self.class_of(name).map(str::to_owned));
        }
        Ok(classes)
    }

    /// Reads the spec of a class; nothing if there is no file, or one that holds no such spec.
    pub fn read(&self, class: &str) -> Result<Option<Spec>, Error> {
        let path = self.path(class);
        let fail = |source| failed("read", &path, source);
        match fs::symlink_metadata(&path) {
            // To open a pipe is to wait for its other end.
            Ok(found) if !found.is_file() => return Ok(None),
            Ok(_) => {}
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(fail(error)),
        }
        let bytes = fs::read(&path).map_err(fail)?;
        let spec = Spec::from_json(&bytes).ok();
        Ok(spec.filter(|spec| spec.kind == format!("{}/{class}", self.vendor)))
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
        let path = self.path(class);
        let length = path.file_name().map_or(0, OsStr::len);
        if length > MAX_NAME {
            return Err(Error::LongClass {
                class: class.to_owned(),
                length,
            });
        }
        let written = match fs::symlink_metadata(&path) {
            Ok(there) if there.is_file() => {
                let has_mode = there.permissions().mode() & 0o777 == self.readers.mode();
                if has_mode && holds(&path, spec) {
                    return Ok(Written::Unchanged);
                }
                Written::Replaced
            }
            Ok(_) => Written::Replaced,
            Err(_) => Written::Created,
        };
        self.create()?;
        self.replace(spec, &path)?;
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
            Err(error) if is_absent(&error) => Ok(false),
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

    fn replace(&self, spec: &Spec, path: &Path) -> Result<(), Error> {
        let mut file = self.temporary()?;
        let mut writer = BufWriter::with_capacity(PIECE, file.as_file_mut());
        spec.write_json(&mut writer).map_err(|source| {
            if source.is_io() {
                failed("write", path, source.into())
            } else {
                let kind = spec.kind.clone();
                Error::Encode { kind, source }
            }
        })?;
        let mode = fs::Permissions::from_mode(self.readers.mode());
        let flushed = writer.flush();
        drop(writer);
        flushed
            .and_then(|()| file.as_file().set_permissions(mode))
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

/// Whether there is no such file. A name that is too long is no file's.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidFilename
    )
}

/// Whether the file holds the spec as it would be written. Neither is ever in memory as a whole.
fn holds(path: &Path, spec: &Spec) -> bool {
    let Ok(file) = fs::File::open(path) else {
        return false;
    };
    let mut same = BufWriter::with_capacity(PIECE, Same(BufReader::with_capacity(PIECE, file)));
    let is_same = spec.write_json(&mut same).is_ok() && same.flush().is_ok();
    let mut more = [0];
    is_same && matches!(same.get_mut().0.read(&mut more), Ok(0))
}

/// Takes what a file has, and nothing else.
struct Same<R>(R);

impl<R: Read> Write for Same<R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = [0; 4096];
        let length = bytes.len().min(held.len());
        let (bytes, _) = bytes.split_at(length);
        let (held, _) = held.split_at_mut(length);
        self.0.read_exact(held)?;
        if bytes == held {
            Ok(length)
        } else {
            Err(ErrorKind::InvalidData.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
