//! Selection of the lowest version of the specification that expresses a spec.

use crate::spec::{ContainerEdits, Spec};

/// Version that every runtime with CDI support reads.
const BASE: &str = "0.3.0";

/// Version, and a test for the features it introduced.
type Rule = (&'static str, fn(&Spec) -> bool);

/// Rules, highest version first.
const RULES: [Rule; 4] = [
    ("0.6.0", has_a_dot_in_the_class),
    ("0.5.0", has_a_device_name_that_begins_with_a_digit),
    ("0.5.0", has_a_node_with_another_path_on_the_host),
    ("0.4.0", has_a_mount_type),
];

/// Returns the lowest version that expresses `spec`, such as `0.5.0`. Readers reject a lower one because of the newer
/// features, and a higher one if they do not know it.
pub fn minimum_version(spec: &Spec) -> &'static str {
    RULES
        .iter()
        .find(|(_, applies)| applies(spec))
        .map_or(BASE, |(version, _)| version)
}

fn edits(spec: &Spec) -> impl Iterator<Item = &ContainerEdits> {
    spec.devices
        .iter()
        .map(|device| &device.container_edits)
        .chain([&spec.container_edits])
}

fn has_a_dot_in_the_class(spec: &Spec) -> bool {
    spec.kind
        .split_once('/')
        .is_some_and(|(_, class)| class.contains('.'))
}

fn has_a_device_name_that_begins_with_a_digit(spec: &Spec) -> bool {
    spec.devices
        .iter()
        .any(|device| !device.name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn has_a_node_with_another_path_on_the_host(spec: &Spec) -> bool {
    edits(spec)
        .flat_map(|edits| &edits.device_nodes)
        .any(|node| node.host_path.is_some())
}

fn has_a_mount_type(spec: &Spec) -> bool {
    edits(spec)
        .flat_map(|edits| &edits.mounts)
        .any(|mount| mount.mount_type.is_some())
}
