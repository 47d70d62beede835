//! Reads the kubelet's checkpoint of allocated devices: `kubelet_internal_checkpoint`.
//!
//! Its format is not a documented interface, but unchanged since 1.20, and nothing else names a pod's UID and init containers. Callers must
//! work without it.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use serde::Deserialize;

use super::{Checkpoint, CheckpointEntry};
use crate::proto::device_plugin::ContainerAllocateResponse;

#[cfg(test)]
mod tests;

/// Maximum size of the file, in bytes: enough for 10,000 allocations with answers of 4 KiB.
const LARGEST_FILE: u64 = 64 << 20;

/// Reason why the checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointError(String);

/// Identity of a file at a path: the kubelet replaces its checkpoint, and never writes to the existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Inode of the file.
    pub inode: u64,
    /// Modification time, by the clock of the file system, which may be some milliseconds behind, never ahead. The
    /// kubelet collects the content shortly before it writes the file, so the content may lack a change of the last
    /// moment.
    pub modified: SystemTime,
}

impl Stamp {
    /// Returns the stamp of the file at `path`; `None` if it does not exist. The content is not read.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self::from(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// Reads the checkpoint at `path`, usually `/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint`; `None` if it does not exist.
/// Blocks; reads at most 64 MiB.
///
/// The checksum is not verified: it is a hash over Go's printed form of the kubelet's own structures, including names of types and
/// packages, which no other program can compute for every version. It guards against partial files, which parsing detects.
pub fn read_checkpoint(path: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    let name = path.display();
    let unreadable = |error: io::Error| {
        CheckpointError(format!(
            "cannot read the kubelet's checkpoint {name}: {error}"
        ))
    };
    let refused = |why: String| CheckpointError(format!("the kubelet's checkpoint {name} {why}"));
    // Checked before opening: opening a pipe waits for its other end.
    let opened = fs::metadata(path).and_then(|metadata| {
        let is_file = metadata.is_file();
        is_file.then(|| File::open(path)).transpose()
    });
    let file = match opened {
        Ok(Some(file)) => file,
        Ok(None) => {
            let why = "is not a file; remove it and restart the kubelet";
            return Err(refused(why.to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let stamp = Stamp::from(&file.metadata().map_err(unreadable)?);
    let mut text = Vec::new();
    let read = file
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if u64::try_from(read).is_ok_and(|read| read > LARGEST_FILE) {
        let most = LARGEST_FILE >> 20;
        return Err(refused(format!("is larger than {most} MiB: refused")));
    }
    let written: Written = serde_json::from_slice(&text).map_err(|error| {
        refused(format!(
            "is not in the form kubelets from 1.20 to 1.37 write: {error}"
        ))
    })?;
    let entries = written.data.entries.unwrap_or_default();
    Ok(Some(Checkpoint {
        entries: entries.into_iter().map(CheckpointEntry::from).collect(),
        stamp,
    }))
}

/// Device ids by NUMA node.
type ByNuma = BTreeMap<String, Option<Vec<String>>>;

#[derive(Deserialize)]
struct Written {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    // Go writes an empty list as null.
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<ByNuma>,
    alloc_resp: Option<String>,
}

impl From<Entry> for CheckpointEntry {
    fn from(entry: Entry) -> Self {
        let nodes = entry.device_ids.unwrap_or_default().into_values();
        // The ids matter even if the answer cannot be read.
        let annotations = entry
            .alloc_resp
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| ContainerAllocateResponse::decode(bytes.as_slice()).ok())
            .map(|answer| answer.annotations)
            .unwrap_or_default();
        Self {
            pod_uid: entry.pod_uid,
            container: entry.container_name,
            resource: entry.resource_name,
            ids: nodes.flatten().flatten().collect(),
            annotations,
        }
    }
}
