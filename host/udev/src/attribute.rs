//! Sysfs attributes, read with care: some files there are endless, some block, and reading a few acts on the hardware.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use crate::Result;
use crate::subsystems::Subsystems;
use crate::tree;

/// The largest attribute that is read, in bytes.
const MAX_ATTRIBUTE: u64 = 4 << 10;

/// Reads sysfs attributes, pairs of devpath and name; the answer has the same length and order. Blocks.
///
/// `None` for what is absent, not readable, binary, larger than 4 KiB, or not the device's. A name may lead through a
/// link (`device/vendor`), but only to a device above or below in the same chain whose subsystem is allowed. A link
/// itself gives the last part of what it points to, so that `iommu_group` gives `7` and `driver` a name. `at` is told the index
/// of each before it is read: a driver may never answer.
pub fn read(
    attributes: &[(String, String)],
    allowed: &Subsystems,
    at: &dyn Fn(usize),
) -> Result<Vec<Option<String>>> {
    tree::require_sysfs()?;
    Ok(attributes
        .iter()
        .enumerate()
        .map(|(index, (devpath, name))| {
            at(index);
            checked(devpath, name, allowed)
        })
        .collect())
}

fn checked(devpath: &str, name: &str, allowed: &Subsystems) -> Option<String> {
    if !is_plain(devpath.strip_prefix('/')?) {
        return None;
    }
    let device = tree::folder(devpath);
    // A device is named by its own path: one that leads through a link is another's.
    if fs::canonicalize(&device).ok()? != device
        || tree::owner(&device)? != device
        || !allowed.allows(tree::subsystem(&device).as_deref())
    {
        return None;
    }
    attribute(&device, name, allowed)
}

/// One attribute of the device in this folder, which may be seen.
pub(crate) fn attribute(device: &Path, name: &str, allowed: &Subsystems) -> Option<String> {
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
    let metadata = fs::symlink_metadata(&path).ok()?;
    let name = path.file_name()?.to_str()?;
    if metadata.is_symlink() {
        let target = fs::read_link(&path).ok()?;
        return Some(target.file_name()?.to_str()?.to_owned());
    }
    if !metadata.is_file() || metadata.permissions().mode() & 0o444 == 0 || acts(name) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(&path)
        .ok()?
        .take(MAX_ATTRIBUTE + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    if u64::try_from(bytes.len()).ok()? > MAX_ATTRIBUTE || bytes.contains(&0) {
        return None;
    }
    let text = String::from_utf8(bytes).ok()?;
    Some(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Whether the folder is one of the device, or of one above or below it that may be seen.
fn belongs(folder: &Path, device: &Path, allowed: &Subsystems) -> bool {
    let Some(owner) = tree::owner(folder) else {
        return false;
    };
    owner == device
        || ((owner.starts_with(device) || device.starts_with(&owner))
            && allowed.allows(tree::subsystem(&owner).as_deref()))
}

/// Whether the path stays below where it starts.
fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\0')
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Whether reading is more than looking: windows into a PCI or ISA device's registers and memory. (A device may hang
/// on a read of them.)
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
        // Folders of a device's own, such as this one, are not in every kernel.
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
        let answer = read(&asked, &Subsystems::new(["mem"]), &|_| {})?;
        for ((devpath, name, expected), value) in table.iter().zip(answer) {
            assert_eq!(value.as_deref(), *expected, "{devpath} {name}");
        }
        assert_eq!(
            read(&asked, &Subsystems::new(["tty"]), &|_| {})?,
            vec![None; asked.len()]
        );
        Ok(())
    }

    #[test]
    fn windows_into_the_hardware_are_left_alone() {
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
