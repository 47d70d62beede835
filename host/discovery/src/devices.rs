//! The devices of a session and of a Configuration: what answers say, folded with what was known before.
//!
//! Pure: time is given. Withdrawal is by answers and grace alone; errors and faults never come here.

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
pub use merge::{Lost, Part, SourceRank, merge};

/// How long a missing device keeps its Instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grace(
    /// What the Configuration says; nothing for the defaults.
    pub Option<Duration>,
);

impl Grace {
    /// The grace of a shared or a local device.
    pub fn of(self, shared: bool) -> Duration {
        self.0.unwrap_or(if shared {
            timeouts::SHARED_GRACE
        } else {
            timeouts::LOCAL_GRACE
        })
    }

    /// When the grace of a device that is missing `since` then is over.
    pub fn end(self, shared: bool, since: Timestamp) -> Timestamp {
        later(since, self.of(shared))
    }
}

/// The most text that the devices of a session have in all, in bytes: partial answers add up.
const MOST_TEXT: usize = 32 << 20;

/// A device and whether the last complete answer had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// As last reported.
    pub device: Arc<Device>,
    /// Since when complete answers lack it.
    pub missing_since: Option<Timestamp>,
}

impl Tracked {
    /// When it goes, if it is missing.
    fn end(&self, grace: Grace) -> Option<Timestamp> {
        Some(grace.end(self.device.shared, self.missing_since?))
    }

    /// It is not there; says whether it was.
    fn miss(&mut self, now: Timestamp) -> bool {
        self.missing_since
            .replace(self.missing_since.unwrap_or(now))
            .is_none()
    }
}

/// The devices of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionDevices {
    tracked: BTreeMap<DeviceKey, Tracked>,
    /// How many bytes of text they have.
    text: usize,
    /// How many devices it may have at a time, if that is bounded.
    most: Option<usize>,
    /// How many devices of the last answer were more, or had more text.
    over: usize,
    /// The handler has answered since it was opened as `first`.
    answered: bool,
    /// A complete answer has come: what it does not have is not there.
    settled: bool,
    /// Ids that answers named as departed and have not named as present since; they count for devices of earlier runs, too.
    departed: BTreeSet<String>,
    /// The ids of devices that were in the last answer and were not taken.
    left_out: BTreeSet<String>,
}

impl SessionDevices {
    /// The handler is new to the session: it cannot mean "the same as last time" yet.
    pub fn reopen(&mut self) {
        self.answered = false;
    }

    /// From now on there are at most so many devices.
    pub fn limit(&mut self, most: usize) {
        self.most = Some(most);
    }

    /// Takes an answer in; says whether anything is different now.
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

    /// Takes a device in that was reported, besides those that are `here`; says whether it is news.
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
            // For those that are missing as many others may have come.
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

    /// Lets devices go; says whether there was one.
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

    /// Lets go what was missing for too long; says whether there was something.
    pub fn expire(&mut self, grace: Grace, now: Timestamp) -> bool {
        self.let_go(|_, tracked| tracked.end(grace).is_some_and(|end| end <= now))
    }

    /// When [`Self::expire`] has something to do next.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        let tracked = self.tracked.values();
        tracked.filter_map(|tracked| tracked.end(grace)).min()
    }

    /// The devices of the last answer that are more than the source may have.
    pub fn problem(&self, configuration: &ConfigurationKey, source: &str) -> Option<Problem> {
        (self.over > 0).then(|| Problem::TooManyDevices {
            configuration: configuration.clone(),
            source_name: source.to_owned(),
            over: self.over,
            most: self.most.unwrap_or(usize::MAX),
            mebibytes: MOST_TEXT >> 20,
        })
    }

    /// Keeps of the ids that departed those that still say something.
    pub fn remember_departed(&mut self, unseen: &Unseen) {
        self.departed.retain(|id| unseen.has(id));
    }

    /// Whether a complete answer has come.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// The devices, missing ones included.
    pub fn tracked(&self) -> &BTreeMap<DeviceKey, Tracked> {
        &self.tracked
    }
}

/// Devices that only the store knows: Instances of an earlier run that no session has reported yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unseen(BTreeMap<DeviceKey, Option<Timestamp>>);

impl Unseen {
    /// Devices and since when they are missing, if they are.
    pub fn new(devices: BTreeMap<DeviceKey, Option<Timestamp>>) -> Self {
        Self(devices)
    }

    /// Adds devices that no session stands for any more.
    pub fn adopt(&mut self, devices: &SessionDevices) {
        for (key, tracked) in &devices.tracked {
            self.0.insert(key.clone(), tracked.missing_since);
        }
    }

    /// Compares with what the sessions have. A device that one has is seen. Of the others nothing is known before it is
    /// known of every source which handler it is (`all_known`), and every session has either given a complete answer or named the
    /// device as departed: then it is missing, and goes when its grace is over, or at once if a session named it as departed.
    /// To be left out begins no grace and ends none.
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
            // A clock that was ahead when the agent last ran must not stretch the grace.
            let since = missing_since.map_or(now, |since| since.min(now));
            *missing_since = Some(since);
            grace.end(key.shared, since) > now
        });
    }

    /// Whether a device with that id is among them.
    fn has(&self, id: &str) -> bool {
        let key = |shared| DeviceKey {
            id: id.to_owned(),
            shared,
        };
        [false, true]
            .into_iter()
            .any(|shared| self.0.contains_key(&key(shared)))
    }

    /// When the next one goes. Only one that is known to be missing does.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        self.0
            .iter()
            .filter_map(|(key, since)| Some(grace.end(key.shared, (*since)?)))
            .min()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets all go.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
