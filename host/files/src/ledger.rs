//! The names of resources that this node has ever offered, one per line in a file of the state folder; a second file names the kubelet
//! whose records contain every held slot of the node, a third the boot in which an agent last started.
//!
//! Names are only added. An operator who has recreated the Node object removes their file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use leafhost_core::ports::ResourceLedger;

use crate::blocking::blocking;
use crate::state::text_of;
use leafhost_disk::atomic;

/// Name of the file of resource names in the state folder.
const NAME: &str = "offered-resources";

/// Name of the kubelet's file.
const KUBELET: &str = "kubelet";

/// Name of the boot's file.
const BOOT: &str = "boot";

/// File with the random id that the kernel gives each boot; see random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Ledger in the state folder.
#[derive(Debug)]
pub struct FileLedger {
    folder: PathBuf,
    names: Mutex<BTreeSet<String>>,
    kubelet: Option<String>,
    has_rebooted: bool,
}

impl FileLedger {
    /// Reads the files of a state folder, and records the current boot. Skips a line that cannot be a name.
    pub async fn open(folder: PathBuf) -> io::Result<Self> {
        blocking(move || {
            let read = |name: &str| text_of(&folder.join(name));
            let (names, kubelet) = (read(NAME)?, read(KUBELET)?);
            let names = names.lines();
            let names = names.filter(|line| !line.is_empty() && line.len() <= 253);
            let before = read(BOOT).unwrap_or_default();
            let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
            let is_other = before.trim_end() != boot.trim_end();
            let are_ids = [&before, &boot].iter().all(|id| is_id(id.trim_end()));
            // Otherwise this agent's claims could pass for claims of an earlier boot when the next agent starts.
            let is_noted = is_other && atomic::write(&folder, BOOT, boot.as_bytes()).is_ok();
            Ok(Self {
                names: Mutex::new(names.map(str::to_owned).collect()),
                kubelet: Some(kubelet.trim_end().to_owned()).filter(|line| !line.is_empty()),
                has_rebooted: are_ids && is_noted,
                folder,
            })
        })
        .await
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

    async fn add(&self, names: BTreeSet<String>) -> Result<(), String> {
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

    async fn set_kubelet(&self, kubelet: String) -> Result<(), String> {
        self.write(KUBELET, format!("{kubelet}\n")).await
    }

    fn has_rebooted(&self) -> bool {
        self.has_rebooted
    }
}

/// Returns true if a text can be the id of a boot, which is a UUID.
fn is_id(text: &str) -> bool {
    text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

impl FileLedger {
    async fn write(&self, name: &'static str, text: String) -> Result<(), String> {
        let folder = self.folder.clone();
        let written = blocking(move || atomic::write(&folder, name, text.as_bytes())).await;
        let path = self.folder.join(name);
        written.map_err(|error| {
            let (path, remedy) = (path.display(), atomic::remedy(&error));
            format!(
                "cannot record which resources the kubelet was offered: {path}: {remedy}: {error}"
            )
        })
    }
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
    async fn the_kubelet_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = FileLedger::open(folder.path().into()).await.unwrap();
        assert_eq!(ledger.kubelet(), None);
        ledger.set_kubelet("12 34".to_owned()).await.unwrap();
        let again = FileLedger::open(folder.path().into()).await.unwrap();
        assert_eq!(again.kubelet().as_deref(), Some("12 34"));
    }

    #[tokio::test]
    async fn the_first_agent_of_a_boot_knows_that_the_machine_has_booted() {
        let folder = tempfile::tempdir().unwrap();
        for (boot, has_rebooted) in [
            (None, false),
            (Some("00000000-0000-4000-8000-000000000000\n"), true),
            (None, false),
            (Some("00000000-0000\n"), false),
            (Some(""), false),
        ] {
            if let Some(text) = boot {
                fs::write(folder.path().join(BOOT), text).unwrap();
            }
            let ledger = FileLedger::open(folder.path().into()).await.unwrap();
            assert_eq!(ledger.has_rebooted(), has_rebooted, "{boot:?}");
            let noted = fs::read_to_string(folder.path().join(BOOT)).unwrap();
            assert_eq!(noted, fs::read_to_string(BOOT_ID).unwrap());
        }
    }

    #[tokio::test]
    async fn a_boot_that_cannot_be_noted_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BOOT)).unwrap();
        let ledger = FileLedger::open(folder.path().into()).await.unwrap();
        assert!(!ledger.has_rebooted());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_named_and_still_counted() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let ledger = FileLedger::open(missing).await.unwrap();
        let error = ledger.add(["a".to_owned()].into()).await.unwrap_err();
        assert!(error.contains("missing/offered-resources"));
        assert_eq!(ledger.names().len(), 1);
    }
}
