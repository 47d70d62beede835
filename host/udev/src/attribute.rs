//! Sysfs attributes, read with care: some files in sysfs are endless, some block, and reading some acts on the hardware.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use crate::Result;
use crate::subsystems::Subsystems;
use crate::sysfs;

/// Maximum size of an attribute that is read, in bytes.
const MAX_ATTRIBUTE: u64 = 4 << 10;

/// Reads sysfs attributes, given as pairs of devpath and name; the result has the same length and order. Blocks, for ever if a driver never
/// answers.
///
/// Returns `None` for an attribute that is absent, not readable, binary, larger than 4 KiB, or not the device's. A name may lead through a
/// link (`device/vendor`), but only to a device above or below in the same chain whose subsystem is allowed. A link itself yields the last
/// part of its target, so that `iommu_group` yields `7` and `driver` a name.
pub fn read(attributes: &[(String, String)], allowed: &Subsystems) -> Result<Vec<Option<String>>> {
    sysfs::require_sysfs()?;
    Ok(attributes
        .iter()
        .map(|(devpath, name)| checked(devpath, name, allowed))
        .collect())
}

fn checked(devpath: &str, name: &str, allowed: &Subsystems) -> Option<String> {
    if !is_plain(devpath.strip_prefix('/')?) {
        return None;
    }
    let device = sysfs::folder(devpath);
    // A device is named by its own path; a path through a link belongs to another device.
    if fs::canonicalize(&device).ok()? != device
        || sysfs::owner(&device)? != device
        || !allowed.allows(sysfs::subsystem(&device).as_deref())
    {
        return None;
    }
    attribute(&device, name, allowed)
}

/// Reads one attribute for people and handlers. `device` is the folder of a device that may be seen.
fn attribute(device: &Path, name: &str, allowed: &Subsystems) -> Option<String> {
    if !is_plain(name) {
        return None;
    }
    let mut path = device.join(name);
    if name.contains('/') {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        if !belongs(&folder, device, allowed) {
            return None;
        }
        path = folder.join(path.file_name()?);
    }
    match contents(&path)? {
        Contents::Link(target) => String::from_utf8(target).ok(),
        Contents::Text(bytes) => {
            if u64::try_from(bytes.len()).ok()? > MAX_ATTRIBUTE || bytes.contains(&0) {
                return None;
            }
            let text = String::from_utf8(bytes).ok()?;
            Some(text.trim_end_matches(['\n', '\r']).to_owned())
        }
    }
}

/// Reads one attribute as udev reads it for its rules. `device` is the folder of a device that may be seen. The name may lead anywhere in
/// sysfs that may be seen; of links only `driver`, `subsystem` and `module` count; a text ends before its first NUL.
pub(crate) fn compared(device: &Path, name: &str, allowed: &Subsystems) -> Option<Vec<u8>> {
    let name = name.trim_start_matches('/');
    let (folder, last) = name.rsplit_once('/').unwrap_or(("", name));
    if matches!(last, "" | "." | "..") || name.contains('\0') {
        return None;
    }
    let mut path = device.join(last);
    if !folder.is_empty() {
        let folder = fs::canonicalize(device.join(folder)).ok()?;
        if !may_be_seen(&folder, device, allowed) {
            return None;
        }
        path = folder.join(last);
    }
    match contents(&path)? {
        Contents::Link(target) => {
            matches!(name, "driver" | "subsystem" | "module").then_some(target)
        }
        Contents::Text(mut text) => {
            while let [.., b'\n' | b'\r' | 0] = text.as_slice() {
                text.pop();
            }
            let end = text.iter().position(|c| *c == 0).unwrap_or(text.len());
            text.truncate(end);
            Some(text)
        }
    }
}

enum Contents {
    /// Last part of the target of a link.
    Link(Vec<u8>),
    /// Text, at most one byte longer than [`MAX_ATTRIBUTE`].
    Text(Vec<u8>),
}

fn contents(path: &Path) -> Option<Contents> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if metadata.is_symlink() {
        let target = fs::read_link(path).ok()?;
        return Some(Contents::Link(target.file_name()?.as_bytes().to_vec()));
    }
    let is_readable = metadata.is_file() && metadata.permissions().mode() & 0o400 != 0;
    if !is_readable || acts(path.file_name()?.to_str()?) {
        return None;
    }
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_ATTRIBUTE + 1).read_to_end(&mut bytes).ok()?;
    Some(Contents::Text(bytes))
}

/// Returns true if a rule may look into the folder: that of a device that may be seen, and if all devices may be seen, also those of buses,
/// classes, drivers and modules.
fn may_be_seen(folder: &Path, device: &Path, allowed: &Subsystems) -> bool {
    if let Some(owner) = sysfs::owner(folder) {
        return owner == device || allowed.allows(sysfs::subsystem(&owner).as_deref());
    }
    let mut places = ["devices", "bus", "class", "module"]
        .iter()
        .map(|name| Path::new(sysfs::SYS).join(name));
    allowed.allows(None) && places.any(|place| folder.starts_with(place))
}

/// Returns true if the folder belongs to the device, or to one above or below it that may be seen.
fn belongs(folder: &Path, device: &Path, allowed: &Subsystems) -> bool {
    let Some(owner) = sysfs::owner(folder) else {
        return false;
    };
    owner == device
        || ((owner.starts_with(device) || device.starts_with(&owner))
            && allowed.allows(sysfs::subsystem(&owner).as_deref()))
}

/// Returns true if the path stays below its start.
fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\0')
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Returns true if reading the attribute has side effects: such files map registers and memory of a PCI or ISA device, and a read may hang
/// the device.
fn acts(name: &str) -> bool {
    matches!(
        name,
        "config" | "rom" | "vpd" | "legacy_io" | "legacy_mem" | "eeprom" | "nvmem"
    ) || name
        .strip_prefix("resource")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_a_real_device_are_read() -> Result<()> {
        let null = "/devices/virtual/mem/null";
        if !Path::new("/sys/devices/virtual/mem/null/dev").exists() {
            eprintln!("skipped: /sys is not mounted here");
            return Ok(());
        }
        // Not every kernel has folders of a device's own such as this one.
        let control = fs::read_to_string("/sys/devices/virtual/mem/null/power/control").ok();
        let table: [(&str, &str, Option<&str>); 9] = [
            (null, "dev", Some("1:3")),
            (null, "power/control", control.as_deref().map(str::trim_end)),
            (null, "subsystem", Some("mem")),
            (null, "subsystem/uevent", None),
            (null, "../zero/dev", None),
            (null, "power", None),
            (null, "none", None),
            ("/devices/virtual/mem", "null/dev", None),
            ("/class/mem/null", "dev", None),
        ];
        let asked: Vec<(String, String)> = table
            .iter()
            .map(|(devpath, name, _)| ((*devpath).to_owned(), (*name).to_owned()))
            .collect();
        let answer = read(&asked, &Subsystems::new(["mem"]))?;
        for ((devpath, name, expected), value) in table.iter().zip(answer) {
            assert_eq!(value.as_deref(), *expected, "{devpath} {name}");
        }
        assert_eq!(
            read(&asked, &Subsystems::new(["tty"]))?,
            vec![None; asked.len()]
        );
        Ok(())
    }

    #[test]
    fn rules_read_only_devices_that_are_allowed() {
        let null = Path::new("/sys/devices/virtual/mem/null");
        if !null.join("dev").exists() {
            eprintln!("skipped: /sys is not mounted here");
            return;
        }
        let (all, mem) = (Subsystems::new(["*"]), Subsystems::new(["mem"]));
        for (name, by_all, by_mem) in [
            ("dev", Some("1:3"), Some("1:3")),
            ("/dev", Some("1:3"), Some("1:3")),
            ("../zero/dev", Some("1:5"), Some("1:5")),
            ("subsystem/null/dev", Some("1:3"), Some("1:3")),
            ("subsystem", Some("mem"), Some("mem")),
            ("../../misc/fuse/dev", Some("10:229"), None),
            ("subsystem/none", None, None),
            ("../null", None, None),
            ("dev/", None, None),
            ("", None, None),
            ("..", None, None),
            ("../../../../kernel/uevent_seqnum", None, None),
            ("../../../../../etc/hostname", None, None),
        ] {
            if name.contains("fuse") && !null.join(name).exists() {
                continue;
            }
            for (allowed, expected) in [(&all, by_all), (&mem, by_mem)] {
                let value = compared(null, name, allowed);
                let expected = expected.map(|text| text.as_bytes().to_vec());
                assert_eq!(value, expected, "{name} with {allowed:?}");
            }
        }
    }

    #[test]
    fn files_that_map_hardware_are_not_read() {
        for name in [
            "config",
            "rom",
            "vpd",
            "resource0",
            "resource2_wc",
            "legacy_io",
        ] {
            assert!(acts(name), "{name}");
        }
        for name in ["resource", "vendor", "class", "dev"] {
            assert!(!acts(name), "{name}");
        }
    }
}
