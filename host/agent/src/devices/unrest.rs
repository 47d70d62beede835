//! Unrest: what a handler that never answers the same twice may cause to be written.
//!
//! Instances, sockets and CDI specs are made and removed as devices come and go, and the kubelet forgets no name. So a session that has many
//! more ids than devices is restless: until it has been calm for a while no new id of it is passed on and none is withdrawn. A single
//! device that comes and goes, or changes again and again, waits for itself. Pure: time is given.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leafhost_core::device::DeviceKey;
use leafhost_core::timeouts::{CALM_FIRST, CALM_LAST, CHANGE_SPACING, RETURN_GRACE, UNREST_WINDOW};

use crate::clock::later;

/// A session may have had so many times as many ids in [`UNREST_WINDOW`] as it had devices at one time…
const IDS_PER_DEVICE: usize = 2;
/// …and so many more: a few devices may be plugged in one after the other.
const IDS_MORE: usize = 32;
/// A device may come back so often in [`UNREST_WINDOW`] before it is withdrawn later.
pub(super) const RETURNS: u32 = 10;
/// A device may change so often at once, and then once in [`CHANGE_SPACING`].
const CHANGES: u32 = 10;

/// How restless a session is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unrest {
    /// When the time that is looked at began.
    since: Option<Timestamp>,
    /// The ids that were withdrawn since then, and how often they had come back.
    gone: BTreeMap<DeviceKey, u32>,
    /// The most devices that were there at one time since then.
    most: usize,
    /// When a new id came last, while it is restless.
    last: Option<Timestamp>,
    /// How often it became restless, none of which was long ago.
    times: u32,
    /// It has just begun anew.
    anew: bool,
}

impl Unrest {
    /// Takes in that so many devices are there, so many are known and so many ids were never seen; says whether it is restless.
    pub(super) fn look(
        &mut self,
        present: usize,
        tracked: usize,
        unknown: usize,
        now: Timestamp,
    ) -> bool {
        let over = |since: Timestamp| later(since, UNREST_WINDOW) <= now;
        if self.since.is_none_or(over) {
            if self.since.is_some() && self.last.is_none() {
                self.times = self.times.saturating_sub(1);
            }
            (self.since, self.most, self.anew) = (Some(now), 0, true);
            self.gone.clear();
        }
        self.most = self.most.max(present);
        let ids = tracked + self.gone.len() + unknown;
        let many = ids > IDS_PER_DEVICE * self.most + IDS_MORE;
        if unknown > 0 && (many || self.is_restless()) {
            if !self.is_restless() {
                self.times = self.times.saturating_add(1);
            }
            self.last = Some(now);
        }
        self.is_restless()
    }

    /// Whether the time that is looked at has just begun anew; tells it once.
    pub(super) fn begins_anew(&mut self) -> bool {
        std::mem::take(&mut self.anew)
    }

    /// Whether nothing new is passed on.
    pub(super) fn is_restless(&self) -> bool {
        self.last.is_some()
    }

    /// Whether that id was withdrawn lately.
    pub(super) fn knows(&self, key: &DeviceKey) -> bool {
        self.gone.contains_key(key)
    }

    /// How often a device that is there again had come back before; nothing for one that was not here lately.
    pub(super) fn returns(&mut self, key: &DeviceKey) -> Option<u32> {
        self.gone.remove(key)
    }

    /// A device is withdrawn.
    pub(super) fn goes(&mut self, key: &DeviceKey, returns: u32) {
        self.gone.insert(key.clone(), returns);
    }

    /// How long no new id may come for it to be calm: longer each time.
    pub(super) fn calm(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.times.saturating_sub(1));
        CALM_FIRST.saturating_mul(doubled).min(CALM_LAST)
    }

    /// When it is calm if no new id comes.
    pub(super) fn end(&self) -> Option<Timestamp> {
        Some(later(self.last?, self.calm()))
    }

    /// Whether it has become calm right now.
    pub(super) fn settles(&mut self, now: Timestamp) -> bool {
        let settles = self.end().is_some_and(|end| end <= now);
        if settles {
            self.last = None;
        }
        settles
    }
}

/// How long a device must be missing that came back so often, whatever its grace.
pub(super) fn least_grace(returns: u32) -> Duration {
    if returns > RETURNS {
        RETURN_GRACE
    } else {
        Duration::ZERO
    }
}

/// For people.
pub(super) fn shown(time: Duration) -> String {
    match time.as_secs() / 60 {
        1 => "a minute".to_owned(),
        minutes => format!("{minutes} minutes"),
    }
}

/// How often something may change: a few times at once, then once in a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Allowance {
    /// What was used and has not come back.
    used: u32,
    /// From when the next one comes back.
    since: Timestamp,
}

impl Allowance {
    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Timestamp) -> bool {
        let passed = now.duration_since(self.since);
        let spacing = SignedDuration::try_from(CHANGE_SPACING).unwrap_or(SignedDuration::MAX);
        let back = u32::try_from(passed.as_secs() / spacing.as_secs().max(1)).unwrap_or_default();
        if back >= self.used {
            (self.used, self.since) = (0, now);
        } else {
            self.used -= back;
            self.since = later(self.since, CHANGE_SPACING.saturating_mul(back));
        }
        let may = self.used < CHANGES;
        if may {
            self.used += 1;
        }
        may
    }

    /// When there is one, if there is none.
    pub(super) fn next(&self) -> Timestamp {
        later(self.since, CHANGE_SPACING)
    }
}

#[cfg(test)]
mod tests;
