//! The folder of specs that container runtimes read: one file a kind, replaced as a whole.
//!
//! Whose a file is stands in its name, `<vendor>-<class>_<owner>.json`, the form the specification has for generated
//! specs: an annotation would need version 0.6.0, and a list kept elsewhere could be lost. A file under that name which
//! holds another kind, or is no regular file, is somebody else's all the same and is never touched.
//! A file of the owner that is damaged, or larger than any that is written here, is replaced. A class that is too long for a file's name stands in it shortened, with a `~` that no
//! class has; which one it is then stands in the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use blake2::digest::consts::U8;
use blake2::{Blake2b, Digest as _};
use serde::Deserialize;

use crate::names::{class_problem, vendor_problem};
use crate::spec::{InvalidSpec, Spec};

mod hold;

pub use hold::Hold;

/// The mode of spec files: every user's runtime reads them.
const MODE: u32 = 0o644;
/// What names of files that are being written end with: no runtime reads them.
const TEMPORARY: &str = ".tmp";
/// The most bytes of a file that is read: none that is written here has nearly as many.
const MAX_FILE: u64 = 64 << 20;
/// The most characters of a kind that are repeated.
const MAX_TOLD: usize = 128;
/// The most bytes of a file's name.
const MAX_NAME: usize = 255;
/// How much of a class that is too long stands in the name of its file, in bytes.
const HEAD: usize = 180;
/// What follows it, before the digest; no class has it.
const SHORTENED: char = '~';
/// Opening waits for nobody.
const O_NONBLOCK: i32 = 0o4000;
/// The machine has no more open files to give.
const ENFILE: i32 = 23;
/// The process may not open more files.
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
    /// The file's name is taken by something that was not written here.
    #[error("will not replace {}: it {what}; move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that is known.
        what: String,
    },
    /// Another file of the folder defines one of the devices. Runtimes drop a device that two files define, so
    /// nothing is written.
    #[error("device {device} is also defined in {}; remove it there", path.display())]
    Conflict {
        /// `vendor/class=name`.
        device: String,
        /// The other file.
        path: PathBuf,
    },
    /// Another process keeps its specs there.
    #[error(
        "the folder {} is in use by another agent; stop that one, or name another folder with --cdi-dir",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
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

/// What came of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The file is new.
    Created,
    /// The file had other content.
    Replaced,
    /// The file was like this already; nothing was written.
    Unchanged,
}

/// What the owner has in the folder.
#[derive(Debug, Default)]
pub struct Published {
    /// By class.
    pub specs: BTreeMap<String, Spec>,
    /// Classes whose file cannot be read as one of ours, and why: to be written again, or removed.
    pub damaged: BTreeMap<String, String>,
    /// Files with a name of ours that are somebody else's.
    pub foreign: Vec<Error>,
}

/// A folder of specs, for the files of one vendor and owner. All methods block.
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
        let mut name = format!("{vendor}-{class}_{owner}.json");
        if let Some(head) = class.get(..HEAD).filter(|_| name.len() > MAX_NAME) {
            let digest = digest(class);
            name = format!("{vendor}-{head}{SHORTENED}{digest}_{owner}.json");
        }
        directory.join(name)
    }

    /// Makes the folder if need be.
    pub fn create(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.directory)
            .map_err(|source| failed("create folder", &self.directory, source))
    }

    /// What is there. Clears what a crash during a write has left. A missing folder is an empty one.
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
            let Some(stem) = self.stem_of(name) else {
                continue;
            };
            let class = match self.class_of(stem, &path)? {
                Named::Class(class) => class,
                Named::Foreign(what) => {
                    published.foreign.push(Error::Foreign { path, what });
                    continue;
                }
                // Nobody can read it; where it is wanted it is written again.
                Named::Nothing => {
                    fs::remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                    continue;
                }
            };
            let class = class.as_ref();
            match self.held(class)? {
                Held::Nothing => {}
                Held::Foreign(what) => published.foreign.push(Error::Foreign { path, what }),
                Held::Ours(bytes) => match Spec::from_json(&bytes) {
                    Ok(spec) => drop(published.specs.insert(class.to_owned(), spec)),
                    Err(error) => {
                        let why = error.to_string();
                        published.damaged.insert(class.to_owned(), why);
                    }
                },
                Held::TooLarge => {
                    let why = format!("it has more than {} MiB", MAX_FILE >> 20);
                    published.damaged.insert(class.to_owned(), why);
                }
            }
        }
        Ok(published)
    }

    /// Puts the spec into its file: complete and durable when this returns, and no reader ever sees a part of it.
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
        let written = match self.held(class)? {
            Held::Foreign(what) => return Err(Error::Foreign { path, what }),
            Held::Ours(old) if old == bytes => Written::Unchanged,
            Held::Ours(_) | Held::TooLarge => Written::Replaced,
            Held::Nothing => Written::Created,
        };
        self.check_conflict(spec, &path)?;
        if written != Written::Unchanged {
            self.create()?;
            self.replace(&bytes, &path)?;
        }
        Ok(written)
    }

    /// Removes the file of a class, if it is ours. Returns whether there was one.
    pub fn remove(&self, class: &str) -> Result<bool, Error> {
        let path = self.path(class);
        match self.held(class)? {
            Held::Nothing => Ok(false),
            Held::Foreign(what) => Err(Error::Foreign { path, what }),
            Held::Ours(_) | Held::TooLarge => {
                fs::remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                self.sync()?;
                Ok(true)
            }
        }
    }

    /// What stands for the class in the name of a file of ours.
    fn stem_of<'a>(&self, file_name: &'a str) -> Option<&'a str> {
        file_name
            .strip_prefix(self.vendor.as_str())?
            .strip_prefix('-')?
            .strip_suffix(".json")?
            .strip_suffix(self.owner.as_str())?
            .strip_suffix('_')
            .filter(|stem| match stem.split_once(SHORTENED) {
                None => class_problem(stem).is_none(),
                Some((head, _)) => head.len() == HEAD,
            })
    }

    /// The class of a file of ours: a shortened one stands in the file.
    fn class_of<'a>(&self, stem: &'a str, path: &Path) -> Result<Named<'a>, Error> {
        if !stem.contains(SHORTENED) {
            return Ok(Named::Class(stem.into()));
        }
        let fail = |source| failed("read", path, source);
        if !fs::symlink_metadata(path).map_err(fail)?.is_file() {
            return Ok(Named::Foreign("is not a regular file".to_owned()));
        }
        let bytes = read(path).map_err(fail)?;
        let outline = bytes.and_then(|bytes| serde_json::from_slice::<Outline>(&bytes).ok());
        let Some(outline) = outline else {
            return Ok(Named::Nothing);
        };
        let class = outline
            .kind
            .strip_prefix(self.vendor.as_str())
            .and_then(|rest| rest.strip_prefix('/'))
            .filter(|class| self.path(class) == path);
        Ok(match class {
            Some(class) => Named::Class(class.to_owned().into()),
            None => Named::Foreign(outline.told()),
        })
    }

    fn held(&self, class: &str) -> Result<Held, Error> {
        let path = self.path(class);
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Held::Nothing),
            Err(source) => return Err(failed("read", &path, source)),
        };
        if !metadata.is_file() {
            return Ok(Held::Foreign("is not a regular file".to_owned()));
        }
        let bytes = read(&path).map_err(|source| failed("read", &path, source))?;
        let Some(bytes) = bytes else {
            return Ok(Held::TooLarge);
        };
        let kind = format!("{}/{class}", self.vendor);
        Ok(match serde_json::from_slice::<Outline>(&bytes) {
            Ok(other) if other.kind != kind => Held::Foreign(other.told()),
            _ => Held::Ours(bytes),
        })
    }

    /// Looks through the files of others for a device of `spec`. What cannot be read, and what is larger than any spec, is passed over.
    fn check_conflict(&self, spec: &Spec, own: &Path) -> Result<(), Error> {
        let names: BTreeSet<&str> = spec.devices.iter().map(|d| d.name.as_str()).collect();
        for path in self.entries()? {
            let of_others = path != own
                && path
                    .file_name()
                    .and_then(OsStr::to_str)
                    .is_some_and(|name| self.stem_of(name).is_none());
            let Some(outline) = of_others.then(|| Outline::read(&path)).flatten() else {
                continue;
            };
            if outline.kind != spec.kind {
                continue;
            }
            if let Some(device) = outline
                .devices
                .iter()
                .find(|device| names.contains(device.name.as_str()))
            {
                return Err(Error::Conflict {
                    device: format!("{}={}", spec.kind, device.name),
                    path,
                });
            }
        }
        Ok(())
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

/// Which class a file of ours is of.
enum Named<'a> {
    Class(Cow<'a, str>),
    Foreign(String),
    Nothing,
}

/// What lies under a name of ours.
enum Held {
    Nothing,
    Ours(Vec<u8>),
    /// By its name ours; larger than any we write.
    TooLarge,
    Foreign(String),
}

/// The part of anybody's spec that tells which devices it defines.
#[derive(Deserialize)]
struct Outline {
    kind: String,
    #[serde(default)]
    devices: Vec<OutlineDevice>,
}

#[derive(Deserialize)]
struct OutlineDevice {
    name: String,
}

impl Outline {
    /// What it is, for people.
    fn told(&self) -> String {
        let kind: String = self.kind.chars().take(MAX_TOLD).collect();
        format!("holds kind {kind:?}")
    }

    /// Only of a regular file, perhaps by a link: opening another may wait, and reading it never end.
    fn read(path: &Path) -> Option<Self> {
        if !fs::metadata(path).ok()?.is_file() {
            return None;
        }
        match path.extension()?.to_str()? {
            "json" => serde_json::from_slice(&read(path).ok()??).ok(),
            "yaml" => serde_yaml_ng::from_slice(&read(path).ok()??).ok(),
            _ => None,
        }
    }
}

/// What a regular file holds; nothing if it is larger than any spec. It may be another by now than the one that was looked at.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    if metadata.len() > MAX_FILE {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    let length = file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(u64::try_from(length)
        .is_ok_and(|length| length <= MAX_FILE)
        .then_some(bytes))
}

/// Sixteen hex digits of BLAKE2b.
fn digest(class: &str) -> String {
    let digest = Blake2b::<U8>::digest(class);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
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
