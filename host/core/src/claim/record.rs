//! The record of a claim that was prepared: enough to answer again, and to give back without the API server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::edits::Edits;
use crate::instance::InstanceKey;

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// The namespace of the claim.
    pub namespace: String,
    /// The name of the claim.
    pub name: String,
    /// The boot in which the devices were looked up: another one may give them other nodes.
    #[serde(default)]
    pub boot: String,
    /// Its devices.
    pub devices: Vec<RecordedDevice>,
    /// True once the kubelet has said that no pod uses it any more: its slots are to be given back.
    #[serde(default)]
    pub is_over: bool,
}

/// A device of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedDevice {
    /// The request of the claim that it is for.
    pub request: String,
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in the pool.
    pub device: String,
    /// Names the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The slots that were taken; none for who only looks after the device.
    #[serde(default)]
    pub slots: Vec<Slot>,
    /// The variables that the claim wants.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Holds what containers get.
    pub edits: Edits,
}

/// A slot of an Instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slot {
    /// The namespace of the Instance.
    pub namespace: String,
    /// The name of the Instance.
    pub instance: String,
    /// The uid of the object.
    pub uid: String,
    /// `<instance>-<slot>`.
    pub id: String,
}

impl Slot {
    /// Returns the key of its Instance.
    pub fn key(&self) -> InstanceKey {
        InstanceKey {
            namespace: self.namespace.clone(),
            name: self.instance.clone(),
        }
    }
}

impl RecordedDevice {
    /// Returns the name of its CDI device within the claim: the share is in it, since a claim may have several of one device.
    pub fn cdi_device(&self) -> String {
        match &self.share {
            Some(share) => format!("{}-{share}", self.device),
            None => self.device.clone(),
        }
    }
}
