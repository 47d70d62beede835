//! Writes files atomically. Blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// Suffix of the names of files that are being written. Opening a folder removes them.
const TEMPORARY: &str = ".tmp";

/// Maximum number of threads that sync files concurrently. The journal of a file system commits many files at once: with ext4, 500 new
/// files take 0.1 s this way, and 2.3 s one after the other.
const SYNCING: usize = 16;

/// Error code: the machine has reached its limit of open files.
const ENFILE: i32 = 23;
/// Error code: the process has reached its limit of open files.
const EMFILE: i32 = 24;

/// Writes a temporary file in the folder. The file is durable after [`sync_all`], and gets its name by [`persist`].
pub fn prepare(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    prepare_with(folder, |file| file.write_all(bytes))
}

fn prepare_with(
    folder: &Path,
    content: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    // Opens the file itself, because errors of tempfile hide the OS error code and include a random name.
    let open = |path: &Path| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)
    };
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .suffix(TEMPORARY)
        .make_in(folder, open)?;
    let mut writer = BufWriter::new(file.as_file_mut());
    content(&mut writer)?;
    writer.flush()?;
    drop(writer);
    Ok(file)
}

/// Makes the content of files durable; returns one result per file, in order.
pub fn sync_all(files: &[&File]) -> Vec<io::Result<()>> {
    if let [file] = files {
        return vec![file.sync_all()];
    }
    let share = files.len().div_ceil(SYNCING).max(1);
    let sync = |files: &[&File]| -> Vec<_> { files.iter().map(|file| file.sync_all()).collect() };
    std::thread::scope(|scope| {
        let begun: Vec<_> = files
            .chunks(share)
            .map(|files| {
                let thread = std::thread::Builder::new();
                (files, thread.spawn_scoped(scope, move || sync(files)))
            })
            .collect();
        let joined = begun.into_iter().map(|(files, thread)| {
            // If no thread can be started, the write only takes longer.
            let Ok(thread) = thread else {
                return sync(files);
            };
            match thread.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        joined.flatten().collect()
    })
}

/// Gives a prepared file its name, which is durable after [`sync`].
pub fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Makes the names in a folder durable.
pub fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes one file of a folder. The file is durable when the call returns, and no reader sees it incomplete.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_with(folder, name, |file| file.write_all(bytes))
}

/// Writes one file of a folder like [`write()`]; `content` writes the bytes.
pub fn write_with(
    folder: &Path,
    name: &str,
    content: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let file = prepare_with(folder, content)?;
    file.as_file().sync_all()?;
    persist(file, &folder.join(name))?;
    sync(folder)
}

/// Returns the folder and the name of a file.
///
/// # Errors
/// The path has no file name, or one that is not UTF-8.
pub fn parts(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let parts = path.parent().zip(name);
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))
}

/// Removes one file of a folder; a missing file is not an error.
pub fn remove(folder: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(folder.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync(folder),
    }
}

/// Returns the names of the regular files of a folder, sorted. Removes leftovers of a crash, and creates a missing folder.
pub fn open(folder: &Path) -> io::Result<Vec<String>> {
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
    }
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
            // A process has ended during a write. On a read-only disk the file stays, and a later start removes it.
            let _ = fs::remove_file(entry.path());
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns true if the error is a lack of file descriptors, of this process or of the machine: a retry may succeed.
pub fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Returns the remedy for a failure below the state folder.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full; free some space; retrying"
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
        _ if is_out_of_files(error) => {
            "too many files are open; raise the agent's limit (ulimit -n, LimitNOFILE); retrying"
        }
        _ => "see the cause; another folder can be named with --state-dir",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_same_text_each_time_and_the_kernels_number() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let [one, two] = [(); 2].map(|()| write(&missing, "name", b"").unwrap_err());
        assert_eq!(one.to_string(), two.to_string());
        assert_eq!(one.raw_os_error(), Some(2));
    }

    #[test]
    fn running_out_of_files_has_a_remedy_of_its_own() {
        for number in [ENFILE, EMFILE] {
            let error = io::Error::from_raw_os_error(number);
            assert!(remedy(&error).contains("ulimit -n"), "{error}");
        }
    }
}
