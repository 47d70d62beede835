//! Ids of devices: `leafhost.dev/identity`.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_sdk::Host;
use leafhost_sdk::udev::Device;

use crate::details::Identity;
use crate::facts::{Facts, Wanted, wanted};
use crate::groups::Group;
use crate::hardware;
use crate::natural;
use crate::ports::Place;
use crate::tree::Tree;

/// Maximum number of bytes in an id, as on the host.
const MAX_ID: usize = 1024;
/// Maximum number of bytes in a serial number; a longer one is ignored.
const MAX_SERIAL: usize = 256;

/// Returns the attributes from which the id of a device is computed. `chain` is the device and its ancestors, nearest first.
pub fn attributes(identity: Identity, chain: &[&Device]) -> Vec<Wanted> {
    if identity == Identity::Path {
        return Vec::new();
    }
    let mut all = Vec::new();
    if let Some((device, name)) = numbering(chain) {
        all.push(wanted(&device.devpath, name));
    }
    if identity == Identity::Serial
        && let Some(usb) = hardware::usb_device(chain)
    {
        all.push(wanted(&usb.devpath, "serial"));
    }
    all
}

/// Returns the ids of the groups, in the order of the groups. No two are equal.
pub fn ids(
    identity: Identity,
    groups: &[Group<'_>],
    tree: &Tree<'_>,
    facts: &Facts,
    host: &Host,
) -> Vec<String> {
    let paths = groups.iter().map(|group| group.head.devpath.clone());
    if identity == Identity::Path {
        return paths.collect();
    }
    let places = places(groups, tree, facts);
    let ports = places.iter().map(|(place, number)| {
        let place = place.as_ref()?;
        Some(id("port:", &place.hardware, &place.below, *number))
    });
    let ports = unique(ports.collect(), groups, "port", "the path", host);
    let serials = if identity == Identity::Serial {
        let serials = serials(groups, &places, tree, facts, host);
        unique(serials, groups, "serial", "the port", host)
    } else {
        vec![None; groups.len()]
    };
    serials
        .into_iter()
        .zip(ports)
        .zip(paths)
        .map(|((serial, port), path)| serial.or(port).unwrap_or(path))
        .collect()
}

fn id(prefix: &str, hardware: &str, below: &[String], number: Option<u64>) -> String {
    let mut parts = vec![format!("{prefix}{hardware}")];
    parts.extend_from_slice(below);
    parts.extend(number.map(|number| number.to_string()));
    parts.join("/")
}

/// Returns each group's place, with the number of the device among those with the same place.
fn places(
    groups: &[Group<'_>],
    tree: &Tree<'_>,
    facts: &Facts,
) -> Vec<(Option<Place>, Option<u64>)> {
    let mut places = Vec::new();
    // Devices that share a place.
    let mut siblings: BTreeMap<String, Vec<&Device>> = BTreeMap::new();
    for group in groups {
        let number = number(&tree.chain(&group.head.devpath), facts);
        let place = Place::of(group.head, tree, number.is_some());
        if let Some(place) = place.as_ref().filter(|place| place.is_numbered) {
            let key = id("", &place.hardware, &place.below, None);
            siblings.entry(key).or_default().push(group.head);
        }
        places.push((place, number));
    }
    for devices in siblings.values_mut() {
        // Compares names: the counters of HID devices in the paths are hexadecimal.
        devices.sort_by_key(|device| (natural::key(&device.kernel), device.devpath.as_str()));
    }
    for (group, (place, number)) in groups.iter().zip(&mut places) {
        let Some(place) = place.as_ref().filter(|place| place.is_numbered) else {
            *number = None;
            continue;
        };
        if number.is_none() {
            let devices = siblings.get(&id("", &place.hardware, &place.below, None));
            let rank = devices.and_then(|devices| {
                let mut devices = devices.iter();
                devices.position(|device| device.devpath == group.head.devpath)
            });
            *number = rank.and_then(|rank| u64::try_from(rank).ok());
        }
    }
    places
}

/// Returns the number that a driver gives a node among those of the same hardware.
fn number(chain: &[&Device], facts: &Facts) -> Option<u64> {
    let (device, name) = numbering(chain)?;
    facts.get(&device.devpath, name)?.parse().ok()
}

/// Returns the device whose sysfs attribute holds that number, and the name of the attribute.
fn numbering<'a>(chain: &[&'a Device]) -> Option<(&'a Device, &'static str)> {
    let is = |device: &Device, name| device.subsystem.as_deref() == Some(name);
    let device = chain.first().copied()?;
    if is(device, "video4linux") {
        return Some((device, "index"));
    }
    let port = chain.iter().find(|device| is(device, "usb-serial"))?;
    is(device, "tty").then_some((port, "port_number"))
}

/// Returns the ids made from serial numbers; explains each device that gets none.
fn serials(
    groups: &[Group<'_>],
    places: &[(Option<Place>, Option<u64>)],
    tree: &Tree<'_>,
    facts: &Facts,
    host: &Host,
) -> Vec<Option<String>> {
    let chains: Vec<Vec<&Device>> = groups
        .iter()
        .map(|group| tree.chain(&group.head.devpath))
        .collect();
    let serials: Vec<Option<Serial<'_>>> = chains
        .iter()
        .map(|chain| Serial::of(chain, facts))
        .collect();
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for serial in serials.iter().flatten() {
        owners
            .entry(&serial.text)
            .or_default()
            .insert(serial.hardware);
    }
    let explain = |group: &Group<'_>, reason: &str| {
        let rule = "leafhost.dev/identity: serial";
        let reason = format!("{reason}, so its id is that of the port");
        host.skipped(&group.head.devpath, rule, reason);
    };
    let mut ids = Vec::new();
    for ((group, serial), (place, number)) in groups.iter().zip(&serials).zip(places) {
        let Some(serial) = serial else {
            explain(group, "the hardware has no serial number");
            ids.push(None);
            continue;
        };
        let mut owners = owners.get(serial.text.as_str()).into_iter().flatten();
        if let Some(twin) = owners.find(|other| **other != serial.hardware) {
            let reason = format!("{twin} has the same vendor, model and serial number");
            explain(group, &reason);
            ids.push(None);
            continue;
        }
        let below = place.as_ref().map(|place| place.below.as_slice());
        let below = below.unwrap_or_default();
        // For hardware other than USB, the parts in between belong to the port.
        let below: Vec<String> = if serial.is_usb {
            below.to_vec()
        } else {
            let subsystem = group.head.subsystem.iter().filter(|_| !below.is_empty());
            subsystem.chain(below.last()).cloned().collect()
        };
        ids.push(Some(id("serial:", &serial.text, &below, *number)));
    }
    ids
}

/// Serial number of a piece of hardware.
struct Serial<'a> {
    /// Vendor, model and serial number.
    text: String,
    /// Path of the hardware.
    hardware: &'a str,
    is_usb: bool,
}

impl<'a> Serial<'a> {
    fn of(chain: &[&'a Device], facts: &Facts) -> Option<Self> {
        let usb = hardware::usb_device(chain);
        let property = || hardware::nearest(chain, "ID_SERIAL_SHORT");
        let serial = match usb {
            // The kernel's value does not depend on whether udevd runs.
            Some(usb) => facts.get(&usb.devpath, "serial").or_else(property)?,
            None => property()?,
        };
        if serial.len() > MAX_SERIAL {
            return None;
        }
        let (vendor, model) = match hardware::nearest_ids(chain) {
            Some(ids) => ids,
            None => ["ID_VENDOR", "ID_MODEL"]
                .map(|name| {
                    hardware::nearest(chain, name)
                        .unwrap_or_default()
                        .to_owned()
                })
                .into(),
        };
        Some(Self {
            text: format!("{vendor}:{model}:{serial}"),
            hardware: &hardware::own(chain).last()?.devpath,
            is_usb: usb.is_some(),
        })
    }
}

/// Keeps the ids that are valid and unique; explains each other id and replaces it with `None`.
fn unique(
    ids: Vec<Option<String>>,
    groups: &[Group<'_>],
    kind: &str,
    other: &str,
    host: &Host,
) -> Vec<Option<String>> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for id in ids.iter().flatten() {
        *times.entry(id).or_default() += 1;
    }
    let is_unique: Vec<bool> = ids
        .iter()
        .map(|id| id.as_deref().is_none_or(|id| times.get(id) == Some(&1)))
        .collect();
    ids.into_iter()
        .zip(is_unique)
        .zip(groups)
        .map(|((id, is_unique), group)| {
            let id = id?;
            let reason = if !is_unique {
                format!("another device has the id {id}, too")
            } else if id.len() > MAX_ID || id.contains(char::is_control) {
                format!("the id {id:?} is too long or has control characters")
            } else {
                return Some(id);
            };
            let rule = format!("leafhost.dev/identity: {kind}");
            host.skipped(
                &group.head.devpath,
                rule,
                format!("{reason}, so its id is that of {other}"),
            );
            None
        })
        .collect()
}
