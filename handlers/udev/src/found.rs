//! Converts matched udev devices into devices: nodes of ancestors, groups, properties.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_sdk::udev::{self, Rule};
use leafhost_sdk::{Device, Discovery, Error, Host, Problem, Request, Result};

use crate::details::Details;
use crate::{hardware, resource};

/// Time between calls without events. A process in a user namespace's network namespace receives no events, and udev's
/// database may change without one.
const BACKSTOP: Duration = Duration::from_mins(5);

/// Runs one `discover` call.
pub fn discover(request: &Request<Details>, host: &Host) -> Result<Discovery> {
    let rules = request.details.rules().map_err(Error::InvalidDetails)?;
    if rules.is_empty() {
        return Ok(Discovery::complete([]).until_changed());
    }
    let found = host.udev().find(&rules).map_err(|error| match error {
        udev::Error::InvalidRule(what) => {
            Error::InvalidDetails(vec![Problem::new("udevRules", what)])
        }
        udev::Error::Unavailable(what) => Error::Unavailable(what),
    })?;
    let options = Options::of(request)?;
    let tree = Tree::new(&found);
    let members = members(&tree, &request.details.udev_rules, host);
    let groups = grouped(&members, request.details.group_recursive);
    let mut devices = Vec::new();
    for (devpath, nodes) in groups {
        devices.push(options.device(&tree, devpath, &nodes, host)?);
    }
    Ok(wakes(Discovery::complete(devices), rules))
}

fn wakes(discovery: Discovery, rules: Vec<Rule>) -> Discovery {
    rules
        .into_iter()
        .fold(discovery, Discovery::wake_on_udev)
        .wake_after(BACKSTOP)
}

/// Devices of the host's answer by path.
struct Tree<'a>(BTreeMap<&'a str, &'a udev::Device>);

impl<'a> Tree<'a> {
    fn new(found: &'a [udev::Device]) -> Self {
        Self(
            found
                .iter()
                .map(|device| (device.devpath.as_str(), device))
                .collect(),
        )
    }

    /// Returns a device and its ancestors, nearest first.
    fn chain(&self, devpath: &str) -> Vec<&'a udev::Device> {
        let first = self.0.get(devpath).copied();
        std::iter::successors(first, |device| {
            self.0.get(device.parent.as_deref()?).copied()
        })
        .collect()
    }
}

/// Returns path and node of each matched device, or of its nearest ancestor with a node.
fn members(tree: &Tree<'_>, rules: &[String], host: &Host) -> BTreeMap<String, Option<String>> {
    let mut members: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut climbed: BTreeSet<String> = BTreeSet::new();
    for device in tree.0.values().filter(|device| device.matched()) {
        let chain = tree.chain(&device.devpath);
        let with_node = chain.iter().find(|device| device.devnode.is_some());
        let member = with_node.copied().unwrap_or(device);
        let climbs = member.devpath != device.devpath;
        if climbs && (member.matched() || climbed.contains(&member.devpath)) {
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
            climbed.insert(member.devpath.clone());
        }
        members.insert(member.devpath.clone(), member.devnode.clone());
    }
    members
}

/// Groups every member under the uppermost member on its path if `recursive` is set, otherwise under itself. Paths are
/// compared by parts: `loop10` is not below `loop1`.
fn grouped(
    members: &BTreeMap<String, Option<String>>,
    recursive: bool,
) -> BTreeMap<&str, Vec<&str>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (devpath, node) in members {
        let uppermost = devpath
            .match_indices('/')
            .filter_map(|(end, _)| devpath.get(..end))
            .find(|path| recursive && members.contains_key(*path))
            .unwrap_or(devpath);
        groups.entry(uppermost).or_default().extend(node.as_deref());
    }
    groups
}

/// Options from the details and properties.
struct Options<'a> {
    grouped: bool,
    permissions: &'a str,
    resource: Option<String>,
    vfio: bool,
}

impl<'a> Options<'a> {
    fn of(request: &'a Request<Details>) -> Result<Self> {
        let resource = request.property_text("devicePluginResourceName")?;
        let vfio = request.property_text("vfioPassthrough")?;
        Ok(Self {
            grouped: request.details.group_recursive,
            permissions: &request.details.permissions,
            resource: resource
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty()),
            vfio: vfio.is_some_and(|text| text.trim().eq_ignore_ascii_case("true")),
        })
    }

    fn device(
        &self,
        tree: &Tree<'_>,
        devpath: &str,
        nodes: &[&str],
        host: &Host,
    ) -> Result<Device> {
        let chain = tree.chain(devpath);
        let mut device = Device::new(devpath).property("UDEV_DEVPATH", devpath);
        device.physical_id = hardware::physical_id(&chain);
        for (name, value) in hardware::attributes(&chain) {
            device = device.attribute(name, value);
        }
        for (index, node) in nodes.iter().enumerate() {
            let suffix = if self.grouped {
                format!("_{index}")
            } else {
                String::new()
            };
            device = device
                .property(format!("UDEV_DEVNODE{suffix}"), *node)
                .device_node(*node, *node, self.permissions);
            if let (Some(resource), Some(address)) = (&self.resource, resource::usb_address(node)) {
                let variable = resource::variable("USB_RESOURCE", resource);
                device = device.property(variable + &suffix, address);
            }
        }
        self.with_pci(device, devpath, host)
    }

    fn with_pci(&self, device: Device, devpath: &str, host: &Host) -> Result<Device> {
        let Some(resource) = &self.resource else {
            if self.vfio {
                let reason = "nothing is passed through without devicePluginResourceName";
                host.skipped(devpath, "vfioPassthrough", reason);
            }
            return Ok(device);
        };
        let Some((path, address)) = resource::pci_device(devpath) else {
            return Ok(device);
        };
        let device = device.property(resource::variable("PCI_RESOURCE", resource), address);
        if !self.vfio {
            return Ok(device);
        }
        let asked = [(path.to_owned(), "iommu_group".to_owned())];
        let group = host.udev().read(&asked)?.into_iter().flatten().next();
        let Some(group) = group.filter(|group| group.parse::<u32>().is_ok()) else {
            let reason = format!("{address} has no IOMMU group; is the IOMMU switched on?");
            host.skipped(devpath, "vfioPassthrough", reason);
            return Ok(device);
        };
        let group = format!("/dev/vfio/{group}");
        Ok(device.device_node(&group, &group, "rwm").device_node(
            "/dev/vfio/vfio",
            "/dev/vfio/vfio",
            "rwm",
        ))
    }
}
