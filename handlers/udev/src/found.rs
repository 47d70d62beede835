//! Converts groups of udev devices into devices: ids, properties, nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use leafhost_sdk::udev::{self, Rule};
use leafhost_sdk::{Device, Discovery, Error, Host, Problem, Request, Result};

use crate::details::Details;
use crate::facts::{Facts, wanted};
use crate::groups::{self, Group};
use crate::tree::Tree;
use crate::{hardware, identity, paths, resource};

/// Time between calls without events. A process in a user namespace's network namespace receives no events, and udev's
/// database may change without one.
const BACKSTOP: Duration = Duration::from_mins(5);

/// Runs one `discover` call.
pub fn discover(request: &Request<Details>, host: &Host) -> Result<Discovery> {
    let details = &request.details;
    let rules = details.rules().map_err(Error::InvalidDetails)?;
    if rules.devices.is_empty() {
        return Ok(Discovery::complete([]).until_changed());
    }
    let all: Vec<Rule> = rules.all().cloned().collect();
    let found = host.udev().find(&all).map_err(|error| match error {
        udev::Error::InvalidRule(what) => {
            Error::InvalidDetails(vec![Problem::new("udevRules", what)])
        }
        udev::Error::Unavailable(what) => Error::Unavailable(what),
    })?;
    let options = Options::of(request)?;
    let tree = Tree::new(&found, &rules);
    let groups = if details.group.is_some() {
        groups::by_hardware(&tree, !rules.nodes.is_empty(), host)
    } else {
        let members = groups::members(&tree, &details.udev_rules, host);
        groups::by_path(&members, details.group_recursive)
    };
    let facts = options.facts(&groups, &tree, host)?;
    let ids = identity::ids(details.identity, &groups, &tree, &facts, host);
    let mut devices = Vec::new();
    for (group, id) in groups.iter().zip(ids) {
        devices.push(options.device(id, group, &tree, &facts, host));
    }
    Ok(wakes(Discovery::complete(devices), all))
}

fn wakes(discovery: Discovery, rules: Vec<Rule>) -> Discovery {
    rules
        .into_iter()
        .fold(discovery, Discovery::wake_on_udev)
        .wake_after(BACKSTOP)
}

/// Options from the details and properties.
struct Options<'a> {
    details: &'a Details,
    grouped: bool,
    resource: Option<String>,
    vfio: bool,
}

impl<'a> Options<'a> {
    fn of(request: &'a Request<Details>) -> Result<Self> {
        let resource = request.property_text("devicePluginResourceName")?;
        let vfio = request.property_text("vfioPassthrough")?;
        Ok(Self {
            details: &request.details,
            grouped: request.details.group_recursive || request.details.group.is_some(),
            resource: resource
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty()),
            vfio: vfio.is_some_and(|text| text.trim().eq_ignore_ascii_case("true")),
        })
    }

    /// Reads everything that the groups need beyond the host's answer.
    fn facts(&self, groups: &[Group<'_>], tree: &Tree<'_>, host: &Host) -> Result<Facts> {
        let mut attributes = BTreeSet::new();
        let mut nodes = BTreeSet::new();
        for group in groups {
            let devpath = &group.head.devpath;
            let chain = tree.chain(devpath);
            attributes.extend(hardware::wanted(&chain));
            attributes.extend(identity::attributes(self.details.identity, &chain));
            if self.vfio
                && self.resource.is_some()
                && let Some((path, _)) = resource::pci_device(devpath)
            {
                attributes.insert(wanted(path, "iommu_group"));
            }
            let all = group.nodes.iter().chain(&group.companions);
            nodes.extend(all.filter_map(|device| device.devnode.clone()));
        }
        Facts::read(attributes, nodes, host)
    }

    fn device(
        &self,
        id: String,
        group: &Group<'_>,
        tree: &Tree<'_>,
        facts: &Facts,
        host: &Host,
    ) -> Device {
        let devpath = group.head.devpath.as_str();
        let chain = tree.chain(devpath);
        let mut device = Device::new(id).property("UDEV_DEVPATH", devpath);
        device.physical_id = hardware::physical_id(&chain);
        for (name, value) in hardware::attributes(&chain, facts) {
            device = device.attribute(name, value);
        }
        let mut places = Places::new(devpath, host);
        let all = group.nodes.iter().chain(&group.companions);
        for (index, node) in all.enumerate() {
            let Some(path) = &node.devnode else {
                continue;
            };
            let suffix = if self.grouped {
                format!("_{index}")
            } else {
                String::new()
            };
            let place = if index < group.nodes.len() {
                self.place(path, index, &places)
            } else {
                path.clone()
            };
            if let (Some(resource), Some(address)) = (&self.resource, resource::usb_address(path)) {
                let variable = resource::variable("USB_RESOURCE", resource);
                device = device.property(variable + &suffix, address);
            }
            if places.take(&place, "containerPath") {
                device = device
                    .property(format!("UDEV_DEVNODE{suffix}"), &place)
                    .device_node(path, &place, &self.details.permissions);
                if let Some(group) = facts.group_of(path) {
                    device = device.property(format!("UDEV_GID{suffix}"), group.to_string());
                }
            }
            for link in self.links(node, &places) {
                if places.take(&link, "links") {
                    device = device.device_node(path, link, &self.details.permissions);
                }
            }
        }
        self.with_pci(device, devpath, facts, host)
    }

    /// Returns the path of a node in the container.
    fn place(&self, node: &str, index: usize, places: &Places<'_>) -> String {
        let Some(path) = &self.details.container_path else {
            return node.to_owned();
        };
        paths::numbered(path, index).unwrap_or_else(|| {
            let reason = format!(
                "has several nodes: the first one is {path} in the container, {node} keeps its path; \
                 write %n in containerPath for a number"
            );
            places.explain("containerPath", &reason);
            node.to_owned()
        })
    }

    fn links(&self, node: &udev::Device, places: &Places<'_>) -> Vec<String> {
        if !self.details.links {
            return Vec::new();
        }
        let (links, dropped) = paths::links(node);
        if dropped > 0 {
            let kernel = &node.kernel;
            let most = links.len();
            let reason =
                format!("{kernel} has {dropped} names more than the {most} that are handed out");
            places.explain("links", &reason);
        }
        links
    }

    fn with_pci(&self, device: Device, devpath: &str, facts: &Facts, host: &Host) -> Device {
        let Some(resource) = &self.resource else {
            if self.vfio {
                let reason = "nothing is passed through without devicePluginResourceName";
                host.skipped(devpath, "vfioPassthrough", reason);
            }
            return device;
        };
        let Some((path, address)) = resource::pci_device(devpath) else {
            return device;
        };
        let device = device.property(resource::variable("PCI_RESOURCE", resource), address);
        if !self.vfio {
            return device;
        }
        let group = facts.get(path, "iommu_group");
        let Some(group) = group.filter(|group| group.parse::<u32>().is_ok()) else {
            let reason = format!("{address} has no IOMMU group; is the IOMMU switched on?");
            host.skipped(devpath, "vfioPassthrough", reason);
            return device;
        };
        let group = format!("/dev/vfio/{group}");
        device.device_node(&group, &group, "rwm").device_node(
            "/dev/vfio/vfio",
            "/dev/vfio/vfio",
            "rwm",
        )
    }
}

/// Container paths taken by the nodes of one device.
struct Places<'a> {
    device: &'a str,
    host: &'a Host,
    taken: BTreeSet<String>,
}

impl<'a> Places<'a> {
    fn new(device: &'a str, host: &'a Host) -> Self {
        Self {
            device,
            host,
            taken: BTreeSet::new(),
        }
    }

    fn explain(&self, rule: &str, reason: &str) {
        self.host.skipped(self.device, rule, reason);
    }

    /// Reserves a path. If another node has the path, returns false and explains why.
    fn take(&mut self, path: &str, rule: &str) -> bool {
        let is_free = self.taken.insert(path.to_owned());
        if !is_free {
            let reason =
                format!("two nodes have the path {path} in the container: the first one gets it");
            self.explain(rule, &reason);
        }
        is_free
    }
}
