//! Identifies and describes hardware by data from udev or the kernel.

use leafhost_sdk::AttributeValue;
use leafhost_sdk::udev::Device;

use crate::facts::{self, Facts, Wanted};
use crate::{ports, resource};

/// Maximum number of bytes in the text of an attribute.
const MAX_ATTRIBUTE: usize = 64;

/// Returns `usb:VENDOR:MODEL:SERIAL@PORT` for a USB device and its parts, or the PCI address for a PCI device and its direct
/// children. `chain` is the device and its ancestors, nearest first.
///
/// Other descendants of a PCI device have no id: the disks of one controller are not one piece of hardware.
pub fn physical_id(chain: &[&Device]) -> Option<String> {
    let whole = whole(chain)?;
    if is_pci(whole) {
        return Some(format!("pci:{}", whole.kernel));
    }
    let (vendor, model) = ids(whole).unwrap_or_default();
    let serial = whole.property("ID_SERIAL_SHORT").unwrap_or_default();
    bounded(
        format!("usb:{vendor}:{model}:{serial}@{}", whole.kernel),
        256,
    )
}

/// Returns the USB or PCI device that the first device of the chain is or is a part of.
pub fn whole<'a>(chain: &[&'a Device]) -> Option<&'a Device> {
    let last = own(chain).last().copied();
    last.filter(|device| is_usb_device(device) || is_pci(device))
}

/// Returns the sysfs attributes that [`attributes`] needs.
pub fn wanted(chain: &[&Device]) -> Vec<Wanted> {
    let mut all = Vec::new();
    if let Some(usb) = usb_device(chain) {
        all.push(facts::wanted(&usb.devpath, "speed"));
    }
    let pci = chain
        .first()
        .and_then(|device| resource::nearest_pci(&device.devpath));
    if let Some((path, _)) = pci {
        all.push(facts::wanted(path, "numa_node"));
    }
    all
}

/// Returns the names and values of the attributes of the chain's first device. Vendor, model and serial number come from the
/// nearest device of the same hardware that has them.
pub fn attributes(chain: &[&Device], facts: &Facts) -> Vec<(&'static str, AttributeValue)> {
    let Some(device) = chain.first() else {
        return Vec::new();
    };
    let text = |names: &[&str]| {
        own(chain).iter().find_map(|device| {
            names
                .iter()
                .find_map(|name| device.property(name))
                .map(str::to_owned)
        })
    };
    // Each node of a camera has a value of its own, so the ancestors are not searched.
    let own_text = |name: &str| device.property(name).map(str::to_owned);
    let (vendor_id, model_id) = nearest_ids(chain).unzip();
    let usb = usb_device(chain);
    let pci = resource::nearest_pci(&device.devpath);
    let texts = [
        ("subsystem", device.subsystem.clone()),
        ("driver", device.driver.clone()),
        ("hardwareDriver", driver(chain)),
        ("vendorID", vendor_id),
        ("modelID", model_id),
        ("vendor", text(&["ID_VENDOR", "ID_VENDOR_FROM_DATABASE"])),
        ("model", text(&["ID_MODEL", "ID_MODEL_FROM_DATABASE"])),
        ("serial", text(&["ID_SERIAL_SHORT"])),
        ("devname", Some(device.kernel.clone())),
        ("v4lCapabilities", own_text("ID_V4L_CAPABILITIES")),
        ("v4lProduct", own_text("ID_V4L_PRODUCT")),
        ("port", usb.map(|usb| usb.kernel.clone())),
        ("pciBusID", pci.map(|(_, address)| address.to_owned())),
        (
            "resource.kubernetes.io/pcieRoot",
            resource::pcie_root(&device.devpath).map(str::to_owned),
        ),
    ];
    let numbers = [
        (
            "interface",
            usb.and_then(|_| ports::interface_number(&device.devpath)),
        ),
        (
            "usbSpeed",
            usb.and_then(|usb| number(facts.get(&usb.devpath, "speed")?)),
        ),
        (
            "numaNode",
            pci.and_then(|(path, _)| number(facts.get(path, "numa_node")?)),
        ),
    ];
    let texts = texts.into_iter().filter_map(|(name, value)| {
        Some((name, AttributeValue::from(bounded(value?, MAX_ATTRIBUTE)?)))
    });
    let numbers = numbers
        .into_iter()
        .filter_map(|(name, value)| Some((name, AttributeValue::from(value?))));
    texts.chain(numbers).collect()
}

/// Parses a number that is not negative and drops its decimals: the slowest USB devices have 1.5 Mbit/s.
fn number(text: &str) -> Option<i64> {
    let whole = text.split('.').next()?;
    whole.parse().ok().filter(|number| *number >= 0)
}

/// Returns the driver of the nearest device of the same hardware that has one. All USB devices have the same driver, so
/// only those of their parts count.
fn driver(chain: &[&Device]) -> Option<String> {
    let parts = own(chain).iter().filter(|device| !is_usb_device(device));
    parts.copied().find_map(|device| device.driver.clone())
}

/// Returns the devices of the chain that belong to the same piece of hardware as the first. The last of them is the nearest
/// USB device; without one, the PCI device that the first device is or is a direct child of. Otherwise they are all devices
/// below the nearest PCI device, or the whole chain if it has none.
pub fn own<'a, 'b>(chain: &'b [&'a Device]) -> &'b [&'a Device] {
    let usb = chain.iter().position(|device| is_usb_device(device));
    let end = usb.map(|usb| usb + 1).or_else(|| {
        let pci = chain.iter().position(|device| is_pci(device))?;
        Some(if pci < 2 { pci + 1 } else { pci })
    });
    end.and_then(|end| chain.get(..end)).unwrap_or(chain)
}

/// Returns the USB device that the first device of the chain is or is a part of.
pub fn usb_device<'a>(chain: &[&'a Device]) -> Option<&'a Device> {
    let last = own(chain).last().copied();
    last.filter(|device| is_usb_device(device))
}

/// Returns the property of the nearest device of the same hardware that has it.
pub fn nearest<'a>(chain: &[&'a Device], property: &str) -> Option<&'a str> {
    own(chain)
        .iter()
        .find_map(|device| device.property(property))
}

/// Returns the ids of vendor and model of the nearest device of the same hardware that has them.
pub fn nearest_ids(chain: &[&Device]) -> Option<(String, String)> {
    own(chain).iter().find_map(|device| ids(device))
}

fn is_pci(device: &Device) -> bool {
    device.subsystem.as_deref() == Some("pci")
}

fn is_usb_device(device: &Device) -> bool {
    device.subsystem.as_deref() == Some("usb") && device.property("DEVTYPE") == Some("usb_device")
}

/// Returns the ids of vendor and model, four hexadecimal digits each, from udev or the kernel.
fn ids(device: &Device) -> Option<(String, String)> {
    let (vendor, model) = match (
        device.property("ID_VENDOR_ID"),
        device.property("ID_MODEL_ID"),
    ) {
        (Some(vendor), Some(model)) => (vendor, model),
        _ if is_pci(device) => device.property("PCI_ID")?.split_once(':')?,
        _ if device.subsystem.as_deref() == Some("usb") => {
            let mut parts = device.property("PRODUCT")?.split('/');
            (parts.next()?, parts.next()?)
        }
        _ => return None,
    };
    let digits = |id: &str| {
        let id = id.trim_start_matches("0x").to_ascii_lowercase();
        format!("{id:0>4}")
    };
    Some((digits(vendor), digits(model)))
}

fn bounded(text: String, most: usize) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    fits.then_some(text)
}
