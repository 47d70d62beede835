//! Scans a folder, and reads single files of it. Blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::handler::Digest;
use leafhost_core::text;

use crate::events::is_missing;
use crate::folder::Content;
use crate::folder::stray::{Judge, PUBLIC, Stray};
use crate::regular::{self, Error};
use crate::settle::Stamp;
use leafhost_disk::atomic;

/// Maximum number of files named in one message.
const MAX_NAMED: usize = 5;

/// Rules for the files of a folder.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Kinds of files by suffix; the first match applies.
    pub kinds: &'static [Kind],
    /// True if the files are in subfolders, not in the folder itself.
    pub nested: bool,
    /// Maximum number of files; the others are reported as a problem.
    pub max_files: usize,
    /// Judge of the files that are not read; `None` if no notes about them are wanted, as in a nested folder.
    pub stray: Option<Judge>,
    /// True if the files are secrets, which not every user should be able to read.
    pub secret: bool,
}

/// Files with a common suffix.
#[derive(Debug)]
pub struct Kind {
    /// Suffix of their names; empty for any name.
    pub suffix: &'static str,
    /// Maximum size of a file, in bytes.
    pub max: u64,
    /// True if a link is read, provided that it stays inside the folder.
    pub links: bool,
    /// True if the bytes are held in memory; otherwise only their digest is, and the bytes can be fetched.
    pub held: bool,
}

impl Kind {
    /// Creates a kind of files that are held, and read through links.
    pub const fn held(suffix: &'static str, max: u64) -> Self {
        Self {
            suffix,
            max,
            links: true,
            held: true,
        }
    }
}

impl Rules {
    /// Returns the kind of a file; `None` for a file that is not read.
    pub fn kind(&self, name: &str) -> Option<&'static Kind> {
        self.kind_of(OsStr::new(name))
            .filter(|_| is_printable(name))
    }

    /// Returns true if a file would be read if its name were printable.
    pub fn has_suffix(&self, name: &OsStr) -> bool {
        self.kind_of(name).is_some()
    }

    /// Returns the reason why a file or folder is not read although it seems to be meant for the folder.
    pub fn why_stray(&self, name: &str, is_folder: bool) -> Option<&'static str> {
        let judge = self.stray?;
        if self.has_suffix(OsStr::new(name)) || !is_printable(name) {
            return None;
        }
        judge(name, is_folder)
    }

    /// Returns the kind of a file by its suffix, even if its name is not printable: none for a name that begins with a dot;
    /// `SUBFOLDER/NAME` in a nested folder.
    fn kind_of(&self, name: &OsStr) -> Option<&'static Kind> {
        let mut parts = name.as_bytes().split(|byte| *byte == b'/');
        let folder = if self.nested { parts.next() } else { None };
        let base = parts.next()?;
        let hidden = folder
            .into_iter()
            .chain([base])
            .any(|part| part.starts_with(b"."));
        if hidden || parts.next().is_some() {
            return None;
        }
        let fits = |suffix: &str| base.len() > suffix.len() && base.ends_with(suffix.as_bytes());
        self.kinds.iter().find(|kind| fits(kind.suffix))
    }
}

/// Returns true if logs and tables can show the name unchanged.
fn is_printable(name: &str) -> bool {
    !name.contains(text::is_unprintable)
}

/// Result of scanning a folder.
#[derive(Debug, Default)]
pub struct Scan {
    /// True if the folder exists.
    pub exists: bool,
    /// True if the folder could be read; a missing folder counts as empty.
    pub readable: bool,
    /// File system of the folder.
    pub device: Option<u64>,
    /// Files that are read.
    pub found: BTreeMap<String, Stamp>,
    /// Files beyond the maximum number.
    pub beyond: BTreeSet<String>,
    /// Subfolders, if files are read from them.
    pub subfolders: BTreeSet<PathBuf>,
    /// Subfolders that could not be read; the last scan of them stays valid.
    pub unreadable: Vec<String>,
    /// Problems of files and folders that could not be read.
    pub problems: Vec<String>,
    /// Files that an operator should know about.
    pub stray: Stray,
}

impl Scan {
    /// Scans a folder.
    pub fn of(path: &Path, rules: &Rules) -> Self {
        let mut scan = Self {
            readable: true,
            ..Self::default()
        };
        let entries = match entries(path) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return scan,
            Err(error) => {
                scan.exists = true;
                scan.readable = false;
                scan.problems.push(format!(
                    "cannot be read, its last content stays in use: {}",
                    why(&error)
                ));
                return scan;
            }
        };
        scan.exists = true;
        scan.device = fs::metadata(path).ok().map(|metadata| metadata.dev());
        let mut unprintable = Vec::new();
        for (name, is_folder) in entries {
            if !rules.nested {
                if let Some(shown) = name.to_str()
                    && let Some(why) = rules.why_stray(shown, is_folder)
                {
                    scan.stray.add(shown, why);
                }
                scan.add(path, name, rules, &mut unprintable);
                continue;
            }
            if !is_folder || name.as_bytes().starts_with(b".") {
                continue;
            }
            let Some(name) = name.to_str().filter(|name| is_printable(name)) else {
                unprintable.push(name);
                continue;
            };
            let folder = path.join(name);
            match self::entries(&folder) {
                Ok(entries) => {
                    for (file, _) in entries {
                        let mut inner = OsString::from(format!("{name}/"));
                        inner.push(file);
                        scan.add(path, inner, rules, &mut unprintable);
                    }
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => {
                    scan.problems.push(format!(
                        "{name} cannot be read, its last content stays in use: {}",
                        why(&error)
                    ));
                    scan.unreadable.push(name.to_owned());
                }
            }
            scan.subfolders.insert(folder);
        }
        if rules.secret {
            scan.note_public(path);
        }
        if !unprintable.is_empty() {
            unprintable.sort();
            #[expect(
                clippy::unnecessary_debug_formatting,
                reason = "it escapes what does not show"
            )]
            let names = unprintable.iter().map(|name| format!("{name:?}"));
            scan.problems.push(format!(
                "has files that are not read, since their names are not UTF-8 or have characters that do not show: {}; rename them",
                text::few(names, MAX_NAMED)
            ));
        }
        scan
    }

    /// Keeps the first files by name, up to the maximum number. Moves the others to `beyond`.
    pub fn limit(&mut self, rules: &Rules) {
        let Some(first) = self.found.keys().nth(rules.max_files).cloned() else {
            return;
        };
        self.beyond = self.found.split_off(&first).into_keys().collect();
        self.problems.push(format!(
            "has {} files beyond the first {} by name, and these are not read: {}; what was accepted of them stays in use; remove some files",
            self.beyond.len(),
            rules.max_files,
            text::few(&self.beyond, MAX_NAMED)
        ));
    }

    /// Refuses an empty folder on another file system than before: it is a mount point without its mount, and proves nothing about the files.
    pub fn refuse_if_empty(&mut self) {
        if self.readable && self.found.is_empty() {
            self.readable = false;
            self.problems.push(
                "is empty and on another file system than before, its last content stays in use; mount it again, or restart the agent if it is meant to be empty".to_owned(),
            );
        }
    }

    /// Notes the files that every user of the machine can read.
    fn note_public(&mut self, path: &Path) {
        let has_mode = |path: &Path, mode: u32| {
            fs::metadata(path).is_ok_and(|metadata| metadata.mode() & mode != 0)
        };
        let is_open = |folder: &Path| has_mode(folder, 0o001);
        if !is_open(path) || !path.parent().is_none_or(is_open) {
            return;
        }
        for name in self.found.keys() {
            let file = path.join(name);
            if file.parent().is_none_or(is_open) && has_mode(&file, 0o004) {
                self.stray.add(name, PUBLIC);
            }
        }
    }

    fn add(&mut self, path: &Path, name: OsString, rules: &Rules, unprintable: &mut Vec<OsString>) {
        if rules.kind_of(&name).is_none() {
            return;
        }
        let Some(name) = name.to_str().filter(|name| is_printable(name)) else {
            unprintable.push(name);
            return;
        };
        let file = path.join(name);
        // A dangling link is an unusable file, not a missing one.
        let metadata = fs::metadata(&file).or_else(|_| fs::symlink_metadata(&file));
        if let Ok(metadata) = metadata {
            self.found.insert(name.to_owned(), stamp(&metadata));
        }
    }
}

/// Result of reading a file.
#[derive(Debug)]
pub enum Read {
    /// The file changed after it had settled.
    Changed,
    /// The file cannot be read now, with the reason; a later attempt may succeed.
    Failed(String),
    /// The file was read, or cannot be used.
    Content(Content),
}

impl Read {
    /// Returns the content, if the file did not change.
    pub fn content(self) -> Option<Content> {
        match self {
            Self::Changed => None,
            Self::Failed(why) => Some(Content::Refused(format!("cannot be read: {why}"))),
            Self::Content(content) => Some(content),
        }
    }
}

/// Reads a file that has settled as `expected`.
pub fn read(folder: &Path, name: &str, kind: &Kind, expected: Stamp) -> Read {
    match try_read(folder, name, kind, expected) {
        Ok(read) => read,
        Err(Error::Refused(why)) => refused(why),
        Err(Error::Io(error)) if is_missing(&error) => Read::Changed,
        // A change of the permissions causes an event.
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            refused(format!("cannot be read: {error}"))
        }
        Err(Error::Io(error)) => Read::Failed(why(&error)),
    }
}

/// Reads a file of which only the digest is held. The error is a statement about the file: `is missing`.
pub fn fetch(
    folder: &Path,
    rules: &Rules,
    name: &str,
    digest: &Digest,
) -> Result<Arc<[u8]>, String> {
    let kind = rules.kind(name).ok_or("is not a file that is read here")?;
    let bytes = open(folder, name, kind).and_then(|file| Ok(regular::read(&file, kind.max)?));
    match bytes {
        Ok(bytes) if regular::digest_of(&bytes) == *digest => Ok(bytes.into()),
        Ok(_) => Err("is being replaced".to_owned()),
        Err(Error::Refused(why)) => Err(why),
        Err(Error::Io(error)) if is_missing(&error) => Err("is missing".to_owned()),
        Err(Error::Io(error)) => Err(format!("cannot be read: {}", why(&error))),
    }
}

/// Formats the error, with a remedy if one is known.
fn why(error: &io::Error) -> String {
    if atomic::is_out_of_files(error) {
        return format!("{error}; {}", atomic::remedy(error));
    }
    error.to_string()
}

fn try_read(folder: &Path, name: &str, kind: &Kind, expected: Stamp) -> Result<Read, Error> {
    let file = open(folder, name, kind)?;
    if stamp(&file.metadata()?) != expected {
        return Ok(Read::Changed);
    }
    let content = if kind.held {
        Content::Bytes(regular::read(&file, kind.max)?.into())
    } else {
        Content::Digest(regular::digest(&file, kind.max)?)
    };
    if stamp(&file.metadata()?) != expected {
        return Ok(Read::Changed);
    }
    Ok(Read::Content(content))
}

/// Opens a file as the rules of its kind allow.
fn open(folder: &Path, name: &str, kind: &Kind) -> Result<File, Error> {
    let path = folder.join(name);
    if !fs::symlink_metadata(&path)?.is_symlink() {
        return regular::open(&path, kind.max);
    }
    if !kind.links {
        return Err(Error::Refused(format!(
            "is a link; a file that ends in {} must be a regular file",
            kind.suffix
        )));
    }
    let target = fs::canonicalize(&path)
        .map_err(|error| Error::Refused(format!("is a link that leads nowhere: {error}")))?;
    if !target.starts_with(fs::canonicalize(folder)?) {
        let message = "is a link out of the folder; put the file itself there";
        return Err(Error::Refused(message.to_owned()));
    }
    regular::open(&target, kind.max)
}

fn refused(why: impl Into<String>) -> Read {
    Read::Content(Content::Refused(why.into()))
}

/// Returns the names in a folder, with true for each folder.
fn entries(path: &Path) -> io::Result<Vec<(OsString, bool)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        entries.push((entry.file_name(), entry.file_type()?.is_dir()));
    }
    Ok(entries)
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp {
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests;
