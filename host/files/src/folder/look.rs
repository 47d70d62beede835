//! One look through a folder, and reading one file of it. Blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::handler::Digest;

use crate::atomic;
use crate::folder::Content;
use crate::folder::names::{Unusable, unusable};
use crate::listen::is_missing;
use crate::regular::{self, Error};
use crate::settle::Stamp;

/// Which files of a folder are wanted.
#[derive(Debug, Clone)]
pub struct Rules {
    /// By how their names end; the first that fits.
    pub kinds: &'static [Kind],
    /// Whether the files are in folders below this one, not in it itself.
    pub nested: bool,
    /// The most files; others are named as a problem.
    pub max_files: usize,
    /// The most bytes that are held in all; files with more are named as a problem.
    pub max_bytes: u64,
    /// The most bytes of a name.
    pub longest_name: usize,
}

/// The most bytes of a name that Linux knows.
pub const LONGEST_NAME: usize = 255;

/// Files whose names end alike.
#[derive(Debug)]
pub struct Kind {
    /// How their names end; empty for any name.
    pub suffix: &'static str,
    /// The most bytes.
    pub max: u64,
    /// Whether a link will do, if it stays inside the folder.
    pub links: bool,
    /// Whether the bytes are held; otherwise their digest is, and they can be fetched.
    pub held: bool,
}

impl Rules {
    /// The kind of a file, if it is wanted and its name can be used.
    pub fn kind(&self, name: &str) -> Option<&'static Kind> {
        let kind = self.wanted(OsStr::new(name))?;
        let mut parts = name.split('/').map(OsStr::new);
        parts
            .all(|part| unusable(part, self.longest_name).is_none())
            .then_some(kind)
    }

    /// The kind of a file, if it is wanted, whether its name can be used or not: no dotfiles, and in a nested folder
    /// `SUBFOLDER/NAME`.
    pub fn wanted(&self, name: &OsStr) -> Option<&'static Kind> {
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

/// What a folder holds.
#[derive(Debug, Default)]
pub struct Look {
    /// Whether there is a folder.
    pub exists: bool,
    /// What is there instead, if something is: `is not a folder`.
    pub obstructed: Option<&'static str>,
    /// Whether it could be read; a missing one is empty.
    pub readable: bool,
    /// The file system the folder is on.
    pub device: Option<u64>,
    /// The wanted files, as many as there are.
    pub found: BTreeMap<String, Stamp>,
    /// The folders below it, where files are wanted from there.
    pub subfolders: BTreeSet<PathBuf>,
    /// Folders below it that could not be looked through: what was seen there last stands.
    pub unread: Vec<String>,
    /// What could not be looked at.
    pub problems: Vec<String>,
}

impl Look {
    /// Looks.
    pub fn at(path: &Path, rules: &Rules) -> Self {
        let mut look = Self {
            readable: true,
            ..Self::default()
        };
        let entries = match entries(path) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => {
                if error.kind() == io::ErrorKind::NotADirectory {
                    look.obstructed = Some(match fs::metadata(path) {
                        Ok(_) => "is not a folder",
                        Err(_) => "cannot be there, since a part of its path is not a folder",
                    });
                }
                return look;
            }
            Err(error) => {
                look.exists = true;
                look.readable = false;
                look.problems.push(format!(
                    "cannot be read, what was there last keeps serving: {}",
                    why(&error)
                ));
                return look;
            }
        };
        look.exists = true;
        look.device = fs::metadata(path).ok().map(|metadata| metadata.dev());
        let mut unusable = Unusable::default();
        for (name, is_folder) in entries {
            if !rules.nested {
                look.add(path, name, rules, &mut unusable);
            } else if is_folder && !name.as_bytes().starts_with(b".") {
                let Some(name) = usable(&name, rules) else {
                    unusable.add(name);
                    continue;
                };
                let folder = path.join(&name);
                match self::entries(&folder) {
                    Ok(entries) => {
                        for (file, _) in entries {
                            let mut inner = OsString::from(format!("{name}/"));
                            inner.push(file);
                            look.add(path, inner, rules, &mut unusable);
                        }
                    }
                    Err(error) if is_missing(&error) => {}
                    Err(error) => {
                        look.problems.push(format!(
                            "{name} cannot be read, what was there last keeps serving: {}",
                            why(&error)
                        ));
                        look.unread.push(name);
                    }
                }
                look.subfolders.insert(folder);
            }
        }
        look.problems.extend(unusable.problems(rules.longest_name));
        look
    }

    /// An empty folder on another file system than before is the place of a mount that is gone: it says nothing of
    /// the files.
    pub fn refuse_if_empty(&mut self) {
        if self.readable && self.found.is_empty() {
            self.readable = false;
            self.problems.push(
                "is empty and on another file system than before, what was there last keeps serving: mount it again, or restart the agent if it is meant to be empty".to_owned(),
            );
        }
    }

    fn add(&mut self, path: &Path, name: OsString, rules: &Rules, unusable: &mut Unusable) {
        if rules.wanted(&name).is_none() {
            return;
        }
        let Some(name) = name.to_str().filter(|name| rules.kind(name).is_some()) else {
            unusable.add(name);
            return;
        };
        let name = name.to_owned();
        let file = path.join(&name);
        // A link that leads nowhere is a file that cannot be used, not a missing one.
        let metadata = fs::metadata(&file).or_else(|_| fs::symlink_metadata(&file));
        if let Ok(metadata) = metadata {
            self.found.insert(name, stamp(&metadata));
        }
    }
}

/// What came of reading a file.
#[derive(Debug)]
pub enum Read {
    /// It is not as it was when it settled.
    MovedOn,
    /// It cannot be read at this moment, and why; it may be as it is in another.
    NotNow(String),
    /// It was read, or cannot be used.
    Content(Content),
}

impl Read {
    /// What was read, if the file stood still.
    pub fn content(self) -> Option<Content> {
        match self {
            Self::MovedOn => None,
            Self::NotNow(why) => Some(Content::Refused(format!("cannot be read: {why}"))),
            Self::Content(content) => Some(content),
        }
    }
}

/// Reads a file that has settled as `expected`.
pub fn read(folder: &Path, name: &str, kind: &Kind, expected: Stamp) -> Read {
    match try_read(folder, name, kind, expected) {
        Ok(read) => read,
        Err(Error::Refused(why)) => refused(why),
        Err(Error::Io(error)) if is_missing(&error) => Read::MovedOn,
        // Whoever lets the agent read it touches it, which is seen.
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            refused(format!("cannot be read: {error}"))
        }
        Err(Error::Io(error)) => Read::NotNow(why(&error)),
    }
}

/// Reads a file of which only the digest is held. Why not is said of the file: `is missing`.
pub fn fetch(
    folder: &Path,
    rules: &Rules,
    name: &str,
    digest: &Digest,
) -> Result<Arc<[u8]>, String> {
    let kind = rules.kind(name).ok_or("is none that is read here")?;
    let bytes = open(folder, name, kind).and_then(|file| Ok(regular::read(&file, kind.max)?));
    match bytes {
        Ok(bytes) if regular::digest_of(&bytes) == *digest => Ok(bytes.into()),
        Ok(_) => Err("is being replaced".to_owned()),
        Err(Error::Refused(why)) => Err(why),
        Err(Error::Io(error)) if is_missing(&error) => Err("is missing".to_owned()),
        Err(Error::Io(error)) => Err(format!("cannot be read: {}", why(&error))),
    }
}

/// The error, and what can be done about it where that is known.
fn why(error: &io::Error) -> String {
    if atomic::is_out_of_files(error) {
        return format!("{error}; {}", atomic::remedy(error));
    }
    error.to_string()
}

fn try_read(folder: &Path, name: &str, kind: &Kind, expected: Stamp) -> Result<Read, Error> {
    let file = open(folder, name, kind)?;
    if stamp(&file.metadata()?) != expected {
        return Ok(Read::MovedOn);
    }
    let content = if kind.held {
        Content::Bytes(regular::read(&file, kind.max)?.into())
    } else {
        Content::Digest(regular::digest(&file, kind.max)?)
    };
    if stamp(&file.metadata()?) != expected {
        return Ok(Read::MovedOn);
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

/// Names and whether each is a folder.
fn entries(path: &Path) -> io::Result<Vec<(OsString, bool)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        entries.push((entry.file_name(), entry.file_type()?.is_dir()));
    }
    Ok(entries)
}

/// The name of a folder below, if it can be used.
fn usable(name: &OsStr, rules: &Rules) -> Option<String> {
    let name = name.to_str()?;
    let wrong = unusable(OsStr::new(name), rules.longest_name);
    wrong.is_none().then(|| name.to_owned())
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
