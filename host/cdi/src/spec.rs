//! Specs: one kind, its devices, and the edits that each makes to a container.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::names::{class_problem, device_name_problem, vendor_problem};

/// Spec of all devices of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Kind of the devices: `vendor/class`.
    pub kind: String,
    /// Devices of the kind, at least one.
    pub devices: Vec<Device>,
    /// Edits for containers with any of the devices.
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// Device of a spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Name of the device within its kind.
    pub name: String,
    /// Edits for containers with the device; at least one.
    pub container_edits: ContainerEdits,
}

impl Device {
    /// Returns the size of the device in a file, in bytes.
    pub fn size(&self) -> usize {
        // Strings and lists can always be encoded.
        let json = serde_json::to_vec_pretty(self).unwrap_or_default();
        let lines = json.split(|byte| *byte == b'\n').count();
        json.len() + lines * INDENT
    }
}

/// Number of spaces in front of each line of a device, because the file has it in a list.
const INDENT: usize = 4;

/// Edits to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// Environment variables as `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes to create.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files and folders of the host to mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

impl ContainerEdits {
    /// Returns true if there are no edits.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.device_nodes.is_empty() && self.mounts.is_empty()
    }
}

/// Device node. The runtime takes its type and numbers from the node on the host when the container starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Absolute path in the container.
    pub path: String,
    /// Absolute path on the host, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Permissions: some of `r`, `w`, `m`; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
}

impl DeviceNode {
    /// Creates a device node. Omits the path on the host if it is the same, because the field needs a newer version.
    pub fn new(container_path: &str, host_path: &str, permissions: &str) -> Self {
        Self {
            path: container_path.to_owned(),
            host_path: (host_path != container_path).then(|| host_path.to_owned()),
            permissions: Some(permissions.to_owned()),
        }
    }
}

/// Mount of a host path into the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the host.
    pub host_path: String,
    /// Absolute path in the container.
    pub container_path: String,
    /// File system type; absent for a bind mount.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
    /// Mount options, as in an OCI runtime configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Mount {
    /// Creates a bind mount of a file or folder of the host. A writable one includes everything mounted below it, a
    /// read-only one does not: `ro` applies to one file system only, and `rro`, which applies to all, fails on kernels
    /// before 5.12 and with older runtimes. Does not set `nodev`: device nodes may be the purpose of the mount, and the
    /// runtime's device rules still apply.
    pub fn bind(container_path: &str, host_path: &str, read_only: bool) -> Self {
        let options = if read_only {
            ["bind", "rprivate", "ro"]
        } else {
            ["rbind", "rprivate", "rw"]
        };
        Self {
            host_path: host_path.to_owned(),
            container_path: container_path.to_owned(),
            mount_type: None,
            options: options.map(str::to_owned).into(),
        }
    }
}

/// Error of a spec that a runtime would reject: names the part, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSpec(pub(crate) String);

impl Spec {
    /// Returns the vendor and the class after validation.
    pub fn vendor_and_class(&self) -> Result<(&str, &str), InvalidSpec> {
        let kind = &self.kind;
        let (vendor, class) = kind
            .split_once('/')
            .ok_or_else(|| InvalidSpec(format!("kind {kind:?} is not vendor/class")))?;
        check("vendor", vendor, vendor_problem(vendor))?;
        check("class", class, class_problem(class))?;
        Ok((vendor, class))
    }

    /// Validates everything for which a runtime would reject the file.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        self.vendor_and_class()?;
        if self.devices.is_empty() {
            let kind = &self.kind;
            return Err(InvalidSpec(format!(
                "kind {kind} has no device; a spec needs one"
            )));
        }
        self.container_edits.validate()?;
        let mut names = BTreeSet::new();
        for Device {
            name,
            container_edits,
        } in &self.devices
        {
            check("device name", name, device_name_problem(name))?;
            let is_repeated = !names.insert(name);
            check("device", name, is_repeated.then_some("is specified twice"))?;
            let is_empty = container_edits.is_empty();
            let problem = is_empty.then_some("has no env, device node or mount; it needs one");
            check("device", name, problem)?;
            container_edits.validate()?;
        }
        Ok(())
    }
}

impl ContainerEdits {
    fn validate(&self) -> Result<(), InvalidSpec> {
        for variable in &self.env {
            // Only the name goes into the error: the value may be a secret.
            let text = variable.split('=').next().unwrap_or_default();
            let problem = if text.is_empty() || !variable.contains('=') {
                Some("is not NAME=value")
            } else if variable.contains('\0') {
                Some("has a NUL")
            } else {
                None
            };
            check("env", text, problem)?;
        }
        for node in &self.device_nodes {
            check("device node", &node.path, path_problem(&node.path))?;
            if let Some(host) = &node.host_path {
                check("device node", host, path_problem(host))?;
            }
            let known = |text: &String| text.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
            let is_known = node.permissions.as_ref().is_none_or(known);
            let problem = (!is_known).then_some("has permissions other than 'r', 'w' and 'm'");
            check("device node", &node.path, problem)?;
        }
        for mount in &self.mounts {
            for path in [&mount.container_path, &mount.host_path] {
                check("mount", path, path_problem(path))?;
            }
        }
        Ok(())
    }
}

fn path_problem(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        Some("is not an absolute path")
    } else if path.contains('\0') {
        Some("has a NUL")
    } else {
        None
    }
}

/// Converts a problem, if any, into an error that names the part of the spec and its text.
pub(crate) fn check(
    part: &str,
    text: &str,
    problem: Option<&'static str>,
) -> Result<(), InvalidSpec> {
    problem.map_or(Ok(()), |problem| {
        Err(InvalidSpec(format!("{part} {text:?} {problem}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_device_is_what_it_adds_to_the_file() {
        let edits = |env: &[String]| ContainerEdits {
            env: env.to_vec(),
            ..ContainerEdits::default()
        };
        let nodes = ContainerEdits {
            device_nodes: (0..50)
                .map(|n| DeviceNode::new(&format!("/dev/video{n}"), "/dev/other", "rw"))
                .collect(),
            mounts: (0..50)
                .map(|n| Mount::bind(&format!("/data/{n}"), "/srv/data", true))
                .collect(),
            ..ContainerEdits::default()
        };
        for container_edits in [
            edits(&["A=1".to_owned()]),
            edits(&vec![format!("A={}", "x".repeat(100)); 100]),
            edits(&[format!("A={}", "\u{1}\n\"\\ä".repeat(10_000))]),
            nodes,
        ] {
            let device = Device {
                name: "8120fe".into(),
                container_edits,
            };
            let file = |number: usize| {
                let spec = Spec {
                    kind: "akri.sh/cams".into(),
                    devices: vec![device.clone(); number],
                    container_edits: ContainerEdits::default(),
                };
                let mut written = Vec::new();
                spec.write_json(&mut written).unwrap();
                written.len()
            };
            assert_eq!(file(2) - file(1), ",\n".len() + device.size());
        }
    }
}
