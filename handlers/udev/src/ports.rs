//! Finds the place of a device in the hardware from its path below `/sys`, without the counters that the kernel assigns:
//! `1-1.2` is port 1.2 of a controller, and `ttyUSB0` is a `ttyUSB` of it.

use leafhost_sdk::udev::Device;

use crate::resource::is_pci_address;
use crate::tree::Tree;

/// Name prefixes whose digit is not a counter.
const WITH_DIGIT: [&str; 2] = ["i2c", "v4l"];

/// Place of a device in the hardware.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// Controller and port of a USB device, address of a PCI device, or another path.
    pub hardware: String,
    /// Parts of the path within the hardware; empty for the hardware itself.
    pub below: Vec<String>,
    /// True if several devices may have this place, because a number was removed from the kernel's name.
    pub is_numbered: bool,
}

impl Place {
    /// Returns the place of a device; `None` if it has no hardware. `has_index` is true if its driver numbers the nodes.
    pub fn of(device: &Device, tree: &Tree<'_>, has_index: bool) -> Option<Self> {
        let path = device.devpath.strip_prefix("/devices/")?;
        let parts: Vec<&str> = path.split('/').collect();
        if parts.first() == Some(&"virtual") {
            return None;
        }
        if let Some(root) = root_hub(&parts) {
            let (above, below) = parts.split_at_checked(root + 1)?;
            let hub = tree.get(&format!("/devices/{}", above.join("/")));
            return Some(Self::on_usb(above, below, hub, device));
        }
        let Some(pci) = parts.iter().rposition(|part| is_pci_address(part)) else {
            return Self::elsewhere(&parts, has_index);
        };
        let (above, below) = parts.split_at_checked(pci + 1)?;
        Some(Self::within(
            format!("pci-{}", above.last()?),
            None,
            below,
            device,
        ))
    }

    /// Returns the place of a device on USB. `above` is the path of the root hub, `below` the rest.
    fn on_usb(above: &[&str], mut below: &[&str], hub: Option<&Device>, device: &Device) -> Self {
        let above = above.get(..above.len().saturating_sub(1));
        let mut port = None;
        while let Some((first, rest)) = below.split_first()
            && let Some(ports) = usb_ports(first)
        {
            (port, below) = (Some(ports), rest);
        }
        let interface = below.first().and_then(|part| usb_interface(part));
        if interface.is_some() {
            below = below.get(1..).unwrap_or_default();
        }
        let version = hub.and_then(usb_version).unwrap_or_default();
        let port = port.map(|port| format!("-{port}")).unwrap_or_default();
        let controller = controller(above.unwrap_or_default());
        Self::within(
            format!("{controller}/usb{version}{port}"),
            interface,
            below,
            device,
        )
    }

    fn within(hardware: String, interface: Option<&str>, below: &[&str], device: &Device) -> Self {
        let mut parts: Vec<String> = interface.map(str::to_owned).into_iter().collect();
        if let Some((name, between)) = below.split_last() {
            let name = without_counter(name);
            // The folder of the subsystem keeps its name.
            let is_folder = |part: &str| device.subsystem.as_deref() == Some(part);
            let between = between.iter().map(|part| {
                if is_folder(part) {
                    (*part).to_owned()
                } else {
                    without_counter(part)
                }
            });
            parts.extend(between.filter(|part| *part != name));
            parts.push(name);
        }
        Self {
            hardware,
            below: parts,
            is_numbered: !below.is_empty(),
        }
    }

    /// Returns the place of a device that is neither on USB nor on PCI. Its numbers are fixed by the machine's hardware
    /// description, except those of video nodes.
    fn elsewhere(parts: &[&str], has_index: bool) -> Option<Self> {
        let (name, above) = parts.split_last()?;
        let name = if has_index {
            without_counter(name)
        } else {
            without_auto(name)
        };
        let above = above.iter().map(|part| without_auto(part));
        let all: Vec<String> = above.chain([name]).collect();
        Some(Self {
            hardware: all.join("/"),
            below: Vec::new(),
            is_numbered: has_index,
        })
    }
}

/// Returns the place of a USB controller: from its PCI address on, or its whole path.
fn controller(parts: &[&str]) -> String {
    let pci = parts.iter().rposition(|part| is_pci_address(part));
    let parts = parts.get(pci.unwrap_or_default()..).unwrap_or_default();
    let parts: Vec<String> = parts.iter().map(|part| without_auto(part)).collect();
    let prefix = if pci.is_some() { "pci-" } else { "" };
    format!("{prefix}{}", parts.join("/"))
}

/// Returns the position of the root hub, such as `usb1`. A network interface may have such a name, too.
fn root_hub(parts: &[&str]) -> Option<usize> {
    parts.iter().enumerate().position(|(at, part)| {
        let Some(bus) = part.strip_prefix("usb").filter(|bus| is_number(bus)) else {
            return false;
        };
        let next = parts.get(at + 1);
        let is_below = |next: &&str| {
            next.split_once('-')
                .is_some_and(|(number, _)| number == bus)
        };
        let is_net = at.checked_sub(1).and_then(|above| parts.get(above)) == Some(&"net");
        next.map_or(!is_net, is_below)
    })
}

/// Returns `v2` for a bus of USB 2. One controller has ports of several versions with equal numbers.
fn usb_version(hub: &Device) -> Option<String> {
    let product = hub.property("PRODUCT")?;
    let version = product.split('/').nth(1)?;
    is_number(version).then(|| format!("v{version}"))
}

/// Returns `1.2` for the USB device `3-1.2`.
fn usb_ports(part: &str) -> Option<&str> {
    let (bus, ports) = part.split_once('-')?;
    (is_number(bus) && ports.split('.').all(is_number)).then_some(ports)
}

/// Returns `1.0` for the interface `3-1.2:1.0`: configuration and number.
fn usb_interface(part: &str) -> Option<&str> {
    let (device, interface) = part.split_once(':')?;
    let (configuration, number) = interface.split_once('.')?;
    let fits = usb_ports(device).is_some() && is_number(configuration) && is_number(number);
    fits.then_some(interface)
}

/// Returns the number of the nearest USB interface in a path.
pub fn interface_number(devpath: &str) -> Option<i64> {
    let interface = devpath.rsplit('/').find_map(usb_interface)?;
    interface.split_once('.')?.1.parse().ok()
}

/// Removes the counter that the kernel assigns from a part of a path.
fn without_counter(part: &str) -> String {
    if let Some((_, address)) = part.split_once(':')
        && part.split(':').count() == 4
        && part.split(':').all(is_number)
    {
        // A SCSI device: host, channel, target, unit.
        return address.to_owned();
    }
    if is_hid(part) {
        return "hid".to_owned();
    }
    // The numbers of a disk controller's ports and of addresses are not counters.
    if part.starts_with("ata") || part.starts_with(|c: char| c.is_ascii_digit()) {
        return part.to_owned();
    }
    without_letters(part).unwrap_or_else(|| {
        let kind = WITH_DIGIT.into_iter().find(|kind| part.starts_with(kind));
        let kind = kind.unwrap_or_default();
        let rest = part.strip_prefix(kind).unwrap_or(part);
        let start = rest.find(|c: char| c.is_ascii_digit());
        let (before, from) = rest.split_at(start.unwrap_or(rest.len()));
        format!(
            "{kind}{before}{}",
            from.trim_start_matches(|c: char| c.is_ascii_digit())
        )
    })
}

/// Returns `sd1` for the partition `sdb1`: the kernel counts disks with letters.
fn without_letters(part: &str) -> Option<String> {
    let kind = ["sd", "vd", "hd", "xvd"]
        .into_iter()
        .find(|kind| part.starts_with(kind))?;
    let rest = part.strip_prefix(kind)?;
    let number = rest.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let has_letters = number.len() < rest.len();
    let fits = has_letters && (number.is_empty() || is_number(number));
    fits.then(|| format!("{kind}{number}"))
}

/// Returns true for a HID device such as `0003:046D:C52B.0007`, which ends with a counter.
fn is_hid(part: &str) -> bool {
    let is_id = |id: &str| id.len() == 4 && id.chars().all(is_hex_digit);
    let mut ids = part.splitn(3, ':');
    let (Some(bus), Some(vendor), Some(rest)) = (ids.next(), ids.next(), ids.next()) else {
        return false;
    };
    rest.split_once('.').is_some_and(|(product, counter)| {
        [bus, vendor, product].into_iter().all(is_id)
            && counter.len() >= 4
            && counter.chars().all(is_hex_digit)
    })
}

/// Removes the number before `.auto`, which the kernel assigns in order of appearance: `xhci-hcd.2.auto` becomes
/// `xhci-hcd.auto`.
fn without_auto(part: &str) -> String {
    let numbered = part.strip_suffix(".auto");
    match numbered.and_then(|name| name.rsplit_once('.')) {
        Some((name, number)) if is_number(number) => format!("{name}.auto"),
        _ => part.to_owned(),
    }
}

fn is_hex_digit(c: char) -> bool {
    c.is_ascii_hexdigit()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}
