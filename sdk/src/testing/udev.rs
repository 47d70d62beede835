//! In-memory udev devices and rule matcher. It matches as the host does, except for patterns that the host turns into
//! regular expressions.

mod missed;

use std::cell::RefCell;
use std::collections::BTreeMap;

use glob::Pattern;

use super::State;
use crate::bindings::leafhost::udev::devices::Error;
use crate::udev::{Device, Field, Owner, Rule, Term};

/// Udev device of a [`FakeHost`](super::FakeHost).
#[derive(Debug, Clone)]
pub struct UdevDevice {
    device: Device,
    attributes: BTreeMap<String, String>,
    owner: Option<Owner>,
}

impl UdevDevice {
    /// Creates a device at a path below `/sys`, such as `/devices/virtual/mem/null`; the last part is the kernel's name.
    pub fn new(devpath: &str) -> Self {
        let kernel = devpath.rsplit('/').next().unwrap_or_default();
        Self {
            device: Device {
                devpath: devpath.to_owned(),
                parent: None,
                kernel: kernel.to_owned(),
                subsystem: None,
                driver: None,
                devnode: None,
                properties: Vec::new(),
                tags: Vec::new(),
                rules: Vec::new(),
            },
            attributes: BTreeMap::new(),
            owner: None,
        }
    }

    /// Sets the subsystem.
    #[must_use]
    pub fn subsystem(mut self, name: &str) -> Self {
        self.device.subsystem = Some(name.to_owned());
        self
    }

    /// Sets the driver bound to the device.
    #[must_use]
    pub fn driver(mut self, name: &str) -> Self {
        self.device.driver = Some(name.to_owned());
        self
    }

    /// Sets the device node below `/dev`.
    #[must_use]
    pub fn devnode(mut self, path: &str) -> Self {
        self.device.devnode = Some(path.to_owned());
        self
    }

    /// Sets the user and the group that own the device node.
    #[must_use]
    pub fn owner(mut self, user: u32, group: u32) -> Self {
        self.owner = Some(Owner { user, group });
        self
    }

    /// Adds a property of udev's database.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        let properties = &mut self.device.properties;
        properties.push((name.to_owned(), value.to_owned()));
        properties.sort();
        self
    }

    /// Adds a tag of udev's database.
    #[must_use]
    pub fn tag(mut self, tag: &str) -> Self {
        self.device.tags.push(tag.to_owned());
        self.device.tags.sort();
        self
    }

    /// Sets a sysfs attribute.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: &str) -> Self {
        self.attributes.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Returns true if a term holds for this device, not for its ancestors. An absent value counts as an empty text, but no
    /// term holds for an absent attribute. A tag term compares each of the device's tags.
    fn fits(&self, term: &Term) -> bool {
        let fits = |text: &str| matches(&term.value, text) != term.negated;
        match term.field {
            Field::Attr | Field::Attrs => self.value(term).is_some_and(fits),
            Field::Tag | Field::Tags => {
                let mut tags = self.device.tags.iter();
                tags.any(|tag| matches(&term.value, tag)) != term.negated
            }
            _ => fits(self.value(term).unwrap_or_default()),
        }
    }

    /// Returns the value that a term compares; `None` for tags.
    fn value(&self, term: &Term) -> Option<&str> {
        let device = &self.device;
        let key = term.key.as_deref().unwrap_or_default();
        match term.field {
            Field::Attr | Field::Attrs => self.attributes.get(key).map(|text| text.trim_end()),
            Field::Devpath => Some(&device.devpath),
            Field::Driver | Field::Drivers => device.driver.as_deref(),
            Field::Kernel | Field::Kernels => Some(&device.kernel),
            Field::Env => device.property(key),
            Field::Subsystem | Field::Subsystems => device.subsystem.as_deref(),
            Field::Tag | Field::Tags => None,
        }
    }
}

/// Returns true if the whole text matches one of the alternatives between `|`. As in udev, a pattern without any of `*`, `?`
/// and `[` is compared literally.
fn matches(pattern: &str, text: &str) -> bool {
    let is_glob = pattern.contains(['*', '?', '[']);
    pattern.split('|').any(|alternative| {
        if is_glob {
            Pattern::new(&alternative.replace("[^", "[!")).is_ok_and(|glob| glob.matches(text))
        } else {
            alternative == text
        }
    })
}

/// Devices by `devpath`.
#[derive(Debug, Default)]
pub(crate) struct Table {
    devices: RefCell<BTreeMap<String, UdevDevice>>,
    failure: RefCell<Option<String>>,
}

impl Table {
    pub(super) fn insert(&self, device: UdevDevice) {
        self.devices
            .borrow_mut()
            .insert(device.device.devpath.clone(), device);
    }

    pub(super) fn fail(&self, why: &str) {
        *self.failure.borrow_mut() = Some(why.to_owned());
    }

    fn available(&self) -> Result<(), Error> {
        match &*self.failure.borrow() {
            Some(why) => Err(Error::Unavailable(why.clone())),
            None => Ok(()),
        }
    }
}

impl State {
    /// Returns the devices that match with their ancestors, and explains which devices nearly match a rule, the nearest
    /// first.
    pub(crate) fn udev_find(&self, rules: &[Rule]) -> Result<Vec<Device>, Error> {
        self.udev.available()?;
        rules.iter().flatten().try_for_each(check)?;
        let devices = self.udev.devices.borrow();
        let mut answer = BTreeMap::new();
        let mut missed = Vec::new();
        for (devpath, device) in &*devices {
            let chain: Vec<&UdevDevice> = std::iter::once(device)
                .chain(ancestors(&devices, devpath))
                .collect();
            let held: Vec<u32> = (0..)
                .zip(rules)
                .filter(|(_, rule)| holds(rule, &chain))
                .map(|(index, _)| index)
                .collect();
            if held.is_empty() {
                missed.extend(rules.iter().filter_map(|rule| {
                    let (held, reason) = missed::reason(rule, &chain)?;
                    let terms: Vec<String> = rule.iter().map(Term::to_string).collect();
                    Some((held, devpath, terms.join(", "), reason))
                }));
                continue;
            }
            for (link, parent) in chain
                .iter()
                .zip(chain.iter().skip(1).map(Some).chain([None]))
            {
                let path = &link.device.devpath;
                let entry = answer.entry(path.clone()).or_insert_with(|| Device {
                    parent: parent.map(|parent| parent.device.devpath.clone()),
                    ..link.device.clone()
                });
                if path == devpath {
                    entry.rules.clone_from(&held);
                }
            }
        }
        missed.sort_by_key(|(held, ..)| std::cmp::Reverse(*held));
        for (_, devpath, rule, reason) in missed {
            self.skipped(devpath, &rule, &reason);
        }
        Ok(answer.into_values().collect())
    }

    pub(crate) fn udev_read(
        &self,
        attributes: &[(String, String)],
    ) -> Result<Vec<Option<String>>, Error> {
        self.udev.available()?;
        let devices = self.udev.devices.borrow();
        Ok(attributes
            .iter()
            .map(|(devpath, name)| devices.get(devpath)?.attributes.get(name).cloned())
            .collect())
    }

    pub(crate) fn udev_owners(&self, devnodes: &[String]) -> Result<Vec<Option<Owner>>, Error> {
        self.udev.available()?;
        let devices = self.udev.devices.borrow();
        let owner = |node: &String| {
            let mut devices = devices.values();
            devices
                .find(|device| device.device.devnode.as_ref() == Some(node))?
                .owner
        };
        Ok(devnodes.iter().map(owner).collect())
    }
}

/// Returns the devices above a path, nearest first.
fn ancestors<'a>(
    devices: &'a BTreeMap<String, UdevDevice>,
    devpath: &'a str,
) -> impl Iterator<Item = &'a UdevDevice> {
    let mut path = devpath;
    std::iter::from_fn(move || {
        path = path.rsplit_once('/')?.0;
        Some(path)
    })
    .filter_map(|path| devices.get(path))
}

fn check(term: &Term) -> Result<(), Error> {
    let needs_key = matches!(term.field, Field::Attr | Field::Attrs | Field::Env);
    if needs_key == term.key.is_some() {
        Ok(())
    } else if needs_key {
        Err(Error::InvalidRule(format!("{:?} needs a key", term.field)))
    } else {
        Err(Error::InvalidRule(format!("{:?} takes no key", term.field)))
    }
}

/// Returns true if the rule holds for `chain`, a device and its ancestors. As in udev, all terms on ancestors must hold for
/// the same device.
fn holds(rule: &Rule, chain: &[&UdevDevice]) -> bool {
    let (plural, own): (Vec<&Term>, Vec<&Term>) =
        rule.iter().partition(|term| is_plural(term.field));
    let fits = |terms: &[&Term], device: &UdevDevice| terms.iter().all(|term| device.fits(term));
    chain.first().is_some_and(|device| fits(&own, device))
        && chain.iter().any(|device| fits(&plural, device))
}

fn is_plural(field: Field) -> bool {
    matches!(
        field,
        Field::Attrs | Field::Drivers | Field::Kernels | Field::Subsystems | Field::Tags
    )
}
