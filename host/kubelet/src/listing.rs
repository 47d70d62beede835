//! Computes the list of one resource from the wanted devices and the ids that may be in flight.
//!
//! The kubelet crashes if an id leaves the list between its sending of Allocate and its receipt of our answer, and the list and the answer
//! travel on separate streams. So an id leaves only when no Allocate of it can be in flight any more. Does no I/O and reads no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Device, Devices, Health};

/// List that may be sent: it has at least one id. The ids are sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List(Arc<Devices>);

impl List {
    /// Returns the list; `None` if it is empty, which ends the stream.
    pub fn new(devices: Arc<Devices>) -> Option<Self> {
        (!devices.is_empty()).then_some(Self(devices))
    }

    /// Returns the devices by id.
    pub fn devices(&self) -> &Devices {
        &self.0
    }
}

/// First id that an Allocate names and that is not listed, cut to 80 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent does not offer {0:?}")]
pub struct NotListed(String);

/// State of one resource: wanted devices, and ids that must stay.
#[derive(Debug, Clone)]
pub struct Listing {
    linger: Duration,
    wanted: Arc<Devices>,
    /// Ids of which an Allocate may be in flight; wanted Healthy ids need no trace.
    traces: BTreeMap<String, Trace>,
}

/// Reasons why an id may not leave.
#[derive(Debug, Clone, Default)]
struct Trace {
    numa: Option<i64>,
    /// Time when it was last listed Healthy, if that has ended, or of the last answer, whichever is later.
    last: Option<Instant>,
    /// Number of unanswered Allocates that name it.
    flights: usize,
}

impl Trace {
    /// Returns the time until which the id stays; `None` while that is unknown.
    fn until(&self, linger: Duration) -> Option<Instant> {
        if self.flights > 0 {
            return None;
        }
        self.last.map(|last| last + linger)
    }

    fn is_over(&self, linger: Duration, now: Instant) -> bool {
        self.flights == 0 && self.until(linger).is_none_or(|until| until <= now)
    }
}

impl Listing {
    /// Creates an empty listing. `linger` is the longest time that an Allocate, its answer or a list may be in flight.
    pub fn new(linger: Duration) -> Self {
        Self {
            linger,
            wanted: Arc::default(),
            traces: BTreeMap::new(),
        }
    }

    /// Sets the wanted devices from `now` on. An empty map withdraws the resource.
    pub fn want(&mut self, devices: Arc<Devices>, now: Instant) {
        if self.wanted == devices {
            return;
        }
        self.forget(now);
        for (id, before) in self.wanted.iter() {
            let after = devices.get(id);
            let is_healthy = after.is_some_and(|device| device.health == Health::Healthy);
            if before.health == Health::Healthy && !is_healthy {
                trace(&mut self.traces, id, before.numa).last = Some(now);
            }
            if let Some(trace) = self.traces.get_mut(id) {
                trace.numa = after.map_or(before.numa, |device| device.numa);
            }
        }
        self.wanted = devices;
    }

    /// Returns the current list. `None` ends the stream: the resource is withdrawn and every Allocate is answered.
    pub fn list(&mut self, now: Instant) -> Option<List> {
        self.forget(now);
        if self.has_ended() {
            return None;
        }
        let mut lingering = self
            .traces
            .iter()
            .filter(|(id, _)| !self.wanted.contains_key(*id))
            .peekable();
        if lingering.peek().is_none() {
            return List::new(Arc::clone(&self.wanted));
        }
        let lingering = lingering.map(|(id, trace)| {
            let device = Device {
                health: Health::Unhealthy,
                numa: trace.numa,
            };
            (id.clone(), device)
        });
        let mut devices = Devices::clone(&self.wanted);
        devices.extend(lingering);
        List::new(Arc::new(devices))
    }

    /// Returns the time at which the list next changes by itself.
    pub fn next(&self) -> Option<Instant> {
        self.untils()
            .filter(|(id, _)| !self.wanted.contains_key(*id))
            .map(|(_, until)| until)
            .min()
    }

    /// Returns the time at which all traces have expired; `None` while devices are wanted or an Allocate is unanswered.
    pub fn over(&self, now: Instant) -> Option<Instant> {
        self.has_ended()
            .then(|| self.untils().map(|(_, until)| until).max().unwrap_or(now))
    }

    /// Records an Allocate of these ids: they stay until [`Listing::answered`] and the linger time after it.
    pub fn asked(&mut self, ids: &BTreeSet<String>, now: Instant) -> Result<(), NotListed> {
        self.forget(now);
        let ended = self.has_ended();
        let is_listed =
            |id: &String| !ended && (self.wanted.contains_key(id) || self.traces.contains_key(id));
        if let Some(unknown) = ids.iter().find(|id| !is_listed(id)) {
            return Err(NotListed(unknown.chars().take(80).collect()));
        }
        for id in ids {
            let numa = self.wanted.get(id).and_then(|device| device.numa);
            let trace = trace(&mut self.traces, id, numa);
            trace.flights = trace.flights.saturating_add(1);
        }
        Ok(())
    }

    /// Records the answer to an Allocate that [`Listing::asked`] accepted.
    pub fn answered(&mut self, ids: &BTreeSet<String>, now: Instant) {
        for id in ids {
            if let Some(trace) = self.traces.get_mut(id) {
                trace.flights = trace.flights.saturating_sub(1);
                trace.last = Some(now);
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.wanted.is_empty() && self.traces.values().all(|trace| trace.flights == 0)
    }

    fn untils(&self) -> impl Iterator<Item = (&String, Instant)> {
        let linger = self.linger;
        self.traces
            .iter()
            .filter_map(move |(id, trace)| Some((id, trace.until(linger)?)))
    }

    fn forget(&mut self, now: Instant) {
        let linger = self.linger;
        self.traces.retain(|_, trace| !trace.is_over(linger, now));
    }
}

fn trace<'a>(
    traces: &'a mut BTreeMap<String, Trace>,
    id: &str,
    numa: Option<i64>,
) -> &'a mut Trace {
    traces.entry(id.to_owned()).or_insert(Trace {
        numa,
        ..Trace::default()
    })
}

#[cfg(test)]
mod tests;
