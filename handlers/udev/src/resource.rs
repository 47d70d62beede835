//! Implements `devicePluginResourceName` and `vfioPassthrough`: addresses in the variables that `KubeVirt` reads.

/// Returns the variable of a resource, `USB_RESOURCE_…` or `PCI_RESOURCE_…`. As in `KubeVirt`, the name is in upper case,
/// `-` stays, and every other special character becomes `_`.
pub fn variable(prefix: &str, resource: &str) -> String {
    let name: String = resource
        .chars()
        .map(|c| match c {
            '-' => '-',
            c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
            _ => '_',
        })
        .collect();
    format!("{prefix}_{name}")
}

/// Returns `bus:device` of a node such as `/dev/bus/usb/001/010`.
pub fn usb_address(devnode: &str) -> Option<String> {
    let (bus, device) = devnode.strip_prefix("/dev/bus/usb/")?.rsplit_once('/')?;
    let (bus, device): (u32, u32) = (bus.parse().ok()?, device.parse().ok()?);
    Some(format!("{bus}:{device}"))
}

/// Returns path and address of the last PCI device on the path of a device; `None` for USB devices.
pub fn pci_device(devpath: &str) -> Option<(&str, &str)> {
    if devpath.split('/').any(|part| part.starts_with("usb")) {
        return None;
    }
    nearest_pci(devpath)
}

/// Returns path and address of the last PCI device on the path of a device.
pub fn nearest_pci(devpath: &str) -> Option<(&str, &str)> {
    let mut end = devpath.len();
    loop {
        let path = devpath.get(..end)?;
        let (above, last) = path.rsplit_once('/')?;
        if is_pci_address(last) {
            return Some((path, last));
        }
        end = above.len();
    }
}

/// Returns the `PCIe` root complex on the path of a device, such as `pci0000:00`.
pub fn pcie_root(devpath: &str) -> Option<&str> {
    let is_hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    devpath.split('/').find(|part| {
        part.strip_prefix("pci")
            .and_then(|root| root.split_once(':'))
            .is_some_and(|(domain, bus)| is_hex(domain) && is_hex(bus))
    })
}

/// Returns true if the text is `domain:bus:slot.function` in hexadecimal digits.
pub fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits && part.chars().all(|c| c.is_ascii_hexdigit())
    };
    let mut parts = text.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    // A domain of Intel's VMD has more digits.
    rest.split_once('.').is_some_and(|(slot, function)| {
        is_hex(domain, domain.len().max(4))
            && is_hex(bus, 2)
            && is_hex(slot, 2)
            && is_hex(function, 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_as_their_readers_expect() {
        let table = [
            ("akri.sh/udev-gpu-t400e", "X_AKRI_SH_UDEV-GPU-T400E"),
            ("example.com/my_gpu", "X_EXAMPLE_COM_MY_GPU"),
            ("a b=c", "X_A_B_C"),
        ];
        for (resource, expected) in table {
            assert_eq!(variable("X", resource), expected);
        }
    }

    #[test]
    fn bus_and_device_are_read_from_a_usb_node() {
        let table = [
            ("/dev/bus/usb/001/010", Some("1:10")),
            ("/dev/bus/usb/003/127", Some("3:127")),
            ("/dev/bus/usb/001", None),
            ("/dev/bus/usb/a/b", None),
            ("/dev/video0", None),
        ];
        for (node, expected) in table {
            assert_eq!(usb_address(node).as_deref(), expected, "{node}");
        }
    }

    #[test]
    fn the_last_pci_address_of_a_path_counts() {
        let table = [
            (
                "/devices/pci0000:00/0000:00:01.0/0000:01:00.0/drm/card0",
                Some((
                    "/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
                    "0000:01:00.0",
                )),
            ),
            (
                "/devices/pci0000:00/0000:03:00.0",
                Some(("/devices/pci0000:00/0000:03:00.0", "0000:03:00.0")),
            ),
            ("/devices/pci0000:00/0000:00:14.0/usb1/1-1", None),
            (
                "/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/nvme/nvme0",
                Some((
                    "/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0",
                    "10000:e0:06.0",
                )),
            ),
            // A HID device, which is on Bluetooth.
            (
                "/devices/virtual/misc/uhid/0005:046D:B342.0004/hidraw/hidraw0",
                None,
            ),
            ("/devices/virtual/mem/null", None),
            ("", None),
        ];
        for (path, expected) in table {
            assert_eq!(pci_device(path), expected, "{path}");
        }
    }
}
