//! The names of resources this node has ever offered, one a line in a file of the state folder.
//!
//! Names are only added. An operator who has made the Node object anew removes the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use leafhost_core::ports::{LedgerError, ResourceLedger};

use crate::atomic;
use crate::blocking::blocking;

/// The largest file that is read, in bytes: some ten thousand names.
const MAX_BYTES: u64 = 4 << 20;

/// The file's name in the state folder.
const NAME: &str = "offered-resources";

/// The ledger.
#[derive(Debug)]
pub struct FileLedger {
    folder: PathBuf,
    names: Mutex<BTreeSet<String>>,
}

impl FileLedger {
    /// Reads what is there in a state folder. A line that can be no name is passed over.
    pub async fn open(folder: PathBuf) -> io::Result<Self> {
        let (folder, text) = blocking(move || {
            let text = read(&folder.join(NAME));
            (folder, text)
        })
        .await;
        let text = match text {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let names = text
            .lines()
            .filter(|line| !line.is_empty() && line.len() <= 253)
            .map(str::to_owned)
            .collect();
        Ok(Self {
            folder,
            names: Mutex::new(names),
        })
    }
}

#[async_trait]
impl ResourceLedger for FileLedger {
    fn names(&self) -> BTreeSet<String> {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn add(&self, names: BTreeSet<String>) -> Result<(), LedgerError> {
        let text = {
            let mut held = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            held.extend(names);
            held.iter()
                .map(|name| format!("{name}\n"))
                .collect::<String>()
        };
        let folder = self.folder.clone();
        let written = blocking(move || atomic::write(&folder, NAME, text.as_bytes())).await;
        let path = self.folder.join(NAME);
        written.map_err(|source| LedgerError {
            message: format!("{}: {}", path.display(), atomic::remedy(&source)),
            source: Some(Box::new(source)),
        })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_remembered_once() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = FileLedger::open(folder.path().into()).await.unwrap();
        for names in [["b", "a"], ["a", "c"]] {
            let names = names.map(str::to_owned).into();
            ledger.add(names).await.unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert_eq!(text, "a\nb\nc\n");
        let again = FileLedger::open(folder.path().into()).await.unwrap();
        assert_eq!(again.names(), ["a", "b", "c"].map(str::to_owned).into());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_named_and_still_counted() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let ledger = FileLedger::open(missing).await.unwrap();
        let error = ledger.add(["a".to_owned()].into()).await.unwrap_err();
        assert!(error.to_string().contains("missing/offered-resources"));
        assert_eq!(ledger.names().len(), 1);
    }
}
