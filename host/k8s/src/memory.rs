//! Cluster state on disk: an agent that starts while the API server is unreachable serves running pods from the state last read.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leafhost_disk::atomic;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Time within which changes are combined into one write.
const TOGETHER: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from a file.
const MOST: u64 = 256 << 20;

/// Reads the last written value. Returns `None` if the file is missing or unreadable.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let file = match File::open(path) {
        Ok(file) => BufReader::new(file.take(MOST)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read the data of an earlier run; reading it from the API server");
            return None;
        }
    };
    serde_json::from_reader(file)
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the data of an earlier run is damaged; reading it from the API server");
        })
        .ok()
}

/// Saves `worth(value)` after each change of the value, unless it is `None`; returns when the sender is dropped.
pub async fn keep<T, K>(
    path: PathBuf,
    mut source: watch::Receiver<T>,
    mut worth: impl FnMut(&T) -> Option<K>,
) where
    T: Clone + Send + Sync + 'static,
    K: Serialize + Send + 'static,
{
    let mut is_logged = false;
    while source.changed().await.is_ok() {
        tokio::time::sleep(TOGETHER).await;
        // Clones the value, so that the sender does not wait for the write.
        let shown = source.borrow_and_update().clone();
        let Some(kept) = worth(&shown) else {
            continue;
        };
        let file = path.clone();
        match tokio::task::spawn_blocking(move || write(&file, &kept)).await {
            Ok(Ok(())) => is_logged = false,
            Ok(Err(error)) if !is_logged => {
                is_logged = true;
                let path = path.display();
                tracing::warn!(%path, %error, "cannot store the data for a start without the API server; free or repair the disk");
            }
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

/// Writes a whole file and syncs it to disk.
pub fn write<T: Serialize>(path: &Path, kept: &T) -> io::Result<()> {
    let (folder, name) = atomic::parts(path)?;
    // Also creates the agent's state folder above it, if needed; only the agent may read it.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    atomic::write_with(folder, name, |file| Ok(serde_json::to_writer(file, kept)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_damaged_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster/numbers.json");
        assert_eq!(read::<Vec<u32>>(&path), None);
        write(&path, &vec![1, 2]).unwrap();
        assert_eq!(read(&path), Some(vec![1, 2]));
        fs::write(&path, "[1,").unwrap();
        assert_eq!(read::<Vec<u32>>(&path), None);
    }
}
