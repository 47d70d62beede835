//! The devices of a session and of a Configuration: what answers say, folded with what was known before.
//!
//! Pure: time is given. Withdrawal is by answers and grace alone; errors and faults never come here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::device::{Device, DeviceKey};
use leafhost_core::left_out;
use leafhost_core::session::{Devices, Discovery};
use leafhost_core::text::escape;
use leafhost_core::timeouts;

use crate::clock::later;

mod merge;
mod unrest;

pub use merge::{DeviceView, Lost, Part, Standing, merge};
use unrest::{Allowance, Unrest};

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
    /// As last passed on.
    pub device: Arc<Device>,
    /// Since when complete answers lack it.
    pub missing_since: Option<Timestamp>,
    /// As last reported, where that has to wait.
    newest: Option<Arc<Device>>,
    changes: Allowance,
    /// How often it came back after it had been withdrawn, lately.
    returns: u32,
}

impl Tracked {
    fn new(device: Arc<Device>, returns: u32) -> Self {
        Self {
            device,
            missing_since: None,
            newest: None,
            changes: Allowance::default(),
            returns,
        }
    }

    /// When it goes, if it is missing.
    fn end(&self, grace: Grace) -> Option<Timestamp> {
        let since = self.missing_since?;
        let least = later(since, unrest::least_grace(self.returns));
        Some(grace.end(self.device.shared, since).max(least))
    }

    /// Passes on what waits, if it may; says whether something was.
    fn renew(&mut self, now: Timestamp) -> bool {
        if self.newest.is_none() || !self.changes.take(now) {
            return false;
        }
        if let Some(newest) = self.newest.take() {
            self.device = newest;
        }
        true
    }
}

/// The devices of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionDevices {
    tracked: BTreeMap<DeviceKey, Tracked>,
    /// New devices that are not passed on while the session is restless.
    waiting: BTreeMap<DeviceKey, Arc<Device>>,
    unrest: Unrest,
    /// How many devices it may have at a time, if that is bounded.
    most: Option<usize>,
    /// How many devices of the last answer were more.
    over: usize,
    /// The handler has answered since it was opened as `first`.
    answered: bool,
    /// A complete answer has come: what it does not have is not there.
    settled: bool,
    /// Ids that answers named as departed and have not named as present since; they count for devices of earlier runs, too.
    departed: BTreeSet<String>,
    /// The ids of devices that were in the last answer and were not taken.
    left_out: left_out::Ids,
}

impl SessionDevices {
    /// The handler is new to the session: it cannot mean "the same as last time" yet.
    pub fn reopen(&mut self) {
        self.answered = false;
    }

    /// The handler, its grants or the Configuration are others: what was restless need not be so any more. From now on there are at most
    /// `most` devices.
    pub fn calm(&mut self, most: usize) {
        self.most = Some(most);
        self.unrest = Unrest::default();
        self.waiting.clear();
        for tracked in self.tracked.values_mut() {
            (tracked.changes, tracked.returns) = (Allowance::default(), 0);
        }
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
        }
        let (reported, complete) = match devices {
            Devices::Complete(devices) => (devices, true),
            Devices::Partial(devices) => (devices, false),
            Devices::Unchanged => (Vec::new(), !self.answered),
        };
        self.answered = true;
        let mut present = BTreeSet::new();
        let mut news = Vec::new();
        for device in reported {
            let key = device.key();
            present.insert(key.clone());
            match self.tracked.get_mut(&key) {
                Some(held) => differs |= held.report(device, now),
                None => news.push((key, Arc::new(device))),
            }
        }
        if complete {
            differs |= !std::mem::replace(&mut self.settled, true);
            self.waiting.retain(|key, _| present.contains(key));
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
        differs |= self.depart(now);
        differs |= self.admit(news, now);
        self.expire(grace, now) || differs
    }

    /// Lets go what the answer named as departed; says whether there was something.
    fn depart(&mut self, now: Timestamp) -> bool {
        let departed = &self.departed;
        self.waiting.retain(|key, _| !departed.contains(&key.id));
        let mut differs = false;
        let (held, unrest) = (self.unrest.is_restless(), &mut self.unrest);
        self.tracked.retain(|key, tracked| {
            if !departed.contains(&key.id) {
                return true;
            }
            if held || tracked.returns > unrest::RETURNS {
                differs |= tracked.miss(now);
                return true;
            }
            differs = true;
            unrest.goes(key, tracked.returns);
            false
        });
        differs
    }

    /// Takes in devices that are not tracked: now, or once the session is calm. Says whether there was one.
    fn admit(&mut self, news: Vec<(DeviceKey, Arc<Device>)>, now: Timestamp) -> bool {
        let here = |tracked: &&Tracked| tracked.missing_since.is_none();
        let mut present = self.tracked.values().filter(here).count();
        let unknown =
            |(key, _): &&(DeviceKey, _)| !self.waiting.contains_key(key) && !self.unrest.knows(key);
        let count = news.iter().filter(unknown).count();
        let restless = self
            .unrest
            .look(present + news.len(), self.tracked.len(), count, now);
        if self.unrest.begins_anew() {
            for tracked in self.tracked.values_mut() {
                tracked.returns = 0;
            }
        }
        let most = self.most.unwrap_or(usize::MAX);
        let mut differs = false;
        self.over = 0;
        for (key, device) in news {
            let returns = self.unrest.returns(&key);
            if present >= most {
                self.over += 1;
            } else if restless && returns.is_none() {
                if self.waiting.len() < most {
                    self.waiting.insert(key, device);
                }
            } else {
                let tracked = Tracked::new(device, returns.map_or(0, |returns| returns + 1));
                self.tracked.insert(key, tracked);
                present += 1;
                differs = true;
            }
        }
        differs
    }

    /// Lets go what was missing for too long, and passes on what has waited long enough; says whether there was something.
    pub fn expire(&mut self, grace: Grace, now: Timestamp) -> bool {
        let mut differs = false;
        if self.unrest.settles(now) {
            differs = !self.waiting.is_empty();
            for (key, device) in std::mem::take(&mut self.waiting) {
                self.tracked.insert(key, Tracked::new(device, 0));
            }
        }
        for tracked in self.tracked.values_mut() {
            differs |= tracked.renew(now);
        }
        if self.unrest.is_restless() {
            return differs;
        }
        let (before, unrest) = (self.tracked.len(), &mut self.unrest);
        self.tracked.retain(|key, tracked| {
            let stays = tracked.end(grace).is_none_or(|end| end > now);
            if !stays {
                unrest.goes(key, tracked.returns);
            }
            stays
        });
        self.tracked.len() != before || differs
    }

    /// When [`Self::expire`] has something to do next.
    pub fn deadline(&self, grace: Grace) -> Option<Timestamp> {
        let calm = self.unrest.end();
        let tracked = self.tracked.values();
        let changes = tracked
            .clone()
            .filter(|tracked| tracked.newest.is_some())
            .map(|tracked| tracked.changes.next());
        let ends = tracked.filter_map(|tracked| tracked.end(grace));
        let ends = ends.filter(|_| calm.is_none());
        changes.chain(ends).chain(calm).min()
    }

    /// What is not passed on as it is reported, in words for the operator.
    pub fn held_back(&self) -> Vec<String> {
        let mut words = Vec::new();
        let example = |find: &dyn Fn(&Tracked) -> bool| {
            let mut found = self.tracked.iter().filter(|(_, tracked)| find(tracked));
            let (key, _) = found.next()?;
            Some((found.count() + 1, clip(&key.id)))
        };
        if self.unrest.is_restless() {
            let missing = |tracked: &Tracked| tracked.missing_since.is_some();
            let missing = self.tracked.values().filter(|one| missing(one)).count();
            words.push(format!(
                "the handler makes up new ids again and again: {} new devices wait and {missing} missing ones stay until no new id has come for {}; \
                 make the ids stable, or change the details",
                self.waiting.len(),
                unrest::shown(self.unrest.calm()),
            ));
        }
        if self.over > 0 {
            words.push(format!(
                "the handler has found {} devices more than the {} it may have; they are not used; `limits.devices` in the grants raises that",
                self.over,
                self.most.unwrap_or(usize::MAX)
            ));
        }
        if let Some((count, id)) = example(&|tracked| tracked.newest.is_some()) {
            let who = match count {
                1 => format!("device {id} changes"),
                _ => format!("{count} devices (such as {id}) change"),
            };
            let spacing = unrest::shown(timeouts::CHANGE_SPACING);
            words.push(format!(
                "{who} at nearly every call; what changes is passed on once in {spacing}"
            ));
        }
        if let Some((count, id)) = example(&|tracked| tracked.returns > unrest::RETURNS) {
            let grace = unrest::shown(timeouts::RETURN_GRACE);
            words.push(match count {
                1 => format!(
                    "device {id} comes and goes; it is withdrawn only after it was missing for {grace}"
                ),
                _ => format!(
                    "{count} devices (such as {id}) come and go; they are withdrawn only after they were missing for {grace}"
                ),
            });
        }
        words
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

impl Tracked {
    /// The device is there; says whether it is news.
    fn report(&mut self, device: Device, now: Timestamp) -> bool {
        let returned = self.missing_since.take().is_some();
        if *self.device == device {
            self.newest = None;
            return returned;
        }
        self.newest = Some(Arc::new(device));
        self.renew(now) || returned
    }

    /// It is not there; says whether it was.
    fn miss(&mut self, now: Timestamp) -> bool {
        self.missing_since
            .replace(self.missing_since.unwrap_or(now))
            .is_none()
    }
}

/// An id, quoted, as much as fits into a sentence.
fn clip(id: &str) -> String {
    let shown: String = id.chars().take(64).collect();
    escape(&format!("{shown:?}")).into_owned()
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
    pub fn meet(
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
