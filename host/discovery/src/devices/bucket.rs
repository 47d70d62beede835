//! Limits how many changes of a Configuration's devices are passed on: a burst at once, and a fixed number each hour.
//!
//! Instances, CDI specs and resources follow the devices, and the kubelet never forgets a name. Changes beyond the limit wait, and the
//! oldest come first; but a device that is gone or unhealthy is reported at once. Pure; time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::later;
use leafhost_core::device::{DeviceKey, Health};
use leafhost_core::device_view::DeviceView;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;

/// Number of changes allowed per device, both in a burst and per hour.
const FOR_EACH: f64 = 4.0;
/// Number of additional changes allowed per Configuration: a few devices may be plugged in one after the other.
const MORE: f64 = 64.0;
const HOUR: f64 = 3600.0;

type Devices = BTreeMap<DeviceKey, DeviceView>;

/// Token bucket of one Configuration.
#[derive(Debug, Default)]
pub struct Bucket {
    /// Tokens taken and not refilled.
    taken: f64,
    /// Capacity.
    most: f64,
    /// Time of the last refill.
    since: Option<Timestamp>,
    /// Waiting changes, each with the time since which it has waited.
    waiting: BTreeMap<DeviceKey, Timestamp>,
    /// True from the time that a change has to wait until none waits and the bucket is at least half full.
    strained: bool,
}

impl Bucket {
    /// Returns the devices to publish: those of `wanted`, except that changes beyond the limit are not applied yet to `shown`, the list
    /// that was published last.
    pub fn pass(&mut self, shown: &Devices, mut wanted: Devices, now: Timestamp) -> Devices {
        let number = u32::try_from(shown.len().max(wanted.len())).unwrap_or(u32::MAX);
        self.most = MORE + FOR_EACH * f64::from(number);
        let passed = self.since.replace(now).map_or(0.0, |since| {
            now.duration_since(since).as_secs_f64().max(0.0)
        });
        self.taken = (self.taken - passed * self.most / HOUR).max(0.0);

        let mut changed = BTreeSet::new();
        for (key, old) in shown {
            let new = wanted.get(key);
            let is_same = new.is_some_and(|new| {
                new.device == old.device
                    && new.missing_since.is_some() == old.missing_since.is_some()
            });
            // A device that only the store knew until now costs no token.
            let is_free = new.is_some() && old.device.is_none();
            if is_same {
                // The time that was published first remains.
                wanted.insert(key.clone(), old.clone());
            } else if !is_free {
                changed.insert(key.clone());
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

    /// Returns the time at which [`Self::pass`] has to run although no device has changed.
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

    /// Returns a problem while changes have to wait.
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

/// Returns the published device, marked as missing or unhealthy if it is so now.
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
