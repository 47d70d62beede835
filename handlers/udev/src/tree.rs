//! The devices of the host's answer, by path, and the rules that match them.

use std::collections::BTreeMap;

use leafhost_sdk::udev::Device;

use crate::details::Rules;

/// Devices of the host's answer by path.
pub struct Tree<'a> {
    devices: BTreeMap<&'a str, &'a Device>,
    /// Number of rules for devices.
    of_devices: usize,
    /// Number of rules for devices and nodes.
    of_nodes: usize,
}

impl<'a> Tree<'a> {
    /// Creates the tree of an answer to all these rules.
    pub fn new(found: &'a [Device], rules: &Rules) -> Self {
        Self {
            devices: found
                .iter()
                .map(|device| (device.devpath.as_str(), device))
                .collect(),
            of_devices: rules.devices.len(),
            of_nodes: rules.devices.len() + rules.nodes.len(),
        }
    }

    /// Returns true if a rule for devices matches.
    pub fn is_matched(&self, device: &Device) -> bool {
        Self::has_rule(device, 0, self.of_devices)
    }

    /// Returns true if a rule for nodes matches.
    pub fn is_node(&self, device: &Device) -> bool {
        Self::has_rule(device, self.of_devices, self.of_nodes)
    }

    /// Returns true if a rule for companions matches.
    pub fn is_companion(&self, device: &Device) -> bool {
        Self::has_rule(device, self.of_nodes, usize::MAX)
    }

    fn has_rule(device: &Device, from: usize, end: usize) -> bool {
        let mut rules = device.rules.iter();
        rules.any(|index| usize::try_from(*index).is_ok_and(|index| (from..end).contains(&index)))
    }

    /// Returns all devices, sorted by path.
    pub fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.devices.values().copied()
    }

    /// Returns the device at a path.
    pub fn get(&self, devpath: &str) -> Option<&'a Device> {
        self.devices.get(devpath).copied()
    }

    /// Returns a device and its ancestors, nearest first.
    pub fn chain(&self, devpath: &str) -> Vec<&'a Device> {
        let first = self.get(devpath);
        std::iter::successors(first, |device| self.get(device.parent.as_deref()?)).collect()
    }
}
