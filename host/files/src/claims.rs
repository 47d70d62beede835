//! The records of claims in the state folder: one file per claim, named by its uid.
//!
//! An unreadable file stays until the kubelet unprepares its claim: the claim may be in use.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use leafhost_core::claim::ports::{ClaimRecords, Records};
use leafhost_core::claim::record::Record;
use leafhost_core::names::is_node_name;

use crate::blocking::blocking;
use crate::regular;
use crate::state::fail;
use leafhost_disk::atomic;

/// Name of the folder in the state folder.
const FOLDER: &str = "claims";
/// Suffix of the file names.
const SUFFIX: &str = ".json";
/// Maximum size of a record, in bytes: 32 devices with all the text that a device may have.
const MAX_BYTES: u64 = 4 << 20;

/// Records of claims in the state folder.
#[derive(Debug, Clone)]
pub struct FileClaimRecords {
    folder: PathBuf,
}

impl FileClaimRecords {
    /// Creates a handle for the records in a state folder. The folder need not exist.
    pub fn new(state_dir: &Path) -> Self {
        let folder = state_dir.join(FOLDER);
        Self { folder }
    }
}

/// Returns the name of a claim's file. A uid comes from the network and is not a path.
fn file_name(uid: &str) -> Result<String, String> {
    if is_node_name(uid) && uid.len() <= 63 {
        Ok(format!("{uid}{SUFFIX}"))
    } else {
        Err(format!("{uid:?} is not a uid of a claim"))
    }
}

fn read(path: &Path) -> Result<Record, String> {
    let file = regular::open(path, MAX_BYTES).map_err(|error| error.to_string())?;
    let bytes = regular::read(&file, MAX_BYTES).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

fn all(folder: &Path) -> io::Result<Records> {
    let (mut records, mut unreadable) = Records::default();
    if !folder.try_exists()? {
        return Ok((records, unreadable));
    }
    for name in atomic::open(folder)? {
        let Some(uid) = name.strip_suffix(SUFFIX) else {
            continue;
        };
        let path = folder.join(&name);
        match read(&path) {
            Ok(record) => drop(records.insert(uid.to_owned(), record)),
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "cannot read the record of a claim");
                unreadable.insert(uid.to_owned(), why);
            }
        }
    }
    Ok((records, unreadable))
}

#[async_trait]
impl ClaimRecords for FileClaimRecords {
    async fn all(&self) -> Result<Records, String> {
        let folder = self.folder.clone();
        let read = blocking(move || all(&folder)).await;
        read.map_err(|error| format!("cannot read {}: {error}", self.folder.display()))
    }

    async fn save(&self, uid: &str, record: &Record) -> Result<(), String> {
        let name = file_name(uid)?;
        let bytes = serde_json::to_vec(record).map_err(|error| error.to_string())?;
        let (folder, file) = (self.folder.clone(), name.clone());
        let written = blocking(move || {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            atomic::write(&folder, &file, &bytes)
        });
        let failed = |error| fail("write", &self.folder.join(&name))(error).to_string();
        written.await.map_err(failed)
    }

    async fn remove(&self, uid: &str) -> Result<(), String> {
        let name = file_name(uid)?;
        let path = self.folder.join(&name);
        let removed = blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        let failed = |error| fail("remove", &self.folder.join(&name))(error).to_string();
        removed.await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn mk_record(name: &str) -> Record {
        Record {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            boot: String::new(),
            devices: Vec::new(),
            is_over: false,
        }
    }

    #[tokio::test]
    async fn records_are_kept_until_they_are_removed_and_damaged_ones_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileClaimRecords::new(folder.path());
        assert_eq!(records.all().await, Ok(Records::default()));
        for name in ["a", "b", "c"] {
            let uid = format!("{name}-uid");
            records.save(&uid, &mk_record(name)).await.unwrap();
        }
        records.remove("c-uid").await.unwrap();
        records.remove("c-uid").await.unwrap();
        let path = folder.path().join("claims/b-uid.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let (found, unreadable) = records.all().await.unwrap();
        assert_eq!(
            found,
            BTreeMap::from([("a-uid".to_owned(), mk_record("a"))])
        );
        assert!(unreadable["b-uid"].contains("EOF"), "{unreadable:?}");
        for uid in ["../x", "", "a/b", &"x".repeat(64)] {
            let error = records.save(uid, &mk_record("x")).await.unwrap_err();
            assert!(error.ends_with("is not a uid of a claim"), "{error}");
        }
    }
}
