//! The devices of a session and of a Configuration: what answers say, folded with what was known before.
//!
//! Pure: time is given. Withdrawal is by answers and grace alone; errors and faults never come here.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::device::{Device, DeviceKey};
use leafhost_core::session::{Devices, Discovery};
use leafhost_core::timeouts;

use crate::clock::later;

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

/// A device and whether the last complete answer had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// As last reported.
    pub device: Arc<Device>,
    /// Since when complete answers lack it.
    pub missing_since: Option<Timestamp>,
}

/// The devices of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionDevices {
    tracked: BTreeMap<DeviceKey, Tracked>,
    /// The handler has answered since it was opened as `first`.
    answered: bool,
    /// A complete answer has come: what it does not have is not there.
    settled: bool,
    /// The ids the last answer named as departed; they count for devices of earlier runs, too.
    departed: BTreeSet<String>,
    /// The ids, as shown, of devices that were in the last answer and were not taken.
    left_out: BTreeSet<String>,
}

impl SessionDevices {
    /// The handler is new to the session: it cannot mean "the same as last time" yet.
    pub fn reopen(&mut self) {
        self.answered = false;
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
            self.left_out = left_out.into_iter().map(|out| out.id).collect();
        }
        let (reported, complete) = match devices {
            Devices::Complete(devices) => (devices, true),
            Devices::Partial(devices) => (devices, false),
            Devices::Unchanged => (Vec::new(), !self.answered),
        };
        self.answered = true;
        let mut present = BTreeSet::new();
        for device in reported {
            let key = device.key();
            present.insert(key.clone());
            differs |= self.report(key, device);
        }
        if complete {
            differs |= !std::mem::replace(&mut self.settled, true);
            let left_out = &self.left_out;
            for (key, tracked) in &mut self.tracked {
                if tracked.missing_since.is_none()
                    && !present.contains(key)
                    && !is_left_out(left_out, &key.id)
                {
                    tracked.missing_since = Some(now);
                    differs = true;
                }
            }
        }
        let ids: BTreeSet<&str> = present.iter().map(|key| key.id.as_str()).collect();
        self.departed = departed
            .into_iter()
            .filter(|id| !ids.contains(id.as_str()))
            .collect();
        let (before, departed) = (self.tracked.len(), &self.departed);
        self.tracked.retain(|key, _| !departed.contains(&key.id));
        differs |= self.tracked.len() != before;
        self.expire(grace, now) || differs
    }

    /// A device is there; says whether it is news.
    fn report(&mut self, key: DeviceKey, device: Device) -> bool {
        match self.tracked.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Tracked {
                    device: Arc::new(device),
                    missing_since: None,
                });
                true
            }
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                let returned = held.missing_since.take().is_some();
                let differs = *held.device != device;
                if differs {
                    held.device = Arc::new(device);
                }
                returned || differs
            }
        }
    }

    /// Lets go what was missing for too long; says whether there was such a device.
    pub fn expire(&mut self, grace: Grace, now: Timestamp) -> bool {
        let before = self.tracked.len();
        self.tracked.retain(|key, tracked| {
            tracked
                .missing_since
                .is_none_or(|since| grace.end(key.shared, since) > now)
        });
        self.tracked.len() != before
    }

    /// When [`Self::expire`] has something to do next.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        self.tracked
            .iter()
            .filter_map(|(key, tracked)| Some(grace.end(key.shared, tracked.missing_since?)))
            .min()
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

/// Whether the device with that id was left out. Ids are shown cut to 256 bytes, perhaps with a mark of it.
fn is_left_out(left_out: &BTreeSet<String>, id: &str) -> bool {
    const SHOWN: usize = 256;
    left_out.contains(id)
        || (id.len() > SHOWN
            && left_out.iter().any(|out| {
                let shown = out.trim_end_matches(['…', '.']);
                shown.len() + 8 > SHOWN && id.starts_with(shown)
            }))
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

    /// Compares with what the sessions have. A device that one has is seen. When `settled` (every session that
    /// might have it has given a complete answer) the others are missing, and go when their grace is over. To be left
    /// out begins no grace and ends none.
    pub fn meet(
        &mut self,
        sessions: &[&SessionDevices],
        settled: bool,
        grace: Grace,
        now: Timestamp,
    ) {
        self.0.retain(|key, missing_since| {
            if sessions.iter().any(|session| {
                session.tracked.contains_key(key) || session.departed.contains(&key.id)
            }) {
                return false;
            }
            let left_out = sessions
                .iter()
                .any(|session| is_left_out(&session.left_out, &key.id));
            if !settled || (left_out && missing_since.is_none()) {
                return true;
            }
            // A clock that was ahead when the agent last ran must not stretch the grace.
            let since = missing_since.map_or(now, |since| since.min(now));
            *missing_since = Some(since);
            grace.end(key.shared, since) > now
        });
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

/// A device of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// As last reported; nothing if it has not been since the agent started.
    pub device: Option<Arc<Device>>,
    /// Since when it is missing.
    pub missing_since: Option<Timestamp>,
}

/// What a session brings in.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The source.
    pub source: &'a str,
    /// Whether the source is still there. One that is gone only fills gaps.
    pub live: bool,
    /// Its devices.
    pub devices: &'a SessionDevices,
}

/// The devices of all sessions of a Configuration, by source: the first that has a device now wins, then the first that
/// had it. Also says which source lost which device.
pub fn merge(
    mut parts: Vec<Part<'_>>,
    unseen: &Unseen,
) -> (BTreeMap<DeviceKey, DeviceView>, Vec<Lost>) {
    parts.sort_by_key(|part| (!part.live, part.source));
    let mut merged: BTreeMap<DeviceKey, (&str, DeviceView)> = BTreeMap::new();
    let mut lost: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for part in parts {
        for (key, tracked) in &part.devices.tracked {
            let view = DeviceView {
                device: Some(Arc::clone(&tracked.device)),
                missing_since: tracked.missing_since,
            };
            match merged.entry(key.clone()) {
                Entry::Vacant(free) => {
                    free.insert((part.source, view));
                }
                Entry::Occupied(mut held) => {
                    let (winner, first) = held.get_mut();
                    match (first.missing_since, view.missing_since) {
                        (None, None) if part.live => {
                            let entry = lost.entry((*winner, part.source));
                            entry.or_insert_with(|| (0, key.id.clone())).0 += 1;
                        }
                        (Some(_), None) => (*winner, *first) = (part.source, view),
                        _ => {}
                    }
                }
            }
        }
    }
    let mut devices: BTreeMap<DeviceKey, DeviceView> = merged
        .into_iter()
        .map(|(key, (_, view))| (key, view))
        .collect();
    for (key, missing_since) in &unseen.0 {
        devices.entry(key.clone()).or_insert(DeviceView {
            device: None,
            missing_since: *missing_since,
        });
    }
    let lost = lost
        .into_iter()
        .map(|((winner, loser), (devices, example))| Lost {
            winner: winner.to_owned(),
            loser: loser.to_owned(),
            devices,
            example,
        })
        .collect();
    (devices, lost)
}

/// A source whose devices another one has, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The source whose devices count.
    pub winner: String,
    /// The source whose devices do not.
    pub loser: String,
    /// How many.
    pub devices: usize,
    /// The id of one.
    pub example: String,
}

#[cfg(test)]
mod tests;
