//! The list of all devices of the node, as one walk through sysfs finds it. Knows their paths and subsystems only.

use std::path::{Component, Path};
use std::{fs, io};

use crate::tree::{SYS, lossy};

/// The devices of all buses and classes, sorted by devpath.
///
/// A search lists thousands: all paths are in one text, so that other allocations are not scattered between them.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    paths: String,
    subsystems: Vec<String>,
    devices: Vec<Listed>,
}

/// The range of a device's path in that text, and its subsystem.
#[derive(Debug, Clone, Copy)]
struct Listed {
    start: usize,
    end: usize,
    subsystem: usize,
}

impl Listing {
    /// Walks through sysfs.
    ///
    /// libudev's own enumeration resolves every part of every path and takes fifteen times as long as this.
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
                listing.subsystems.push(lossy(&subsystem.file_name()));
                for entry in entries {
                    // Classes also contain files besides the links to their devices.
                    if let Ok(target) = fs::read_link(entry?.path()) {
                        listing.push(&target);
                    }
                }
            }
        }
        listing.sort();
        Ok(listing)
    }

    /// Adds a device of the newest subsystem, by what sysfs links to.
    fn push(&mut self, target: &Path) {
        let start = self.paths.len();
        for part in target.components() {
            if let Component::Normal(part) = part {
                self.paths.push('/');
                self.paths.push_str(&part.to_string_lossy());
            }
        }
        self.devices.push(Listed {
            start,
            end: self.paths.len(),
            subsystem: self.subsystems.len().saturating_sub(1),
        });
    }

    fn sort(&mut self) {
        let Self { paths, devices, .. } = self;
        devices.sort_by_key(|device| path(paths, *device));
        // If a device is listed twice, the later entry counts.
        devices.dedup_by(|later, kept| {
            let same = path(paths, *later) == path(paths, *kept);
            if same {
                *kept = *later;
            }
            same
        });
    }

    /// Devpath and subsystem of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.devices.iter().map(|device| self.entry(*device))
    }

    /// The device at `devpath`, if it is listed.
    pub(crate) fn get(&self, devpath: &str) -> Option<(&str, &str)> {
        let at = self
            .devices
            .binary_search_by_key(&devpath, |device| path(&self.paths, *device));
        let device = self.devices.get(at.ok()?)?;
        Some(self.entry(*device))
    }

    fn entry(&self, device: Listed) -> (&str, &str) {
        let subsystem = self.subsystems.get(device.subsystem);
        let subsystem = subsystem.map_or("", String::as_str);
        (path(&self.paths, device), subsystem)
    }
}

fn path(paths: &str, device: Listed) -> &str {
    paths.get(device.start..device.end).unwrap_or_default()
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
            listing.subsystems.push(subsystem.to_owned());
            for link in links {
                listing.push(Path::new(link));
            }
        }
        listing.sort();
        let entries: Vec<_> = listing.iter().collect();
        let expected = [
            ("/devices/a", "usb"),
            ("/devices/pci0000:00/usb1", "usb"),
            ("/devices/virtual/tty/tty1", "tty"),
        ];
        assert_eq!(entries, expected);
        for entry in expected {
            assert_eq!(listing.get(entry.0), Some(entry));
        }
        assert_eq!(listing.get("/devices/b"), None);
    }
}
