//! JSON encoding of specs, each in the lowest version of the specification that expresses it.

use std::io;

use serde::Serialize;

use crate::spec::{Device, Spec};

impl Spec {
    /// Writes the content of the spec's file: JSON in the lowest version that expresses the spec.
    pub fn write_json(&self, mut file: impl io::Write) -> Result<(), serde_json::Error> {
        let content = Content {
            cdi_version: minimum_version(self),
            spec: self,
        };
        serde_json::to_writer_pretty(&mut file, &content)?;
        file.write_all(b"\n").map_err(serde_json::Error::io)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    cdi_version: &'static str,
    #[serde(flatten)]
    spec: &'a Spec,
}

/// Returns the lowest version that expresses `spec`, such as `0.5.0`. Readers reject a lower one because of the newer
/// features, and a higher one if they do not know it.
pub fn minimum_version(spec: &Spec) -> &'static str {
    let of_devices = spec.devices.iter().map(|device| &device.container_edits);
    let edits = of_devices.chain([&spec.container_edits]);
    let mut nodes = edits.clone().flat_map(|edits| &edits.device_nodes);
    let mut mounts = edits.flat_map(|edits| &edits.mounts);
    let class = spec.kind.split_once('/').map(|(_, class)| class);
    let begins_with_a_digit =
        |device: &Device| !device.name.starts_with(|c: char| c.is_ascii_alphabetic());
    if class.is_some_and(|class| class.contains('.')) {
        "0.6.0"
    } else if spec.devices.iter().any(begins_with_a_digit)
        || nodes.any(|node| node.host_path.is_some())
    {
        "0.5.0"
    } else if mounts.any(|mount| mount.mount_type.is_some()) {
        "0.4.0"
    } else {
        // Every runtime with CDI support reads this version.
        "0.3.0"
    }
}
