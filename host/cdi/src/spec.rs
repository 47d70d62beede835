//! A spec: one kind, its devices, and what each changes in a container.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::names::{class_problem, device_name_problem, vendor_problem};

/// All devices of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// `vendor/class`.
    pub kind: String,
    /// The devices, at least one.
    pub devices: Vec<Device>,
    /// What a container gets that has any of the devices.
    pub container_edits: ContainerEdits,
}

/// One device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// The name within the kind.
    pub name: String,
    /// What a container gets that has the device; at least one edit.
    pub container_edits: ContainerEdits,
}

impl Device {
    /// How many bytes of a file the device takes, or somewhat fewer.
    pub fn size(&self) -> usize {
        let Self {
            name,
            container_edits,
        } = self;
        let env = container_edits.env.iter().map(|variable| text(variable));
        let nodes = container_edits.device_nodes.iter().map(|node| {
            let host = node.host_path.as_deref().map_or(0, text);
            NODE + text(&node.path) + host
        });
        let mounts = container_edits.mounts.iter().map(|mount| {
            let options: usize = mount.options.iter().map(|option| text(option)).sum();
            MOUNT + text(&mount.host_path) + text(&mount.container_path) + options
        });
        DEVICE + text(name) + env.chain(nodes).chain(mounts).sum::<usize>()
    }
}

/// The bytes of JSON around a device, a node, a mount and a text.
const DEVICE: usize = 100;
const NODE: usize = 100;
const MOUNT: usize = 120;
const TEXT: usize = 16;

/// How many bytes a text takes, escaped, on a line of its own.
fn text(text: &str) -> usize {
    let escapes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
        0..=0x1f => 5,
        _ => 0,
    });
    TEXT + text.len() + escapes.sum::<usize>()
}

/// What is changed in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files and folders of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

impl ContainerEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.device_nodes.is_empty() && self.mounts.is_empty()
    }
}

/// A device node. Type and numbers are left to the runtime, which looks at the node when the container starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// The absolute path in the container.
    pub path: String,
    /// The absolute path on the host, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Some of `r`, `w`, `m`; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
}

impl DeviceNode {
    /// A node; the path on the host is written only where it differs, because that needs a newer version.
    pub fn new(container_path: &str, host_path: &str, permissions: &str) -> Self {
        Self {
            path: container_path.to_owned(),
            host_path: (host_path != container_path).then(|| host_path.to_owned()),
            permissions: Some(permissions.to_owned()),
        }
    }
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// The absolute path on the host.
    pub host_path: String,
    /// The absolute path in the container.
    pub container_path: String,
    /// The type of file system; absent for a bind mount.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
    /// Mount options, as in an OCI runtime configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Mount {
    /// A file or folder of the host. If it may be written, then with everything mounted below it; if not, without: `ro` holds
    /// for one file system, and `rro`, which holds for all, fails on kernels before 5.12 and with older runtimes.
    /// `nodev` is not set: device nodes in it are what it may be wanted for, and the runtime's device rules still hold.
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

/// Why a spec is not written: a runtime would refuse the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// The kind is not `vendor/class`.
    #[error("kind {kind:?} is not vendor/class")]
    Kind {
        /// The kind.
        kind: String,
    },
    /// A name breaks its rule.
    #[error("{part} {text:?} {problem}")]
    Name {
        /// `vendor`, `class` or `device name`.
        part: &'static str,
        /// The name.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no device.
    #[error("kind {kind} has no device; a spec needs one")]
    NoDevice {
        /// The kind.
        kind: String,
    },
    /// Two devices have one name.
    #[error("device {name:?} is there twice")]
    Repeated {
        /// The name.
        name: String,
    },
    /// A device would do nothing.
    #[error("device {name:?} has no env, device node or mount; it needs one")]
    NoEdit {
        /// The name.
        name: String,
    },
    /// An edit is not understood.
    #[error("{edit} {text:?} {problem}")]
    Edit {
        /// `env`, `device node` or `mount`.
        edit: &'static str,
        /// Its text: the name of the variable, or the path.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Spec {
    /// Vendor and class, both checked.
    pub fn vendor_and_class(&self) -> Result<(&str, &str), InvalidSpec> {
        let (vendor, class) = self.kind.split_once('/').ok_or_else(|| InvalidSpec::Kind {
            kind: self.kind.clone(),
        })?;
        check_name("vendor", vendor, vendor_problem(vendor))?;
        check_name("class", class, class_problem(class))?;
        Ok((vendor, class))
    }

    /// Checks everything for which a runtime would refuse the file.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        self.vendor_and_class()?;
        if self.devices.is_empty() {
            return Err(InvalidSpec::NoDevice {
                kind: self.kind.clone(),
            });
        }
        self.container_edits.validate()?;
        let mut names = BTreeSet::new();
        for Device {
            name,
            container_edits,
        } in &self.devices
        {
            check_name("device name", name, device_name_problem(name))?;
            if !names.insert(name) {
                return Err(InvalidSpec::Repeated { name: name.clone() });
            }
            if container_edits.is_empty() {
                return Err(InvalidSpec::NoEdit { name: name.clone() });
            }
            container_edits.validate()?;
        }
        Ok(())
    }
}

impl ContainerEdits {
    fn validate(&self) -> Result<(), InvalidSpec> {
        for variable in &self.env {
            // Only the name goes into the text: the value may be a secret.
            let text = variable.split('=').next().unwrap_or_default();
            let problem = if text.is_empty() || !variable.contains('=') {
                Some("is not NAME=value")
            } else if variable.contains('\0') {
                Some("has a NUL")
            } else {
                None
            };
            check_edit("env", text, problem)?;
        }
        for node in &self.device_nodes {
            check_edit("device node", &node.path, path_problem(&node.path))?;
            if let Some(host) = &node.host_path {
                check_edit("device node", host, path_problem(host))?;
            }
            let known = |text: &String| text.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
            if !node.permissions.as_ref().is_none_or(known) {
                check_edit(
                    "device node",
                    &node.path,
                    Some("has permissions other than 'r', 'w' and 'm'"),
                )?;
            }
        }
        for mount in &self.mounts {
            for path in [&mount.container_path, &mount.host_path] {
                check_edit("mount", path, path_problem(path))?;
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

fn check_name(
    part: &'static str,
    text: &str,
    problem: Option<&'static str>,
) -> Result<(), InvalidSpec> {
    problem.map_or(Ok(()), |problem| {
        Err(InvalidSpec::Name {
            part,
            text: text.to_owned(),
            problem,
        })
    })
}

fn check_edit(
    edit: &'static str,
    text: &str,
    problem: Option<&'static str>,
) -> Result<(), InvalidSpec> {
    problem.map_or(Ok(()), |problem| {
        Err(InvalidSpec::Edit {
            edit,
            text: text.to_owned(),
            problem,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_device_is_about_that_of_its_text() {
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
            let said = device.size();
            let spec = Spec {
                kind: "akri.sh/cams".into(),
                devices: vec![device],
                container_edits: ContainerEdits::default(),
            };
            let mut written = Vec::new();
            spec.write_json(&mut written).unwrap();
            let real = written.len();
            assert!(
                (real * 3 / 4..=real * 5 / 4).contains(&said),
                "{said} of {real}"
            );
        }
    }
}
