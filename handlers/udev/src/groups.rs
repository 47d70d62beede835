//! Converts matched udev devices into groups, each of which becomes one device.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_sdk::Host;
use leafhost_sdk::udev::Device;

use crate::tree::Tree;
use crate::{hardware, natural};

/// Devices that become one device.
pub struct Group<'a> {
    /// Device that names the group.
    pub head: &'a Device,
    /// Devices with the nodes that a workload gets, in order.
    pub nodes: Vec<&'a Device>,
    /// Devices elsewhere whose nodes a workload gets in addition, in order.
    pub companions: Vec<&'a Device>,
}

/// Returns the matched devices by path. One without a node is replaced by its nearest ancestor with a node, if any.
pub fn members<'a>(
    tree: &Tree<'a>,
    rules: &[String],
    host: &Host,
) -> BTreeMap<&'a str, &'a Device> {
    let mut members: BTreeMap<&str, &Device> = BTreeMap::new();
    let mut climbed: BTreeSet<&str> = BTreeSet::new();
    for device in tree.devices().filter(|device| tree.is_matched(device)) {
        let chain = tree.chain(&device.devpath);
        let member = with_node(&chain).unwrap_or(device);
        let climbs = member.devpath != device.devpath;
        if climbs && (tree.is_matched(member) || climbed.contains(member.devpath.as_str())) {
            let rule = device
                .rules
                .first()
                .and_then(|index| rules.get(usize::try_from(*index).ok()?));
            host.skipped(
                &device.devpath,
                rule.map(String::as_str).unwrap_or_default(),
                format!(
                    "has no node of its own and belongs to {}, which is a device already",
                    member.devpath
                ),
            );
        }
        if climbs {
            climbed.insert(&member.devpath);
        }
        members.insert(&member.devpath, member);
    }
    members
}

/// Groups every member under the uppermost member on its path if `recursive` is set, otherwise under itself. Paths are
/// compared by parts: `loop10` is not below `loop1`.
pub fn by_path<'a>(members: &BTreeMap<&'a str, &'a Device>, recursive: bool) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<&str, Group<'a>> = BTreeMap::new();
    for (devpath, member) in members {
        let uppermost = devpath
            .match_indices('/')
            .filter_map(|(end, _)| members.get(devpath.get(..end)?))
            .find(|_| recursive)
            .copied()
            .unwrap_or(*member);
        groups
            .entry(uppermost.devpath.as_str())
            .or_insert_with(|| Group {
                head: uppermost,
                nodes: Vec::new(),
                companions: Vec::new(),
            })
            .nodes
            .extend(member.devnode.as_ref().map(|_| *member));
    }
    groups.into_values().collect()
}

/// Groups the matched devices by the hardware that they are part of. If `selects` is true, the rules for nodes select the
/// nodes of a group; otherwise it has the nodes of its matched devices.
pub fn by_hardware<'a>(tree: &Tree<'a>, selects: bool, host: &Host) -> Vec<Group<'a>> {
    let mut parts: BTreeMap<&str, (&Device, Vec<&Device>)> = BTreeMap::new();
    for device in tree.devices().filter(|device| tree.is_matched(device)) {
        let head = head(tree, device);
        let group = parts.entry(&head.devpath);
        group.or_insert_with(|| (head, Vec::new())).1.push(device);
    }
    let companions = tree.devices().filter(|device| tree.is_companion(device));
    let companions = in_order(companions.collect());
    let mut selected: BTreeMap<&str, Vec<&Device>> = BTreeMap::new();
    for device in tree.devices().filter(|device| tree.is_node(device)) {
        let head = head(tree, device);
        selected.entry(&head.devpath).or_default().push(device);
    }
    let mut groups = Vec::new();
    for (devpath, (head, matched)) in parts {
        let nodes = if selects {
            in_order(selected.remove(devpath).unwrap_or_default())
        } else {
            nodes(tree, matched)
        };
        if selects && nodes.is_empty() {
            let reason = "no rule matches a device of this hardware with a node, so there is nothing to hand out";
            host.skipped(devpath, "nodes", reason);
            continue;
        }
        let is_own = |device: &Device| nodes.iter().any(|node| node.devpath == device.devpath);
        let companions = companions.iter().filter(|device| !is_own(device));
        groups.push(Group {
            head,
            companions: companions.copied().collect(),
            nodes,
        });
    }
    groups
}

/// Returns the device that names a group: the hardware if it is known, otherwise the nearest of `device` and its ancestors
/// that has a node, otherwise `device`.
fn head<'a>(tree: &Tree<'a>, device: &'a Device) -> &'a Device {
    let chain = tree.chain(&device.devpath);
    hardware::whole(&chain)
        .or_else(|| with_node(&chain))
        .unwrap_or(device)
}

/// Returns the matched devices with nodes; if none has one, the nearest ancestors with nodes.
fn nodes<'a>(tree: &Tree<'a>, matched: Vec<&'a Device>) -> Vec<&'a Device> {
    if matched.iter().any(|device| device.devnode.is_some()) {
        return in_order(matched);
    }
    let above = matched.iter().filter_map(|device| {
        let node = with_node(&tree.chain(&device.devpath))?;
        Some((node.devpath.as_str(), node))
    });
    let above: BTreeMap<&str, &Device> = above.collect();
    in_order(above.into_values().collect())
}

fn with_node<'a>(chain: &[&'a Device]) -> Option<&'a Device> {
    let mut chain = chain.iter().copied();
    chain.find(|device| device.devnode.is_some())
}

/// Returns the devices that have a node, sorted by subsystem, then by kernel name in natural order.
fn in_order(mut devices: Vec<&Device>) -> Vec<&Device> {
    devices.retain(|device| device.devnode.is_some());
    devices.sort_by_key(|device| {
        let name = natural::key(&device.kernel);
        (device.subsystem.as_deref(), name, device.devpath.as_str())
    });
    devices
}
