//! Tracks the devices of a session and of a Configuration: merges each answer into the known devices.
//!
//! Pure; time is an argument. Only an answer or the end of a grace period withdraws a device; errors and faults are never passed to this
//! module.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::later;
use leafhost_core::device::{Device, DeviceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::session::{Devices, Discovery};
use leafhost_core::timeouts;

mod bucket;
mod budget;
mod merge;

pub use bucket::Bucket;
pub use budget::Budget;
pub use merge::{Part, SourceRank, merge};

/// Time for which a missing device keeps its Instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grace(
    /// Grace period of the Configuration; `None` for the defaults.
    pub Option<Duration>,
);

impl Grace {
    /// Returns the grace period of a shared or a local device.
    pub fn of(self, shared: bool) -> Duration {
        self.0.unwrap_or(if shared {
            timeouts::SHARED_GRACE
        } else {
            timeouts::LOCAL_GRACE
        })
    }

    /// Returns the end of the grace period of a device that has been missing since `since`.
    pub fn end(self, shared: bool, since: Timestamp) -> Timestamp {
        later(since, self.of(shared))
    }
}

/// Maximum number of bytes of text that the devices of a session have together: partial answers add up.
const MOST_TEXT: usize = 32 << 20;

/// Device with its presence in the last complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// Device as last reported.
    pub device: Arc<Device>,
    /// Time since which complete answers have lacked the device; `None` while it is present.
    pub missing_since: Option<Timestamp>,
}

impl Tracked {
    /// Returns the time at which the device is withdrawn, if it is missing.
    fn end(&self, grace: Grace) -> Option<Timestamp> {
        Some(grace.end(self.device.shared, self.missing_since?))
    }

    /// Marks the device as missing; returns true if it was present.
    fn miss(&mut self, now: Timestamp) -> bool {
        self.missing_since
            .replace(self.missing_since.unwrap_or(now))
            .is_none()
    }
}

/// Devices of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionDevices {
    tracked: BTreeMap<DeviceKey, Tracked>,
    /// Number of bytes of text of these devices.
    text: usize,
    /// Maximum number of devices at a time, if there is one.
    most: Option<usize>,
    /// Number of devices in the last answer that exceeded `most` or the text limit.
    over: usize,
    /// True if the handler has answered since the last [`Self::reopen`].
    answered: bool,
    /// True once a complete answer has arrived: devices that it lacks are absent.
    settled: bool,
    /// Ids that an answer named as departed and that no answer has reported since; they also apply to devices of earlier runs.
    departed: BTreeSet<String>,
    /// Ids of devices in the last answer that were left out.
    left_out: BTreeSet<String>,
}

impl SessionDevices {
    /// Resets the session for a new handler, which cannot refer to a previous answer yet.
    pub fn reopen(&mut self) {
        self.answered = false;
    }

    /// Sets the maximum number of devices.
    pub fn limit(&mut self, most: usize) {
        self.most = Some(most);
    }

    /// Applies an answer; returns true if anything changed.
    pub fn fold(&mut self, discovery: Discovery, grace: Grace, now: Timestamp) -> bool {
        let Discovery {
            devices,
            departed,
            left_out,
        } = discovery;
        let mut differs = false;
        if devices != Devices::Unchanged {
            self.left_out = left_out.ids;
            self.over = 0;
            // A device is withdrawn only if it already hands out the ungranted item, whose grant was then revoked. A new version of a
            // handler may merely ask for more than is granted.
            let ungranted = &left_out.ungranted;
            differs |= self.let_go(|key, tracked| {
                let item = ungranted.get(&key.id);
                item.is_some_and(|item| tracked.device.gives(item))
            });
        }
        let (reported, complete) = match devices {
            Devices::Complete(devices) => (devices, true),
            Devices::Partial(devices) => (devices, false),
            Devices::Unchanged => (Vec::new(), !self.answered),
        };
        self.answered = true;
        let present: BTreeSet<DeviceKey> = reported.iter().map(Device::key).collect();
        if complete {
            differs |= !std::mem::replace(&mut self.settled, true);
            let left_out = &self.left_out;
            for (key, tracked) in &mut self.tracked {
                if !present.contains(key) && !left_out.contains(&key.id) {
                    differs |= tracked.miss(now);
                }
            }
        }
        let ids: BTreeSet<&str> = present.iter().map(|key| key.id.as_str()).collect();
        self.departed.extend(departed);
        self.departed.retain(|id| !ids.contains(id.as_str()));
        let left = self.departed.clone();
        differs |= self.let_go(|key, _| left.contains(&key.id));
        differs |= self.expire(grace, now);
        let here = |tracked: &&Tracked| tracked.missing_since.is_none();
        let mut here = self.tracked.values().filter(here).count();
        for device in reported {
            differs |= self.take(device, &mut here);
        }
        differs
    }

    /// Adds or updates a reported device. `here` counts the present devices. Returns true if anything changed.
    fn take(&mut self, device: Device, here: &mut usize) -> bool {
        let key = device.key();
        let most = self.most.unwrap_or(usize::MAX);
        let tracked = self.tracked.len();
        let (returned, before) = match self.tracked.get_mut(&key) {
            Some(held) => {
                let returned = held.missing_since.take().is_some();
                *here += usize::from(returned);
                if *held.device == device {
                    return returned;
                }
                (returned, Some(held.device.text()))
            }
            // Each missing device may have been replaced by another one.
            None if *here >= most || tracked >= most.saturating_mul(2) => {
                self.over += 1;
                return false;
            }
            None => (false, None),
        };
        let text = self.text.saturating_sub(before.unwrap_or(0)) + device.text();
        if text > MOST_TEXT {
            self.over += 1;
            return returned;
        }
        self.text = text;
        *here += usize::from(before.is_none());
        let tracked = Tracked {
            device: Arc::new(device),
            missing_since: None,
        };
        self.tracked.insert(key, tracked);
        true
    }

    /// Removes the devices that `goes` selects; returns true if there were any.
    fn let_go(&mut self, goes: impl Fn(&DeviceKey, &Tracked) -> bool) -> bool {
        let before = self.tracked.len();
        let text = &mut self.text;
        self.tracked.retain(|key, tracked| {
            let goes = goes(key, tracked);
            if goes {
                *text = text.saturating_sub(tracked.device.text());
            }
            !goes
        });
        self.tracked.len() != before
    }

    /// Removes devices whose grace period has expired; returns true if there were any.
    pub fn expire(&mut self, grace: Grace, now: Timestamp) -> bool {
        self.let_go(|_, tracked| tracked.end(grace).is_some_and(|end| end <= now))
    }

    /// Returns the next time at which [`Self::expire`] removes a device.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        let tracked = self.tracked.values();
        tracked.filter_map(|tracked| tracked.end(grace)).min()
    }

    /// Returns a problem if the last answer had more devices, or more text, than the source may have.
    pub fn problem(&self, configuration: &ConfigurationKey, source: &str) -> Option<Problem> {
        (self.over > 0).then(|| Problem::TooManyDevices {
            configuration: configuration.clone(),
            source_name: source.to_owned(),
            over: self.over,
            most: self.most.unwrap_or(usize::MAX),
            mebibytes: MOST_TEXT >> 20,
        })
    }

    /// Keeps only the departed ids that are still in `unseen`.
    pub fn remember_departed(&mut self, unseen: &UnconfirmedDevices) {
        self.departed.retain(|id| unseen.has(id));
    }

    /// Returns true once a complete answer has come.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns the devices, including missing ones.
    pub fn tracked(&self) -> &BTreeMap<DeviceKey, Tracked> {
        &self.tracked
    }
}

/// Devices that only the store knows: Instances of an earlier run that no session has reported yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnconfirmedDevices(BTreeMap<DeviceKey, Option<Timestamp>>);

impl UnconfirmedDevices {
    /// Adds a device; `missing_since` is `None` if the device is not missing.
    pub fn insert(&mut self, key: DeviceKey, missing_since: Option<Timestamp>) {
        self.0.insert(key, missing_since);
    }

    /// Adds the devices of a session that has ended.
    pub fn adopt(&mut self, devices: &SessionDevices) {
        for (key, tracked) in &devices.tracked {
            self.insert(key.clone(), tracked.missing_since);
        }
    }

    /// Updates the set from the sessions. Devices that a session has are removed. The others stay unknown until the handler of every source
    /// is known (`all_known`) and every session has either given a complete answer or named the device as departed. Then they are missing,
    /// and are removed at the end of their grace period, or at once if a session named them as departed. An answer that leaves a device out
    /// neither begins nor ends its grace period.
    pub fn update(
        &mut self,
        sessions: &[&SessionDevices],
        all_known: bool,
        grace: Grace,
        now: Timestamp,
    ) {
        self.0.retain(|key, missing_since| {
            if sessions
                .iter()
                .any(|session| session.tracked.contains_key(key))
            {
                return false;
            }
            let (left, others): (Vec<&SessionDevices>, Vec<_>) = sessions
                .iter()
                .copied()
                .partition(|session| session.departed.contains(&key.id));
            let left_out = others
                .iter()
                .any(|session| session.left_out.contains(&key.id));
            let settled =
                all_known && !sessions.is_empty() && others.iter().all(|session| session.settled);
            if !settled || (left_out && missing_since.is_none()) {
                return true;
            }
            if !left.is_empty() && !left_out {
                return false;
            }
            // A clock that was ahead when the agent last ran must not extend the grace period.
            let since = missing_since.map_or(now, |since| since.min(now));
            *missing_since = Some(since);
            grace.end(key.shared, since) > now
        });
    }

    /// Returns true if the set has a device with that id.
    fn has(&self, id: &str) -> bool {
        let key = |shared| DeviceKey {
            id: id.to_owned(),
            shared,
        };
        [false, true]
            .into_iter()
            .any(|shared| self.0.contains_key(&key(shared)))
    }

    /// Returns the next time at which a missing device is removed.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        self.0
            .iter()
            .filter_map(|(key, since)| Some(grace.end(key.shared, (*since)?)))
            .min()
    }

    /// Returns true if the set has no device.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
