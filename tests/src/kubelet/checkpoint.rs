//! The stand-in's `kubelet_internal_checkpoint`, in the form of the real one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leafhost_kubelet::proto::device_plugin::ContainerAllocateResponse;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::model::{Given, Model, PodDevices};

/// Name of the file in the folder of device plugins.
pub const NAME: &str = "kubelet_internal_checkpoint";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    data: Data,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<String>>,
    alloc_resp: String,
}

/// Returns the text of the file for the state of the model.
pub fn text(model: &Model) -> Result<Vec<u8>> {
    let mut entries = Vec::new();
    for (uid, containers) in model.all_given() {
        for (container, resources) in containers {
            for (resource, given) in resources {
                entries.push(Entry {
                    pod_uid: uid.clone(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: given.ids.clone(),
                    alloc_resp: STANDARD.encode(given.answer.encode_to_vec()),
                });
            }
        }
    }
    let written = Written {
        data: Data {
            pod_device_entries: (!entries.is_empty()).then_some(entries),
            registered_devices: model.registered(),
        },
        // Only a real kubelet can compute it.
        checksum: 0,
    };
    serde_json::to_vec(&written).context("cannot write a checkpoint as JSON")
}

/// Replaces the file: writes a temporary file, syncs it and renames it.
pub fn write(folder: &Path, text: &[u8]) -> Result<()> {
    let beside = folder.join(".checkpoint");
    let write = || -> io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&beside, folder.join(NAME))
    };
    write().with_context(|| format!("cannot write {}", folder.join(NAME).display()))
}

/// Reads the devices of pods and the registered resources from the file; empty if there is no file.
pub fn read(folder: &Path) -> Result<(BTreeMap<String, PodDevices>, Vec<String>)> {
    let path = folder.join(NAME);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
    };
    let written: Written = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no checkpoint", path.display()))?;
    let mut pods: BTreeMap<String, PodDevices> = BTreeMap::new();
    for entry in written.data.pod_device_entries.unwrap_or_default() {
        let answer = STANDARD.decode(entry.alloc_resp)?;
        let given = Given {
            ids: entry.device_ids,
            answer: ContainerAllocateResponse::decode(answer.as_slice())?,
        };
        pods.entry(entry.pod_uid)
            .or_default()
            .entry(entry.container_name)
            .or_default()
            .insert(entry.resource_name, given);
    }
    Ok((pods, written.data.registered_devices.into_keys().collect()))
}
