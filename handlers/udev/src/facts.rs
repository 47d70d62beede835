//! Sysfs attributes of the devices that are reported, and the groups that own their nodes, read together.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_sdk::{Host, Result};

/// Maximum number of attributes or nodes per request; the host also bounds their text.
const MAX_READS: usize = 1000;

/// Path of a device and name of its attribute.
pub type Wanted = (String, String);

/// Values of attributes, and groups of nodes.
#[derive(Debug, Default)]
pub struct Facts {
    attributes: BTreeMap<Wanted, String>,
    groups: BTreeMap<String, u32>,
}

impl Facts {
    /// Reads the attributes and the owners of the nodes.
    pub fn read(wanted: BTreeSet<Wanted>, nodes: BTreeSet<String>, host: &Host) -> Result<Self> {
        let mut facts = Self::default();
        let wanted: Vec<Wanted> = wanted.into_iter().collect();
        for wanted in wanted.chunks(MAX_READS) {
            let values = host.udev().read(wanted)?;
            let pairs = wanted.iter().cloned().zip(values);
            let known = pairs.filter_map(|(wanted, value)| Some((wanted, value?)));
            facts.attributes.extend(known);
        }
        let nodes: Vec<String> = nodes.into_iter().collect();
        for nodes in nodes.chunks(MAX_READS) {
            let owners = host.udev().owners(nodes)?;
            let pairs = nodes.iter().cloned().zip(owners);
            let known = pairs.filter_map(|(node, owner)| Some((node, owner?.group)));
            facts.groups.extend(known);
        }
        Ok(facts)
    }

    /// Returns the id of the group that owns a node.
    pub fn group_of(&self, node: &str) -> Option<u32> {
        self.groups.get(node).copied()
    }

    /// Returns the trimmed value of an attribute; `None` if it is absent or empty.
    pub fn get(&self, devpath: &str, name: &str) -> Option<&str> {
        let value = self
            .attributes
            .get(&(devpath.to_owned(), name.to_owned()))?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }
}

/// Pairs the path of a device with the name of its attribute.
pub fn wanted(devpath: &str, name: &str) -> Wanted {
    (devpath.to_owned(), name.to_owned())
}
