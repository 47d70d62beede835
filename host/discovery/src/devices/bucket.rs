//! How many changes of a Configuration's devices are passed on: many at once, but only so many an hour.
//!
//! Instances, CDI specs and resources are made, changed and removed as devices are, and the kubelet forgets no name. What is beyond the
//! bucket waits, who has waited longest first; but that a device is gone or ill is passed on at once. Pure: time is given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::later;
use leafhost_core::device::{DeviceKey, Health};
use leafhost_core::device_view::DeviceView;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;

/// So many changes at once for each device there is, and so many in an hour…
const FOR_EACH: f64 = 4.0;
/// …and so many more: a few devices may be plugged in one after the other.
const MORE: f64 = 64.0;
const HOUR: f64 = 3600.0;

type Devices = BTreeMap<DeviceKey, DeviceView>;

/// The bucket of one Configuration.
#[derive(Debug, Default)]
pub struct Bucket {
    /// What was taken and has not come back.
    taken: f64,
    /// How much it holds.
    most: f64,
    /// As of then.
    since: Option<Timestamp>,
    /// What has to wait, since when.
    waiting: BTreeMap<DeviceKey, Timestamp>,
    /// Something had to wait, and the bucket has not been half full since.
    strained: bool,
}

/// What there is to do about a device.
enum Step {
    Nothing,
    /// It was known from the store alone until now.
    Free,
    Taken,
}

fn step(shown: Option<&DeviceView>, wanted: Option<&DeviceView>) -> Step {
    match (shown, wanted) {
        (Some(shown), Some(wanted)) => {
            let same = shown.device == wanted.device;
            if same && shown.missing_since.is_some() == wanted.missing_since.is_some() {
                Step::Nothing
            } else if shown.device.is_none() {
                Step::Free
            } else {
                Step::Taken
            }
        }
        _ => Step::Taken,
    }
}

impl Bucket {
    /// What is passed on of the devices that are `wanted`, after those that were `shown` before.
    pub fn pass(&mut self, shown: &Devices, mut wanted: Devices, now: Timestamp) -> Devices {
        let number = u32::try_from(shown.len().max(wanted.len())).unwrap_or(u32::MAX);
        self.most = MORE + FOR_EACH * f64::from(number);
        let passed = self.since.replace(now).map_or(0.0, |since| {
            now.duration_since(since).as_secs_f64().max(0.0)
        });
        self.taken = (self.taken - passed * self.most / HOUR).max(0.0);

        let mut changed = BTreeSet::new();
        for (key, shown) in shown {
            match step(Some(shown), wanted.get(key)) {
                Step::Taken => {
                    changed.insert(key.clone());
                }
                // Since when it is missing is what was said first.
                Step::Nothing => drop(wanted.insert(key.clone(), shown.clone())),
                Step::Free => {}
            }
        }
        changed.extend(
            wanted
                .keys()
                .filter(|key| !shown.contains_key(*key))
                .cloned(),
        );
        self.waiting.retain(|key, _| changed.contains(key));
        let mut queue: Vec<(Timestamp, DeviceKey)> = changed
            .into_iter()
            .map(|key| (*self.waiting.entry(key.clone()).or_insert(now), key))
            .collect();
        let room = self.room();
        if queue.len() > room {
            queue.sort();
            self.strained = true;
        }
        for (place, (_, key)) in queue.into_iter().enumerate() {
            if place < room {
                self.taken += 1.0;
                self.waiting.remove(&key);
                continue;
            }
            let held = shown
                .get(&key)
                .map(|shown| held(shown, wanted.get(&key), now));
            match held {
                Some(held) => drop(wanted.insert(key, held)),
                None => drop(wanted.remove(&key)),
            }
        }
        self.strained &= !self.waiting.is_empty() || self.taken > self.most / 2.0;
        wanted
    }

    fn room(&self) -> usize {
        whole(self.most - self.taken)
    }

    /// When [`Self::pass`] has something to do although nothing has changed.
    pub fn due(&self) -> Option<Timestamp> {
        let left = if self.waiting.is_empty() {
            self.most / 2.0
        } else {
            self.most - 1.0
        };
        let wait = (self.taken - left).max(0.0) * HOUR / self.most.max(1.0);
        let wait = Duration::try_from_secs_f64(wait.ceil().max(1.0)).ok()?;
        let due = later(self.since?, wait);
        self.strained.then_some(due)
    }

    /// Whether changes had to wait, and which.
    pub fn problem(&self, configuration: &ConfigurationKey) -> Option<Problem> {
        self.strained.then(|| Problem::DevicesUnstable {
            configuration: configuration.clone(),
            most: whole(self.most),
            waiting: self.waiting.len(),
            example: self.waiting.keys().next().map(|key| key.id.clone()),
        })
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is a small number that is not negative"
)]
fn whole(number: f64) -> usize {
    number.max(0.0) as usize
}

/// A device as it stays for now: what it was, but not there if it is not, and ill if it is.
fn held(shown: &DeviceView, wanted: Option<&DeviceView>, now: Timestamp) -> DeviceView {
    let mut held = shown.clone();
    match wanted {
        None => held.missing_since = held.missing_since.or(Some(now)),
        Some(wanted) => {
            held.missing_since = held.missing_since.or(wanted.missing_since);
            let ill = wanted.device.as_ref().map(|device| &device.health);
            if let (Some(device), Some(ill @ Health::Unhealthy(_))) = (&mut held.device, ill)
                && !matches!(device.health, Health::Unhealthy(_))
            {
                Arc::make_mut(device).health = ill.clone();
            }
        }
    }
    held
}

#[cfg(test)]
mod tests;
