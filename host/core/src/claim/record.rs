//! Record of a prepared claim: enough to answer the kubelet again and to release the slots without the API server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::edits::Edits;
use crate::instance::InstanceKey;

/// Prepared claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// Id of the boot in which the devices were found; after a reboot they may have other device nodes.
    #[serde(default)]
    pub boot: String,
    /// Devices of the claim.
    pub devices: Vec<RecordedDevice>,
    /// True once the kubelet has reported that no pod uses the claim: its slots are to be released.
    #[serde(default)]
    pub is_over: bool,
}

/// Device of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedDevice {
    /// Request of the claim that the device satisfies.
    pub request: String,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in the pool.
    pub device: String,
    /// Id of the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Slots taken; none for admin access.
    #[serde(default)]
    pub slots: Vec<Slot>,
    /// Variables set by the claim.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Edits for containers.
    pub edits: Edits,
}

/// Slot of an Instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slot {
    /// Namespace of the Instance.
    pub namespace: String,
    /// Name of the Instance.
    pub instance: String,
    /// Uid of the Instance object.
    pub uid: String,
    /// Id of the slot: `<instance>-<slot>`.
    pub id: String,
}

impl Slot {
    /// Returns the key of the slot's Instance.
    pub fn key(&self) -> InstanceKey {
        InstanceKey::new(&self.namespace, &self.instance)
    }
}

impl RecordedDevice {
    /// Returns the name of the CDI device within the claim. It contains the share, since a claim may have several
    /// shares of one device.
    pub fn cdi_device(&self) -> String {
        match &self.share {
            Some(share) => format!("{}-{share}", self.device),
            None => self.device.clone(),
        }
    }
}
