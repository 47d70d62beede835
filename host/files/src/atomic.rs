//! Writes files whole or not at all, in the state folder. Blocks.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

/// What names of files that are being written end with. They are cleared when a folder is opened.
pub const TEMPORARY: &str = ".tmp";

/// Threads that wait for the disk at the same time: a journal takes many waiters in one go.
const SYNCING: usize = 16;

/// Writes a file beside the place it is for; durable after [`sync_all`] and not yet there.
pub fn prepare(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .suffix(TEMPORARY)
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Makes the content of files durable; one result a file, in order.
pub fn sync_all(files: &[&File]) -> Vec<io::Result<()>> {
    if let [file] = files {
        return vec![file.sync_all()];
    }
    let share = files.len().div_ceil(SYNCING).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = files
            .chunks(share)
            .map(|files| {
                let sync = || files.iter().map(|file| file.sync_all()).collect();
                scope.spawn(sync)
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let results: Vec<_> = match thread.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            results
        });
        joined.flatten().collect()
    })
}

/// Puts a prepared file in its place. Durable after [`sync`].
pub fn place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Makes the names in a folder durable.
pub fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes one file of a folder: durable when it returns, and no reader sees a part of it.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = prepare(folder, bytes)?;
    file.as_file().sync_all()?;
    place(file, &folder.join(name))?;
    sync(folder)
}

/// Removes one file of a folder; a missing one is removed already.
pub fn remove(folder: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(folder.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync(folder),
    }
}

/// The names of the regular files of a folder, sorted; clears what a crash has left. A missing folder is made.
pub fn open(folder: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(folder)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !entry.file_type()?.is_file() {
            continue;
        }
        if name.starts_with('.') && name.ends_with(TEMPORARY) {
            fs::remove_file(entry.path())?;
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// What an operator can do about a failure below the state folder.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full; free some space, it is tried again"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; name another folder with --state-dir"
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; run as its owner, or name another folder with --state-dir"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a part of its path is not a folder; move that away, or name another folder with --state-dir"
        }
        _ => "see the cause; another folder can be named with --state-dir",
    }
}
