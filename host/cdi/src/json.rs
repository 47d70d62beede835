//! JSON encoding of specs.

use std::io;

use serde::{Deserialize, Serialize};

use crate::spec::{ContainerEdits, Device, Spec};
use crate::version::minimum_version;

impl Spec {
    /// Writes the content of the spec's file: JSON in the lowest version that expresses the spec.
    pub fn write_json(&self, mut file: impl io::Write) -> Result<(), serde_json::Error> {
        let written = Written {
            cdi_version: minimum_version(self),
            kind: &self.kind,
            devices: &self.devices,
            container_edits: &self.container_edits,
        };
        serde_json::to_writer_pretty(&mut file, &written)?;
        file.write_all(b"\n").map_err(serde_json::Error::io)
    }

    /// Parses the output of [`Spec::write_json`]; a field that is never written is an error.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let read: Read = serde_json::from_slice(bytes)?;
        let Read {
            _version: _,
            kind,
            devices,
            container_edits,
        } = read;
        Ok(Self {
            kind,
            devices,
            container_edits,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    cdi_version: &'static str,
    kind: &'a str,
    devices: &'a [Device],
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    container_edits: &'a ContainerEdits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Read {
    #[serde(rename = "cdiVersion")]
    _version: serde::de::IgnoredAny,
    kind: String,
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: ContainerEdits,
}
