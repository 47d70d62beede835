//! Lists all devices of the node in one walk through sysfs. Knows only their paths and subsystems.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::rc::Rc;
use std::{fs, io};

use crate::sysfs::{SYS, lossy};

/// Subsystems by devpath of the devices of all buses and classes.
#[derive(Debug, Default)]
pub(crate) struct Listing(BTreeMap<String, Rc<str>>);

impl Listing {
    /// Walks through sysfs.
    ///
    /// libudev's own enumeration resolves every part of every path and takes fifteen times as long.
    pub(crate) fn read() -> io::Result<Self> {
        let mut listing = Self::default();
        let places = [("class", ""), ("bus", "devices")];
        for (kind, devices_of) in places {
            // Either may be missing on a small kernel.
            let Ok(subsystems) = fs::read_dir(Path::new(SYS).join(kind)) else {
                continue;
            };
            for subsystem in subsystems {
                let subsystem = subsystem?;
                let Ok(entries) = fs::read_dir(subsystem.path().join(devices_of)) else {
                    continue;
                };
                let name = Rc::from(lossy(&subsystem.file_name()));
                for entry in entries {
                    // Classes have files of their own beside the links to their devices.
                    if let Ok(target) = fs::read_link(entry?.path()) {
                        listing.add(&target, &name);
                    }
                }
            }
        }
        Ok(listing)
    }

    /// Adds a device by the target of its link. If a device is listed twice, the later entry counts.
    fn add(&mut self, target: &Path, subsystem: &Rc<str>) {
        let mut devpath = String::new();
        for part in target.components() {
            if let Component::Normal(part) = part {
                devpath.push('/');
                devpath.push_str(&part.to_string_lossy());
            }
        }
        self.0.insert(devpath, Rc::clone(subsystem));
    }

    /// Returns devpath and subsystem of each device, sorted by devpath.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(devpath, subsystem)| (devpath.as_str(), &**subsystem))
    }

    /// Returns the subsystem of the device at `devpath`, if it is listed.
    pub(crate) fn subsystem(&self, devpath: &str) -> Option<&str> {
        self.0.get(devpath).map(|subsystem| &**subsystem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_sorted_and_has_each_device_once() {
        let mut listing = Listing::default();
        for (subsystem, links) in [
            (
                "tty",
                &["../../devices/virtual/tty/tty1", "../../devices/a"][..],
            ),
            (
                "usb",
                &["../../../devices/pci0000:00/usb1", "../../../devices/a"][..],
            ),
        ] {
            for link in links {
                listing.add(Path::new(link), &Rc::from(subsystem));
            }
        }
        let entries: Vec<_> = listing.iter().collect();
        let expected = [
            ("/devices/a", "usb"),
            ("/devices/pci0000:00/usb1", "usb"),
            ("/devices/virtual/tty/tty1", "tty"),
        ];
        assert_eq!(entries, expected);
        for (devpath, subsystem) in expected {
            assert_eq!(listing.subsystem(devpath), Some(subsystem));
        }
        assert_eq!(listing.subsystem("/devices/b"), None);
    }
}
