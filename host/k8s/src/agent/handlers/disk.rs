//! ConfigMaps on disk, each as the API server gave it, in a file named by its uid: what is here is not fetched again after a restart,
//! and serves while the API server is away. Every call blocks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;

/// The most bytes of a file. The API server accepts 1 MiB of values, which base64 makes longer.
const MAX: u64 = 4 << 20;

/// The folder.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// A folder that need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// All objects, one after the other. What is damaged is left out: the API server has it.
    pub fn all(&self) -> impl Iterator<Item = ConfigMap> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let file = fs::File::open(entry.path()).ok()?;
            serde_json::from_reader(BufReader::new(file.take(MAX))).ok()
        })
    }

    /// Keeps an object.
    pub fn keep(&self, object: &ConfigMap) -> io::Result<()> {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if uid.is_empty() || uid.len() > 64 || !uid.chars().all(is_plain) {
            return Err(io::Error::other(format!("{uid:?} is no uid")));
        }
        fs::create_dir_all(&self.folder)?;
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        let mut writer = BufWriter::new(&file);
        serde_json::to_writer(&mut writer, object)?;
        writer.flush()?;
        drop(writer);
        file.as_file().sync_all()?;
        file.persist(self.folder.join(uid))?;
        Ok(())
    }

    /// Removes all other objects, and what a crash has left.
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
