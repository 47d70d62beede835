//! Folder of specs read by container runtimes: one file per kind, replaced atomically.
//!
//! The file name states the owner: `<vendor>-<class>_<owner>.json`, the format of the specification for generated
//! specs. An annotation would need version 0.6.0 of the specification, and a list kept elsewhere could be lost. Files
//! with such a name belong to the one process that holds the folder; all others are never read, replaced or removed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::names::{class_problem, vendor_problem};
use crate::spec::{InvalidSpec, Spec, check};

mod lock;

pub use lock::SpecLock;

/// Size of the buffers that compare and write files, in bytes.
const PIECE: usize = 64 << 10;
/// Suffix of temporary files, which no runtime reads.
const TEMPORARY: &str = ".tmp";
/// Error number: file descriptors of the machine exhausted.
const ENFILE: i32 = 23;
/// Error number: file descriptors of the process exhausted.
const EMFILE: i32 = 24;

/// Error of writing, reading or removing a spec.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A runtime would reject the spec, or it does not fit into the folder.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// Another process uses the folder.
    #[error(
        "the folder of CDI specs {} is in use by the agent with pid {pid}; stop that agent, or name another folder with --cdi-dir",
        directory.display()
    )]
    InUse {
        /// Path of the folder.
        directory: PathBuf,
        /// Pid of the other process, if it is known.
        pid: String,
    },
    /// The file system returned an error.
    #[error("cannot {action} {}: {remedy}", path.display())]
    Io {
        /// Attempted action, such as `write`, `read`, `lock` or `create folder`.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Remedy for the operator.
        remedy: &'static str,
        /// Underlying error.
        #[source]
        source: io::Error,
    },
}

/// Users whose container runtimes read the specs, which contain the variables of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// All users: podman without root reads the folder as its caller.
    Everybody,
    /// Root, which a node's runtime runs as, and root's group.
    Root,
}

impl Readers {
    /// Returns the mode of spec files.
    fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o644,
            Self::Root => 0o640,
        }
    }
}

/// Folder of specs for the files of one vendor and owner. Only one process may use it at a time. All methods block.
#[derive(Debug, Clone)]
pub struct SpecDir {
    directory: PathBuf,
    vendor: String,
    owner: String,
    readers: Readers,
}

impl SpecDir {
    /// Creates a handle to the folder, which need not exist. `owner` names the program that owns the files, in letters
    /// and digits.
    pub fn new(
        directory: impl Into<PathBuf>,
        vendor: &str,
        owner: &str,
        readers: Readers,
    ) -> Result<Self, InvalidSpec> {
        check("vendor", vendor, vendor_problem(vendor))?;
        let is_plain = !owner.is_empty() && owner.chars().all(|c| c.is_ascii_alphanumeric());
        let problem = (!is_plain).then_some("must have only letters and digits");
        check("owner", owner, problem)?;
        Ok(Self {
            directory: directory.into(),
            vendor: vendor.to_owned(),
            owner: owner.to_owned(),
            readers,
        })
    }

    /// Returns the path of the folder.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of a class's file.
    pub fn path(&self, class: &str) -> PathBuf {
        let (vendor, owner) = (&self.vendor, &self.owner);
        self.directory
            .join(format!("{vendor}-{class}_{owner}.json"))
    }

    /// Creates the folder if missing.
    pub fn create(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.directory)
            .map_err(|source| failed("create folder", &self.directory, source))
    }

    /// Returns the classes for which the owner has a file. Removes temporary files of interrupted writes. A missing
    /// folder counts as empty.
    pub fn classes(&self) -> Result<BTreeSet<String>, Error> {
        let mut classes = BTreeSet::new();
        let fail = |source| failed("read", &self.directory, source);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(classes),
            entries => entries.map_err(fail)?,
        };
        for entry in entries {
            let path = entry.map_err(fail)?.path();
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

    /// Reads the spec of a class; returns `None` if the file is missing or holds no such spec.
    pub fn read(&self, class: &str) -> Result<Option<Spec>, Error> {
        let path = self.path(class);
        let fail = |source| failed("read", &path, source);
        match fs::symlink_metadata(&path) {
            // Opening a pipe would block until the other end is opened.
            Ok(found) if !found.is_file() => return Ok(None),
            Ok(_) => {}
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(fail(error)),
        }
        let bytes = fs::read(&path).map_err(fail)?;
        let spec = serde_json::from_slice(&bytes).ok();
        Ok(spec.filter(|spec: &Spec| spec.kind == format!("{}/{class}", self.vendor)))
    }

    /// Writes the spec to its file. The file is complete and durable on return, and no reader ever sees a part of it. Returns false if the
    /// file already had this content and mode, so that nothing was written.
    pub fn write(&self, spec: &Spec) -> Result<bool, Error> {
        spec.validate()?;
        let (vendor, class) = spec.vendor_and_class()?;
        if vendor != self.vendor {
            let (kind, vendor) = (&spec.kind, &self.vendor);
            return Err(InvalidSpec(format!("kind {kind} is not of vendor {vendor}")).into());
        }
        let path = self.path(class);
        let has_mode = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::InvalidFilename => {
                return Err(failed("write", &path, error));
            }
            there => there.is_ok_and(|there| {
                there.is_file() && there.permissions().mode() & 0o777 == self.readers.mode()
            }),
        };
        if has_mode && holds(&path, spec) {
            return Ok(false);
        }
        self.create()?;
        self.replace(spec, &path)?;
        Ok(true)
    }

    /// Removes the file of a class. Returns true if it existed.
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

    /// Returns the class in the name of one of the owner's files.
    fn class_of<'a>(&self, file_name: &'a str) -> Option<&'a str> {
        file_name
            .strip_prefix(self.vendor.as_str())?
            .strip_prefix('-')?
            .strip_suffix(".json")?
            .strip_suffix(self.owner.as_str())?
            .strip_suffix('_')
            .filter(|class| class_problem(class).is_none())
    }

    fn temporary(&self) -> Result<tempfile::NamedTempFile, Error> {
        tempfile::Builder::new()
            .prefix(&format!(".{}-", self.vendor))
            .suffix(&format!("_{}{TEMPORARY}", self.owner))
            // Opened here, since tempfile's errors hide the kernel's error number and contain a different name each
            // time.
            .make_in(&self.directory, |path| {
                let mut options = fs::OpenOptions::new();
                options.write(true).create_new(true).mode(0o600).open(path)
            })
            .map_err(|source| failed("write into", &self.directory, source))
    }

    fn replace(&self, spec: &Spec, path: &Path) -> Result<(), Error> {
        let mut file = self.temporary()?;
        let mut writer = BufWriter::with_capacity(PIECE, file.as_file_mut());
        // Strings and lists can always be encoded: any error is that of the file.
        spec.write_json(&mut writer)
            .map_err(|error| failed("write", path, error.into()))?;
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

/// Returns true if the file does not exist. No file can have a name that is too long.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidFilename
    )
}

/// Returns true if the file holds exactly the encoded spec. Neither is ever in memory as a whole.
fn holds(path: &Path, spec: &Spec) -> bool {
    let Ok(file) = fs::File::open(path) else {
        return false;
    };
    let mut same = BufWriter::with_capacity(PIECE, Same(BufReader::with_capacity(PIECE, file)));
    let is_same = spec.write_json(&mut same).is_ok() && same.flush().is_ok();
    let mut more = [0];
    is_same && matches!(same.get_mut().0.read(&mut more), Ok(0))
}

/// Writer that fails unless the written bytes equal those of the reader.
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
            "no space is left; free some; retrying"
        }
        ErrorKind::InvalidFilename => {
            "the name is too long for the file system; choose a shorter name, or name another folder with --cdi-dir"
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "it, or a part of its path, is not a folder; name another folder with --cdi-dir"
        }
        _ if matches!(source.raw_os_error(), Some(ENFILE | EMFILE)) => {
            "too many files are open; raise the agent's limit (ulimit -n, LimitNOFILE); retrying"
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
