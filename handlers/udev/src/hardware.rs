//! Identifies and describes hardware by data from udev or the kernel.

use leafhost_sdk::udev::Device;

/// Maximum number of bytes in the text of an attribute.
const MAX_ATTRIBUTE: usize = 64;

/// Returns `usb:VENDOR:MODEL:SERIAL@PORT` for a USB device and its parts, or the PCI address for a PCI device and its direct
/// children. `chain` is the device and its ancestors, nearest first.
///
/// Other descendants of a PCI device have no id: the disks of one controller are not one piece of hardware.
pub fn physical_id(chain: &[&Device]) -> Option<String> {
    let own = own_hardware(chain);
    if let Some(usb) = own.last().filter(|device| is_usb_device(device)) {
        let (vendor, model) = ids(usb).unwrap_or_default();
        let serial = usb.property("ID_SERIAL_SHORT").unwrap_or_default();
        return bounded(format!("usb:{vendor}:{model}:{serial}@{}", usb.kernel), 256);
    }
    let pci = own.last().filter(|device| is_pci(device))?;
    Some(format!("pci:{}", pci.kernel))
}

/// Returns names and values of attributes, each from the nearest device of the chain that has it and is the same hardware.
pub fn attributes(chain: &[&Device]) -> Vec<(&'static str, String)> {
    let own = |value: fn(&Device) -> Option<String>| chain.first().and_then(|device| value(device));
    let same = own_hardware(chain);
    let nearest = |names: &[&str]| {
        same.iter().find_map(|device| {
            names
                .iter()
                .find_map(|name| device.property(name))
                .map(str::to_owned)
        })
    };
    let ids = same.iter().find_map(|device| ids(device));
    let (vendor_id, model_id) = ids.unzip();
    let all = [
        ("subsystem", own(|device| device.subsystem.clone())),
        ("driver", own(|device| device.driver.clone())),
        ("vendorID", vendor_id),
        ("modelID", model_id),
        ("vendor", nearest(&["ID_VENDOR", "ID_VENDOR_FROM_DATABASE"])),
        ("model", nearest(&["ID_MODEL", "ID_MODEL_FROM_DATABASE"])),
        ("serial", nearest(&["ID_SERIAL_SHORT"])),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some((name, bounded(value?, MAX_ATTRIBUTE)?)))
        .collect()
}

/// Returns the devices of the chain that are one piece of hardware with the first: up to the nearest USB device; otherwise
/// up to the PCI device that it is or is a direct child of; otherwise all devices below a PCI device.
fn own_hardware<'a>(chain: &'a [&'a Device]) -> &'a [&'a Device] {
    let usb = chain.iter().position(|device| is_usb_device(device));
    let end = usb.map(|usb| usb + 1).or_else(|| {
        let pci = chain.iter().position(|device| is_pci(device))?;
        Some(if pci < 2 { pci + 1 } else { pci })
    });
    end.and_then(|end| chain.get(..end)).unwrap_or(chain)
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
