//! The devices of the tree below `/sys`, each with its information, and their ancestors.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;

use crate::attribute::compared;
use crate::device_info::DeviceInfo;
use crate::subsystems::Subsystems;
use crate::sysfs::{folder, link, lossy, subsystem};

/// A device of the tree; each fact is looked up on first use.
pub(crate) struct Node<'a> {
    allowed: &'a Subsystems,
    devpath: &'a str,
    kernel: Cow<'a, str>,
    subsystem: Option<Cow<'a, str>>,
    /// libudev's device; `None` inside if it is gone.
    device: OnceCell<Option<udev::Device>>,
    driver: OnceCell<Option<String>>,
    tags: OnceCell<Vec<String>>,
    attributes: RefCell<BTreeMap<String, Option<Vec<u8>>>>,
}

impl<'a> Node<'a> {
    /// Creates the node of a listed device.
    pub(crate) fn listed(devpath: &'a str, subsystem: &'a str, allowed: &'a Subsystems) -> Self {
        Self::new(devpath, Some(Cow::Borrowed(subsystem)), allowed)
    }

    /// Returns the device at `devpath`, if there is one.
    pub(crate) fn look_up(devpath: &'a str, allowed: &'a Subsystems) -> Option<Self> {
        let folder = folder(devpath);
        folder
            .join("uevent")
            .exists()
            .then(|| Self::new(devpath, subsystem(&folder).map(Cow::Owned), allowed))
    }

    fn new(devpath: &'a str, subsystem: Option<Cow<'a, str>>, allowed: &'a Subsystems) -> Self {
        Self {
            allowed,
            devpath,
            kernel: kernel_of(devpath),
            subsystem,
            device: OnceCell::new(),
            driver: OnceCell::new(),
            tags: OnceCell::new(),
            attributes: RefCell::default(),
        }
    }

    /// Returns true if the device may be seen.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed.allows(self.subsystem.as_deref())
    }

    /// Returns libudev's device; `None` if it is gone.
    pub(crate) fn device(&self) -> Option<&udev::Device> {
        self.device
            .get_or_init(|| udev::Device::from_syspath(&folder(self.devpath)).ok())
            .as_ref()
    }

    /// Returns the node below `/dev`.
    pub(crate) fn devnode(&self) -> Option<String> {
        let path = self.device()?.devnode()?;
        Some(lossy(path.as_os_str()))
    }

    /// Returns all properties, sorted.
    pub(crate) fn properties(&self) -> BTreeMap<String, String> {
        self.device().map(properties).unwrap_or_default()
    }
}

impl DeviceInfo for Node<'_> {
    fn devpath(&self) -> &str {
        self.devpath
    }

    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn subsystem(&self) -> Option<&str> {
        self.subsystem.as_deref()
    }

    fn driver(&self) -> Option<&str> {
        self.driver
            .get_or_init(|| link(&folder(self.devpath), "driver"))
            .as_deref()
    }

    fn property(&self, key: &str) -> Option<Cow<'_, [u8]>> {
        let value = self.device()?.property_value(key)?;
        Some(Cow::Borrowed(value.as_bytes()))
    }

    fn attribute(&self, key: &str) -> Option<Cow<'_, [u8]>> {
        self.attributes
            .borrow_mut()
            .entry(key.to_owned())
            .or_insert_with(|| compared(&folder(self.devpath), key, self.allowed))
            .clone()
            .map(Cow::Owned)
    }

    fn tags(&self) -> &[String] {
        self.tags.get_or_init(|| {
            let current = self.property("CURRENT_TAGS");
            let tags = current.or_else(|| self.property("TAGS"));
            split_tags(&String::from_utf8_lossy(&tags.unwrap_or_default()))
        })
    }
}

/// Returns the paths above `devpath`, nearest first, devices or not.
pub(crate) fn above(devpath: &str) -> impl Iterator<Item = &str> {
    devpath
        .rmatch_indices('/')
        .filter_map(|(at, _)| devpath.get(..at))
        .filter(|path| !path.is_empty() && *path != "/devices")
}

/// Returns the kernel name of the device at `devpath`. A `/` in a name is written `!` in paths.
pub(crate) fn kernel_of(devpath: &str) -> Cow<'_, str> {
    let last = devpath.rsplit('/').next().unwrap_or_default();
    if last.contains('!') {
        Cow::Owned(last.replace('!', "/"))
    } else {
        Cow::Borrowed(last)
    }
}

/// Returns all properties of a device, sorted.
pub(crate) fn properties(device: &udev::Device) -> BTreeMap<String, String> {
    device
        .properties()
        .map(|entry| (lossy(entry.name()), lossy(entry.value())))
        .collect()
}

/// Splits tags as udev writes them into a property, `:systemd:uaccess:`; sorted.
fn split_tags(text: &str) -> Vec<String> {
    let tags: BTreeSet<&str> = text.split(':').filter(|tag| !tag.is_empty()).collect();
    tags.into_iter().map(str::to_owned).collect()
}
