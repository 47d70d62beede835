//! Regular files from any writer: opened without blocking on a peer, read within a limit. Blocks.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use leafhost_core::handler::Digest;
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

/// Reason why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file may not be read. The text describes it, and the expected form if that is not obvious.
    #[error("{0}")]
    Refused(String),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a regular file of at most `max` bytes. Does not follow a link.
pub fn open(path: &Path, max: u64) -> Result<File, Error> {
    // Opening a FIFO would wait for a writer.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::Refused("is not a regular file".to_owned()));
    }
    if metadata.len() > max {
        let message = format!("has {} bytes, at most {max} are allowed", metadata.len());
        return Err(Error::Refused(message));
    }
    Ok(file)
}

/// Reads the bytes of a file; at most `max` + 1, so that a file that has grown beyond `max` is recognized.
pub fn read(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let expected = file.metadata()?.len().min(max).saturating_add(1);
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or_default());
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the digest of the bytes that [`read`] would return, without holding them.
pub fn digest(file: &File, max: u64) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut rest = BufReader::new(file.take(max.saturating_add(1)));
    loop {
        let bytes = match rest.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(hex(hash));
        }
        hash.update(bytes);
        let length = bytes.len();
        rest.consume(length);
    }
}

/// Returns the digest of bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    hex(Sha256::new_with_prefix(bytes))
}

fn hex(hash: Sha256) -> Digest {
    let bytes = hash.finalize();
    Digest(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;

    use nix::sys::stat::Mode;

    use super::*;

    /// Returns the result of `work`; fails if it takes too long, such as for a FIFO without a writer.
    pub(crate) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(work()));
        let result = receiver.recv_timeout(Duration::from_secs(20));
        result.expect("it does not wait")
    }

    #[test]
    fn what_is_no_regular_file_is_neither_waited_for_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), [7; 10]).unwrap();
        fs::write(at("large"), [7; 11]).unwrap();
        symlink("file", at("link")).unwrap();
        for (name, why) in [
            ("fifo", "is not a regular file"),
            ("folder", "is not a regular file"),
            ("large", "has 11 bytes, at most 10 are allowed"),
            ("link", "os error 40"),
        ] {
            let path: PathBuf = at(name);
            let error = in_time(move || open(&path, 10)).expect_err(name);
            assert!(error.to_string().contains(why), "{name}: {error}");
        }
        let file = open(&at("file"), 10).unwrap();
        assert_eq!(read(&file, 10).unwrap(), [7; 10]);
    }

    #[test]
    fn a_file_that_grows_is_read_to_one_byte_beyond_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; 10]).unwrap();
        let files = [(); 2].map(|()| open(&path, 10).unwrap());
        fs::write(&path, [7; 1000]).unwrap();
        assert_eq!(read(&files[0], 10).unwrap(), [7; 11]);
        assert_eq!(digest(&files[1], 10).unwrap(), digest_of(&[7; 11]));
    }

    #[test]
    fn a_digest_is_the_sha256_in_lower_case_hex() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest_of(b"abc").0, text);
    }
}
