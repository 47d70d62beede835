//! One look through a folder, and reading one file of it. Blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leafhost_core::handler::Digest;

use crate::atomic;
use crate::folder::Content;
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
    /// The most files; those after are named as a problem.
    pub max_files: usize,
}

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
    /// The kind of a file, if it is wanted: no dotfiles, and in a nested folder `SUBFOLDER/NAME`.
    pub fn kind(&self, name: &str) -> Option<&'static Kind> {
        let base = match (self.nested, name.split_once('/')) {
            (false, None) => name,
            (true, Some((folder, base))) if !folder.starts_with('.') && !base.contains('/') => base,
            _ => return None,
        };
        let kinds = self.kinds.iter();
        kinds
            .filter(|_| !base.starts_with('.'))
            .find(|kind| base.len() > kind.suffix.len() && base.ends_with(kind.suffix))
    }
}

/// What a folder holds.
#[derive(Debug, Default)]
pub struct Look {
    /// Whether there is a folder.
    pub exists: bool,
    /// Whether it could be read; a missing one is empty.
    pub readable: bool,
    /// The file system the folder is on.
    pub device: Option<u64>,
    /// The wanted files.
    pub found: BTreeMap<String, Stamp>,
    /// Those beyond the number that is read: what is followed already stays, new ones are left out.
    pub surplus: BTreeMap<String, Stamp>,
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
            Err(error) if is_missing(&error) => return look,
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
        for (name, is_folder) in entries {
            if !rules.nested {
                look.add(path, name, rules);
            } else if is_folder && !name.starts_with('.') {
                let folder = path.join(&name);
                match self::entries(&folder) {
                    Ok(entries) => {
                        for (file, _) in entries {
                            look.add(path, format!("{name}/{file}"), rules);
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
        if let Some(first) = look.found.keys().nth(rules.max_files).cloned() {
            look.surplus = look.found.split_off(&first);
            let rest = look.surplus.len();
            look.problems.push(format!(
                "has {rest} files more than the {} that are read; of {first} and those after it new ones are left out",
                rules.max_files
            ));
        }
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

    fn add(&mut self, path: &Path, name: String, rules: &Rules) {
        if rules.kind(&name).is_none() {
            return;
        }
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

/// Names and whether each is a folder. A name that is no text is nobody's.
fn entries(path: &Path) -> io::Result<Vec<(String, bool)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string() {
            entries.push((name, entry.file_type()?.is_dir()));
        }
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
