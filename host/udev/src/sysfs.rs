//! Folders of devices below `/sys`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Mount point of sysfs.
pub(crate) const SYS: &str = "/sys";

/// Returns an error if there is no sysfs.
pub(crate) fn require_sysfs() -> Result<()> {
    let is_there = Path::new(SYS).join("devices").is_dir();
    is_there.then_some(()).ok_or(Error::NoSysfs)
}

/// Returns the folder of the device that `folder` belongs to; `None` outside `/sys/devices`.
pub(crate) fn owner(folder: &Path) -> Option<PathBuf> {
    let root = Path::new(SYS).join("devices");
    folder
        .ancestors()
        .take_while(|path| path.starts_with(&root) && *path != root)
        .find(|path| path.join("uevent").exists())
        .map(Path::to_owned)
}

/// Returns the folder of a device.
pub(crate) fn folder(devpath: &str) -> PathBuf {
    PathBuf::from(format!("{SYS}{devpath}"))
}

/// Returns the subsystem of the device in the folder.
pub(crate) fn subsystem(device: &Path) -> Option<String> {
    link(device, "subsystem")
}

/// Returns the file name of the target of a link in the folder.
pub(crate) fn link(device: &Path, name: &str) -> Option<String> {
    let target = fs::read_link(device.join(name)).ok()?;
    target.file_name().map(lossy)
}

pub(crate) fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}
