//! The tree of devices below `/sys`: which folder is a device, and what is above it.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

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

/// Whether the device in this folder may be seen.
pub(crate) fn is_allowed(device: &Path, allowed: &Subsystems) -> bool {
    let link = fs::read_link(device.join("subsystem")).ok();
    let name = link
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy());
    allowed.allows(name.as_deref())
}

/// A device of the tree, each fact looked up when first asked for.
pub(crate) struct Node<'a> {
    device: udev::Device,
    allowed: &'a Subsystems,
    devpath: String,
    subsystem: Option<String>,
    driver: OnceCell<Option<String>>,
    tags: OnceCell<Vec<String>>,
    attributes: RefCell<BTreeMap<String, Option<String>>>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(device: udev::Device, allowed: &'a Subsystems) -> Self {
        Self {
            devpath: lossy(device.devpath()),
            subsystem: device.subsystem().map(lossy),
            device,
            allowed,
            driver: OnceCell::new(),
            tags: OnceCell::new(),
            attributes: RefCell::default(),
        }
    }

    /// The device at `devpath`, if there is one.
    pub(crate) fn look_up(devpath: &str, allowed: &'a Subsystems) -> Option<Self> {
        let path = PathBuf::from(format!("{SYS}{devpath}"));
        let device = udev::Device::from_syspath(&path).ok()?;
        Some(Self::new(device, allowed))
    }

    /// Whether it may be seen.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed.allows(self.subsystem.as_deref())
    }

    /// The node below `/dev`.
    pub(crate) fn devnode(&self) -> Option<String> {
        self.device.devnode().map(|path| lossy(path.as_os_str()))
    }

    /// All properties, sorted.
    pub(crate) fn properties(&self) -> BTreeMap<String, String> {
        properties(&self.device)
    }
}

impl Facts for Node<'_> {
    fn devpath(&self) -> &str {
        &self.devpath
    }

    fn subsystem(&self) -> Option<&str> {
        self.subsystem.as_deref()
    }

    fn driver(&self) -> Option<&str> {
        self.driver
            .get_or_init(|| self.device.driver().map(lossy))
            .as_deref()
    }

    fn property(&self, key: &str) -> Option<String> {
        self.device.property_value(key).map(lossy)
    }

    fn attribute(&self, key: &str) -> Option<String> {
        self.attributes
            .borrow_mut()
            .entry(key.to_owned())
            .or_insert_with(|| attribute(&self.devpath, key, self.allowed))
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
