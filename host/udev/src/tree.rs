//! The tree of devices below `/sys`: which folder is a device, and what is above it.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::attribute::attribute;
use crate::facts::Facts;
use crate::subsystems::Subsystems;
use crate::{Error, Result};

/// Where sysfs is mounted.
pub(crate) const SYS: &str = "/sys";

/// Says so if there is no sysfs.
pub(crate) fn require_sysfs() -> Result<()> {
    let path = Path::new(SYS).join("devices");
    if path.is_dir() {
        Ok(())
    } else {
        Err(Error::NoSysfs { path })
    }
}

/// The device whose folder this is or lies in; only below `/sys/devices`.
pub(crate) fn owner(folder: &Path) -> Option<PathBuf> {
    let root = Path::new(SYS).join("devices");
    folder
        .ancestors()
        .take_while(|path| path.starts_with(&root) && *path != root)
        .find(|path| path.join("uevent").exists())
        .map(Path::to_owned)
}

/// The folder of a device.
pub(crate) fn folder(devpath: &str) -> PathBuf {
    PathBuf::from(format!("{SYS}{devpath}"))
}

/// The subsystem of the device in this folder.
pub(crate) fn subsystem(device: &Path) -> Option<String> {
    link(device, "subsystem")
}

fn link(device: &Path, name: &str) -> Option<String> {
    let target = fs::read_link(device.join(name)).ok()?;
    target.file_name().map(lossy)
}

/// The devices of all buses and classes: devpath and subsystem.
///
/// libudev's own enumeration resolves every part of every path and takes fifteen times as long as this.
pub(crate) fn list() -> io::Result<BTreeMap<String, String>> {
    let mut devices = BTreeMap::new();
    let places = [("class", ""), ("bus", "devices")];
    for (kind, devices_of) in places {
        // Either may be missing on a small kernel; that neither is there is found out before.
        let Ok(subsystems) = fs::read_dir(Path::new(SYS).join(kind)) else {
            continue;
        };
        for subsystem in subsystems {
            let subsystem = subsystem?;
            let Ok(entries) = fs::read_dir(subsystem.path().join(devices_of)) else {
                continue;
            };
            for entry in entries {
                // Classes have files of their own beside the links to their devices.
                let Ok(target) = fs::read_link(entry?.path()) else {
                    continue;
                };
                let path: PathBuf = target
                    .components()
                    .filter(|part| matches!(part, Component::Normal(_)))
                    .collect();
                let devpath = format!("/{}", path.to_string_lossy());
                devices.insert(devpath, lossy(&subsystem.file_name()));
            }
        }
    }
    Ok(devices)
}

/// A device of the tree, each fact looked up when first asked for.
pub(crate) struct Node<'a> {
    allowed: &'a Subsystems,
    folder: PathBuf,
    devpath: String,
    kernel: String,
    subsystem: Option<String>,
    /// None inside: it has gone meanwhile.
    device: OnceCell<Option<udev::Device>>,
    driver: OnceCell<Option<String>>,
    tags: OnceCell<Vec<String>>,
    attributes: RefCell<BTreeMap<String, Option<String>>>,
}

impl<'a> Node<'a> {
    /// A device that was listed.
    pub(crate) fn listed(
        devpath: String,
        subsystem: Option<String>,
        allowed: &'a Subsystems,
    ) -> Self {
        Self {
            allowed,
            folder: folder(&devpath),
            kernel: kernel_of(&devpath),
            devpath,
            subsystem,
            device: OnceCell::new(),
            driver: OnceCell::new(),
            tags: OnceCell::new(),
            attributes: RefCell::default(),
        }
    }

    /// The device at `devpath`, if there is one.
    pub(crate) fn look_up(devpath: &str, allowed: &'a Subsystems) -> Option<Self> {
        let folder = folder(devpath);
        folder
            .join("uevent")
            .exists()
            .then(|| Self::listed(devpath.to_owned(), subsystem(&folder), allowed))
    }

    /// Whether it may be seen.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed.allows(self.subsystem.as_deref())
    }

    /// What libudev knows of it; None if it has gone.
    pub(crate) fn device(&self) -> Option<&udev::Device> {
        self.device
            .get_or_init(|| udev::Device::from_syspath(&self.folder).ok())
            .as_ref()
    }

    /// The node below `/dev`.
    pub(crate) fn devnode(&self) -> Option<String> {
        let path = self.device()?.devnode()?;
        Some(lossy(path.as_os_str()))
    }

    /// All properties, sorted.
    pub(crate) fn properties(&self) -> BTreeMap<String, String> {
        self.device().map(properties).unwrap_or_default()
    }
}

impl Facts for Node<'_> {
    fn devpath(&self) -> &str {
        &self.devpath
    }

    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn subsystem(&self) -> Option<&str> {
        self.subsystem.as_deref()
    }

    fn driver(&self) -> Option<&str> {
        self.driver
            .get_or_init(|| link(&self.folder, "driver"))
            .as_deref()
    }

    fn property(&self, key: &str) -> Option<String> {
        self.device()?.property_value(key).map(lossy)
    }

    fn attribute(&self, key: &str) -> Option<String> {
        self.attributes
            .borrow_mut()
            .entry(key.to_owned())
            .or_insert_with(|| attribute(&self.folder, key, self.allowed))
            .clone()
    }

    fn tags(&self) -> &[String] {
        self.tags.get_or_init(|| {
            let current = self.property("CURRENT_TAGS");
            let tags = current.or_else(|| self.property("TAGS"));
            split_tags(tags.as_deref().unwrap_or_default())
        })
    }
}

/// The devices above `devpath` as paths, nearest first: the folders on the way, devices or not.
pub(crate) fn above(devpath: &str) -> impl Iterator<Item = &str> {
    devpath
        .rmatch_indices('/')
        .filter_map(|(at, _)| devpath.get(..at))
        .filter(|path| !path.is_empty() && *path != "/devices")
}

/// The kernel's name of the device at `devpath`. A `/` in a name is written `!` in paths.
pub(crate) fn kernel_of(devpath: &str) -> String {
    let last = devpath.rsplit('/').next().unwrap_or_default();
    last.replace('!', "/")
}

/// All properties of a device, sorted.
pub(crate) fn properties(device: &udev::Device) -> BTreeMap<String, String> {
    device
        .properties()
        .map(|entry| (lossy(entry.name()), lossy(entry.value())))
        .collect()
}

/// Tags as udev writes them into a property, `:systemd:uaccess:`, sorted.
pub(crate) fn split_tags(text: &str) -> Vec<String> {
    let mut tags: Vec<String> = text
        .split(':')
        .filter(|tag| !tag.is_empty())
        .map(str::to_owned)
        .collect();
    tags.sort();
    tags.dedup();
    tags
}

pub(crate) fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}
