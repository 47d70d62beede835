//! ConfigMaps on disk, each in a file named by its uid. After a restart, a stored object is fetched again only if it has changed, and it
//! serves while the API server is unreachable. Every call blocks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, Read as _};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;

use crate::memory;

/// Maximum number of bytes read from a file. The API server accepts 1 MiB of values, which base64 makes longer.
const MAX: u64 = 4 << 20;

/// Folder of stored ConfigMaps.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Uses a folder, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns all objects one by one. Damaged files are skipped, since the API server has the objects.
    pub fn all(&self) -> impl Iterator<Item = ConfigMap> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let file = fs::File::open(entry.path()).ok()?;
            serde_json::from_reader(BufReader::new(file.take(MAX))).ok()
        })
    }

    /// Stores an object.
    pub fn keep(&self, object: &ConfigMap) -> io::Result<()> {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if uid.is_empty() || uid.len() > 64 || !uid.chars().all(is_plain) {
            return Err(io::Error::other(format!("{uid:?} is not a uid")));
        }
        memory::write(&self.folder.join(uid), object)
    }

    /// Removes all objects except those with these `uids`, and temporary files left by a crash.
    pub fn keep_only(&self, uids: &BTreeSet<String>) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in entries {
            let is_kept = |name: &str| uids.contains(name);
            if !entry.file_name().to_str().is_some_and(is_kept)
                && let Err(error) = fs::remove_file(entry.path())
            {
                let path = entry.path().display().to_string();
                tracing::debug!(path, %error, "cannot remove a ConfigMap that is not needed");
            }
        }
    }
}
