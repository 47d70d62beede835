//! Finds devices: one walk through sysfs for any number of rules.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::device_info::DeviceInfo;
use crate::listing::Listing;
use crate::rule::Rule;
use crate::subsystems::Subsystems;
use crate::sysfs;
use crate::tree::{self, Node};
use crate::verdict::{Verdict, failed, judge};
use crate::{Error, Result};

mod hints;
mod notes;
mod readings;

use hints::Chain;
use notes::Notes;
use readings::Readings;

/// Time limit of one search, a hundred times the time for hundreds of devices.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for remedies of rules that no device nearly matches.
const REMEDIES: Duration = Duration::from_millis(20);

/// Result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Devices for which a rule holds, and their ancestors, sorted by devpath.
    pub devices: Vec<Device>,
    /// Notes for the operator: first terms that are globs here and were regular expressions in Akri, then terms that held only as a regular
    /// expression, then devices that no rule took and one nearly did, those with the most matching terms first; devices
    /// that only lack the value share one note.
    pub notes: Vec<Note>,
    /// Number of notes that were dropped.
    pub notes_dropped: u64,
}

/// A device. An ancestor that may not be seen has only `devpath`, `parent` and `kernel`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Path below `/sys`.
    pub devpath: String,
    /// Path of the nearest ancestor, which is part of the same result.
    pub parent: Option<String>,
    /// Kernel name.
    pub kernel: String,
    /// Subsystem, if any.
    pub subsystem: Option<String>,
    /// Driver, if bound.
    pub driver: Option<String>,
    /// Node below `/dev`, if any.
    pub devnode: Option<String>,
    /// Properties from udev, sorted by name.
    pub properties: Vec<(String, String)>,
    /// Tags from udev, sorted.
    pub tags: Vec<String>,
    /// Indexes of the rules that hold, ascending; empty for a device listed only as an ancestor.
    pub rules: Vec<u32>,
}

/// A note for the operator about a rule and a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Path of the device.
    pub subject: String,
    /// Text of the rule.
    pub rule: String,
    /// Text of the note.
    pub reason: String,
}

/// Finds all devices for which at least one rule holds. Blocks: some milliseconds for a few hundred devices.
pub fn find(rules: &[Rule], allowed: &Subsystems) -> Result<Found> {
    sysfs::require_sysfs()?;
    let started = Instant::now();
    let listing = Listing::read().map_err(Error::List)?;
    let walk = Walk::start(&listing, allowed);
    let mut rules = rules.to_vec();
    let globs = walk.readings(&listing, &rules, started)?.settle(&mut rules);
    let rules = rules.as_slice();
    let mut matched: BTreeMap<&str, Matched<'_>> = BTreeMap::new();
    let mut notes = Notes::new(rules, globs);
    // Rules that held or nearly did.
    let mut near: BTreeSet<u32> = BTreeSet::new();
    // As in udev, a device without a subsystem is an ancestor at most.
    let seen = listing
        .iter()
        .filter(|(_, subsystem)| allowed.allows(Some(subsystem)));
    for (devpath, subsystem) in seen {
        let mut own = None;
        let node = match walk.node(devpath) {
            Some(node) => node,
            None => own.insert(Node::listed(devpath, subsystem, allowed)),
        };
        let ancestors = walk.ancestors(devpath);
        let mut held = Vec::new();
        let mut missed = Vec::new();
        for (index, rule) in (0..).zip(rules) {
            in_time(started)?;
            match judge(rule, node, &ancestors) {
                // A device that has gone since it was listed is skipped.
                Verdict::Holds { .. } if node.device().is_none() => {}
                Verdict::Holds { as_regex } => {
                    held.push(index);
                    near.insert(index);
                    for term in as_regex {
                        notes.matched_as_regex(index, term, devpath);
                    }
                }
                Verdict::Misses(miss) => {
                    missed.push((index, miss));
                    near.insert(index);
                }
                Verdict::Differs => {}
            }
        }
        // A device that one rule finds causes no note about the others.
        if held.is_empty() {
            for (index, miss) in missed {
                notes.missed(index, devpath, miss);
            }
        } else {
            let (rules, node) = (held, own);
            matched.insert(devpath, Matched { rules, node });
        }
    }
    let hint = |rule: &Rule, term: usize, devpath: &str| {
        in_time(started).ok()?;
        walk.with_chain(devpath, listing.subsystem(devpath)?, |chain| {
            hints::hint(rule, term, chain)
        })
    };
    let (mut notes, notes_dropped) = notes.written(rules, hint);
    let until = Instant::now() + REMEDIES;
    for (index, rule) in (0..).zip(rules) {
        if !near.contains(&index) {
            let remedy = walk.remedy(&listing, rule, until);
            notes.push(remedy.unwrap_or_else(|| notes::nothing(rule, &listing)));
        }
    }
    Ok(Found {
        devices: walk.devices(&matched),
        notes,
        notes_dropped,
    })
}

fn in_time(started: Instant) -> Result<()> {
    if started.elapsed() > TIMEOUT {
        return Err(Error::TooSlow(TIMEOUT.as_secs()));
    }
    Ok(())
}

/// A device for which rules hold.
struct Matched<'a> {
    rules: Vec<u32>,
    /// Node of the device; `None` if it is in [`Walk::folders`].
    node: Option<Node<'a>>,
}

/// All devices of one search.
struct Walk<'a> {
    allowed: &'a Subsystems,
    /// Every folder above a listed device; `None` if it is not a device itself. Each is looked up once for all devices below it.
    folders: BTreeMap<&'a str, Option<Node<'a>>>,
}

impl<'a> Walk<'a> {
    /// Looks up the folders above the listed devices.
    fn start(listing: &'a Listing, allowed: &'a Subsystems) -> Self {
        let mut folders = BTreeMap::new();
        for (devpath, _) in listing.iter() {
            for path in tree::above(devpath) {
                let Entry::Vacant(new) = folders.entry(path) else {
                    break;
                };
                new.insert(match listing.subsystem(path) {
                    Some(subsystem) => Some(Node::listed(path, subsystem, allowed)),
                    None => Node::look_up(path, allowed),
                });
            }
        }
        Self { allowed, folders }
    }

    /// Compares values that may be a glob or a regular expression with all devices.
    fn readings(&self, listing: &Listing, rules: &[Rule], started: Instant) -> Result<Readings> {
        let mut readings = Readings::new(rules);
        let folders = self.folders.values().flatten();
        for node in folders.filter(|node| node.is_allowed()) {
            readings.look_at(node);
        }
        for (devpath, subsystem) in listing.iter() {
            if readings.is_done() {
                break;
            }
            in_time(started)?;
            if self.allowed.allows(Some(subsystem)) && self.node(devpath).is_none() {
                readings.look_at(&Node::listed(devpath, subsystem, self.allowed));
            }
        }
        Ok(readings)
    }

    /// Returns the device at `devpath` if others lie below it.
    fn node(&self, devpath: &str) -> Option<&Node<'a>> {
        self.folders.get(devpath)?.as_ref()
    }

    /// Returns the ancestors, nearest first.
    fn above(&self, devpath: &str) -> impl Iterator<Item = &Node<'a>> {
        tree::above(devpath).filter_map(|path| self.node(path))
    }

    /// Returns the ancestors that the handler may see, nearest first.
    fn ancestors(&self, devpath: &str) -> Vec<&dyn DeviceInfo> {
        self.above(devpath)
            .filter(|node| node.is_allowed())
            .map(|node| node as &dyn DeviceInfo)
            .collect()
    }

    /// Calls `look` with a listed device and the ancestors that the handler may see.
    fn with_chain<T>(
        &self,
        devpath: &str,
        subsystem: &str,
        look: impl FnOnce(Chain<'_>) -> T,
    ) -> T {
        let listed;
        let own: &dyn DeviceInfo = if let Some(node) = self.node(devpath) {
            node
        } else {
            listed = Node::listed(devpath, subsystem, self.allowed);
            &listed
        };
        let ancestors = &self.ancestors(devpath);
        look(Chain { own, ancestors })
    }

    /// Returns a note with a remedy for a rule that no device nearly matches, if one is found in time.
    fn remedy(&self, listing: &Listing, rule: &Rule, until: Instant) -> Option<Note> {
        let mut seen = listing
            .iter()
            .filter(|(_, subsystem)| self.allowed.allows(Some(subsystem)))
            .take_while(|_| Instant::now() < until);
        seen.find_map(|(devpath, subsystem)| {
            self.with_chain(devpath, subsystem, |chain| {
                let term = failed(rule, chain.own, chain.ancestors)?;
                let compiled = rule.compiled().get(term)?;
                let remedy = hints::remedy(compiled, chain)?;
                Some(notes::near(devpath, rule, &compiled.term, &remedy))
            })
        })
    }

    /// Returns the matched devices and their ancestors.
    fn devices(&self, matched: &BTreeMap<&str, Matched<'a>>) -> Vec<Device> {
        let mut wanted: BTreeSet<&str> = BTreeSet::new();
        for devpath in matched.keys() {
            wanted.insert(devpath);
            wanted.extend(self.above(devpath).map(DeviceInfo::devpath));
        }
        wanted
            .into_iter()
            .filter_map(|devpath| {
                let matched = matched.get(devpath);
                let own = matched.and_then(|matched| matched.node.as_ref());
                let node = own.or_else(|| self.node(devpath))?;
                let rules = matched.map_or_else(Vec::new, |matched| matched.rules.clone());
                Some(self.device(node, rules))
            })
            .collect()
    }

    fn device(&self, node: &Node<'_>, rules: Vec<u32>) -> Device {
        let mut device = Device {
            devpath: node.devpath().to_owned(),
            parent: self
                .above(node.devpath())
                .next()
                .map(|parent| parent.devpath().to_owned()),
            kernel: node.kernel().to_owned(),
            ..Device::default()
        };
        if node.is_allowed() {
            device.subsystem = node.subsystem().map(str::to_owned);
            device.driver = node.driver().map(str::to_owned);
            device.devnode = node.devnode();
            device.properties = node.properties().into_iter().collect();
            device.tags = node.tags().to_vec();
            device.rules = rules;
        }
        device
    }
}

#[cfg(test)]
mod tests;
