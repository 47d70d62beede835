//! Wakes of a session, and the events for the next call. All bounded.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leafhost_net::{Datagram, Group};
use leafhost_udev::Rule;
use memchr::memmem::Finder;

use super::CallReason;

/// Maximum number of events passed to a call.
const MAX_TOLD: usize = 64;
/// Maximum number of datagrams per source among them.
const MAX_OF_SOURCE: usize = 8;

/// Conditions under which a session wants to be called again.
#[derive(Debug, Clone, Default)]
pub(crate) struct WakeConditions {
    /// Time after which it wakes.
    pub(crate) after: Option<Duration>,
    /// Rules of device events that wake it.
    pub(crate) udev: Vec<Rule>,
    /// True if changes of the granted interfaces wake it.
    pub(crate) network: bool,
    /// Filters of datagrams that wake it.
    pub(crate) multicast: Vec<Filter>,
    /// Reasons why other wakes cannot be served.
    pub(crate) refused: Vec<String>,
}

/// Filter of datagrams that wake a session.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    group: Group,
    spelled: Arc<str>,
    contains: Vec<Finder<'static>>,
}

impl Filter {
    /// Creates a filter of datagrams of `group` that contain all of these strings; `spelled` is the handler's spelling of the group.
    pub(crate) fn new(group: Group, spelled: &str, contains: &[Vec<u8>]) -> Self {
        let finder = |bytes: &Vec<u8>| Finder::new(bytes).into_owned();
        Self {
            group,
            spelled: spelled.into(),
            contains: contains.iter().map(finder).collect(),
        }
    }

    /// Returns the number of strings to search for.
    pub(crate) fn strings(&self) -> usize {
        self.contains.len()
    }

    /// Returns the handler's spelling of the group if the datagram matches.
    pub(super) fn fits(&self, datagram: &Datagram) -> Option<Arc<str>> {
        let has = |finder: &Finder<'_>| finder.find(&datagram.payload).is_some();
        (self.group == datagram.group && self.contains.iter().all(has))
            .then(|| self.spelled.clone())
    }
}

/// Events for the next call.
#[derive(Debug, Default)]
pub(super) struct Pending {
    events: Vec<CallReason>,
    lost: bool,
    /// Number of events from a failed call: by themselves they are not a reason for another call.
    told_before: usize,
    /// True if that call was also informed of lost events.
    lost_before: bool,
}

impl Pending {
    pub(super) fn events(&self) -> &[CallReason] {
        &self.events
    }

    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// Returns true if there is a reason for a call.
    pub(super) fn is_reason(&self) -> bool {
        (self.lost && !self.lost_before) || self.events.len() > self.told_before
    }

    /// Returns true if more events came than are passed to a call.
    pub(super) fn is_over(&self) -> bool {
        self.lost && !self.lost_before && self.events.len() >= MAX_TOLD
    }

    /// Returns true if others on the network can have caused the call.
    pub(super) fn is_caused_by_network(&self) -> bool {
        let mut news = self.events.iter().skip(self.told_before);
        news.any(|why| matches!(why, CallReason::Network | CallReason::Multicast(..)))
            || (self.lost && !self.lost_before)
    }

    pub(super) fn push(&mut self, why: CallReason) {
        let known = |event: &CallReason| *event == CallReason::Network;
        if why == CallReason::Network && self.events.iter().skip(self.told_before).any(known) {
            return;
        }
        if self.events.len() < MAX_TOLD && self.of_source(&why) < MAX_OF_SOURCE {
            self.events.push(why);
        } else {
            self.lose();
        }
    }

    /// Returns the number of pending datagrams from the source of this one.
    fn of_source(&self, why: &CallReason) -> usize {
        let source = |why: &CallReason| -> Option<IpAddr> {
            match why {
                CallReason::Multicast(_, datagram) => Some(datagram.source.ip()),
                _ => None,
            }
        };
        let Some(asked) = source(why) else {
            return 0;
        };
        let same = |why: &&CallReason| source(why) == Some(asked);
        self.events.iter().filter(same).count()
    }

    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.lost_before = false;
    }

    /// Restores the events that a failed call received, without the expired timer.
    pub(super) fn requeue(&mut self, delivered: Self) {
        *self = delivered;
        self.events.retain(|why| *why != CallReason::Timer);
        self.told_before = self.events.len();
        self.lost_before = self.lost;
    }
}
