//! The names of resources this node has ever offered, one a line in a file of the state folder, and the kubelet whose books have
//! all its slots, in another.
//!
//! Names are only added. An operator who has made the Node object anew removes their file.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use leafhost_core::ports::{LedgerError, ResourceLedger, SourceProblem};

use crate::blocking::blocking;
use crate::regular::Error;
use crate::{atomic, own};

/// The largest file that is read, in bytes: some ten thousand names.
const MAX_BYTES: u64 = 4 << 20;

/// The name of the file of names in the state folder.
const NAME: &str = "offered-resources";

/// The name of the kubelet's file.
const KUBELET: &str = "kubelet";
/// It is one line.
const MAX_LINE: u64 = 256;

/// The ledger.
#[derive(Debug)]
pub struct FileLedger {
    folder: PathBuf,
    names: Mutex<BTreeSet<String>>,
    kubelet: Option<String>,
    problem: Option<SourceProblem>,
}

impl FileLedger {
    /// Reads what is there in a state folder. A line that cannot be a name is skipped; a file that is no list of names is renamed and
    /// reported in [`FileLedger::problem`].
    pub async fn open(folder: PathBuf) -> io::Result<Self> {
        let (folder, read, kubelet) = blocking(move || {
            let path = folder.join(NAME);
            let read = own::read(&path, MAX_BYTES);
            let read = read.map_err(|error| match error {
                Error::Refused(why) => Ok(own::rename_broken(
                    &path,
                    "file of names",
                    "which resources were offered before is not known",
                    &why,
                )),
                Error::Io(error) => Err(error),
            });
            // Whatever else it says names no kubelet.
            let kubelet = own::read(&folder.join(KUBELET), MAX_LINE).ok();
            (folder, read, kubelet)
        })
        .await;
        let kubelet = kubelet.and_then(|text| String::from_utf8(text).ok());
        let (text, problem) = match read {
            Ok(text) => (String::from_utf8_lossy(&text).into_owned(), None),
            Err(Ok(problem)) => (String::new(), Some(problem)),
            Err(Err(error)) if error.kind() == io::ErrorKind::NotFound => (String::new(), None),
            Err(Err(error)) => return Err(error),
        };
        let names = text
            .lines()
            .filter(|line| !line.is_empty() && line.len() <= 253)
            .map(str::to_owned)
            .collect();
        Ok(Self {
            folder,
            names: Mutex::new(names),
            kubelet: kubelet.map(|line| line.trim_end().to_owned()),
            problem,
        })
    }

    /// What was wrong with the file when it was opened.
    pub fn problem(&self) -> Option<&SourceProblem> {
        self.problem.as_ref()
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
        self.write(NAME, text).await
    }

    fn kubelet(&self) -> Option<String> {
        self.kubelet.clone()
    }

    async fn set_kubelet(&self, kubelet: String) -> Result<(), LedgerError> {
        self.write(KUBELET, format!("{kubelet}\n")).await
    }
}

impl FileLedger {
    async fn write(&self, name: &'static str, text: String) -> Result<(), LedgerError> {
        let folder = self.folder.clone();
        let written = blocking(move || atomic::write(&folder, name, text.as_bytes())).await;
        let path = self.folder.join(name);
        written.map_err(|source| LedgerError {
            message: format!("{}: {}", path.display(), atomic::remedy(&source)),
            source: Some(Box::new(source)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use tokio::time::timeout;

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
    async fn the_kubelet_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = FileLedger::open(folder.path().into()).await.unwrap();
        assert_eq!(ledger.kubelet(), None);
        ledger.set_kubelet("12 34".to_owned()).await.unwrap();
        let again = FileLedger::open(folder.path().into()).await.unwrap();
        assert_eq!(again.kubelet().as_deref(), Some("12 34"));
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

    #[tokio::test]
    async fn what_is_no_file_of_names_is_moved_aside_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let large = |path: &Path| File::create(path).unwrap().set_len(6 << 30).unwrap();
        let fifo = |path: &Path| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
        for (number, make) in [&large as &dyn Fn(&Path), &fifo].into_iter().enumerate() {
            make(&path);
            let open = FileLedger::open(folder.path().into());
            let ledger = timeout(Duration::from_secs(20), open).await;
            let ledger = ledger.expect("it does not wait").unwrap();
            let reported = ledger.problem().unwrap().to_string();
            assert!(reported.contains("offered-resources.broken"), "{reported}");
            assert!(ledger.names().is_empty() && !path.exists(), "{number}");
            ledger.add(["a".to_owned()].into()).await.unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    }
}
