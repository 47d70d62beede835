//! What a session waits for, and what the next call is told of it. Everything bounded.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leafhost_net::{Datagram, Group};
use leafhost_udev::Rule;
use memchr::memmem::Finder;

use super::CallReason;

/// How many events a call is told.
const MAX_TOLD: usize = 64;
/// How many datagrams of one source are among them.
const MAX_OF_SOURCE: usize = 8;

/// When a session wants to be called again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wakes {
    /// After that time.
    pub(crate) after: Option<Duration>,
    /// When a device event fits one of these.
    pub(crate) udev: Vec<Rule>,
    /// When the granted interfaces change.
    pub(crate) network: bool,
    /// When a datagram fits one of these.
    pub(crate) multicast: Vec<Filter>,
    /// Wakes that cannot be served, and why.
    pub(crate) refused: Vec<String>,
}

/// Which datagrams wake.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    group: Group,
    spelled: Arc<str>,
    contains: Vec<Finder<'static>>,
}

impl Filter {
    /// Those of `group`, which the handler spells so, that have all of these strings.
    pub(crate) fn new(group: Group, spelled: &str, contains: &[Vec<u8>]) -> Self {
        let finder = |bytes: &Vec<u8>| Finder::new(bytes).into_owned();
        Self {
            group,
            spelled: spelled.into(),
            contains: contains.iter().map(finder).collect(),
        }
    }

    /// How many strings are looked for.
    pub(crate) fn strings(&self) -> usize {
        self.contains.len()
    }

    /// How the handler spells the group, if the datagram wakes it.
    pub(super) fn fits(&self, datagram: &Datagram) -> Option<Arc<str>> {
        let has = |finder: &Finder<'_>| finder.find(&datagram.payload).is_some();
        (self.group == datagram.group && self.contains.iter().all(has))
            .then(|| self.spelled.clone())
    }
}

/// What the next call is told.
#[derive(Debug, Default)]
pub(super) struct Pending {
    events: Vec<CallReason>,
    lost: bool,
    /// How many of the events are those of a call that failed: no reason for another by themselves.
    told_before: usize,
    /// Whether that call was told of lost events, too.
    lost_before: bool,
}

impl Pending {
    pub(super) fn events(&self) -> &[CallReason] {
        &self.events
    }

    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// Whether there is something to make a call for.
    pub(super) fn is_reason(&self) -> bool {
        (self.lost && !self.lost_before) || self.events.len() > self.told_before
    }

    /// Whether more came than a call is told.
    pub(super) fn is_over(&self) -> bool {
        self.lost && !self.lost_before && self.events.len() >= MAX_TOLD
    }

    /// Whether others on the network can have this call made.
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

    /// How many datagrams are from where this one is.
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

    /// Puts back what a call was told that failed. Its timer has come and gone.
    pub(super) fn tell_again(&mut self, told: Self) {
        *self = told;
        self.events.retain(|why| *why != CallReason::Timer);
        self.told_before = self.events.len();
        self.lost_before = self.lost;
    }
}
