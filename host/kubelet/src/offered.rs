//! State of one resource that its tasks share: wanted devices, current list, and report.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Times;
use crate::listing::{List, Listing, NotListed};
use crate::{Devices, ResourceName, ResourceReport, State};

pub(crate) struct Offered {
    pub name: ResourceName,
    listing: Mutex<Listing>,
    lists: watch::Sender<Option<List>>,
    /// Notified when the time of the list's next change may differ.
    retimed: Notify,
    report: Mutex<ResourceReport>,
    reports: Arc<Notify>,
}

impl Offered {
    pub fn new(name: ResourceName, socket: String, times: &Times, reports: Arc<Notify>) -> Self {
        let report = ResourceReport {
            socket,
            state: State::Waiting,
            registrations: 0,
            problem: None,
        };
        Self {
            name,
            listing: Mutex::new(Listing::new(times.linger)),
            lists: watch::Sender::new(None),
            retimed: Notify::new(),
            report: Mutex::new(report),
            reports,
        }
    }

    /// Returns the lists to send; `None` ends the stream.
    pub fn lists(&self) -> watch::Receiver<Option<List>> {
        self.lists.subscribe()
    }

    pub fn want(&self, devices: Arc<Devices>) {
        self.change(|listing, now| listing.want(devices, now));
    }

    /// Records an Allocate. The ids stay listed until the returned guard is dropped, and for the linger time after that.
    pub fn asked(self: &Arc<Self>, ids: BTreeSet<String>) -> Result<InFlight, NotListed> {
        self.change(|listing, now| listing.asked(&ids, now))?;
        Ok(InFlight {
            offered: Arc::clone(self),
            ids,
        })
    }

    /// Updates the list as time passes, until it has ended.
    pub async fn keep_time(&self) {
        loop {
            let next = self.change(|listing, _| listing.next());
            if self.has_ended() {
                return;
            }
            tokio::select! {
                () = until(next) => {}
                () = self.retimed.notified() => {}
            }
        }
    }

    pub fn has_ended(&self) -> bool {
        self.lists.borrow().is_none()
    }

    /// Returns the time at which the resource may be forgotten.
    pub fn over(&self, now: Instant) -> Option<Instant> {
        locked(&self.listing).over(now)
    }

    /// Sends the unchanged list again.
    pub fn resend(&self) {
        self.lists.send_modify(|_| {});
    }

    pub fn listed(&self) -> usize {
        let list = self.lists.borrow();
        list.as_ref().map_or(0, |list| list.devices().len())
    }

    pub fn report(&self) -> ResourceReport {
        locked(&self.report).clone()
    }

    /// Returns true if this is the name of the socket's file.
    pub fn has_socket(&self, name: &str) -> bool {
        locked(&self.report).socket == name
    }

    /// Changes the report, and has it published if it differs.
    pub fn update_report(&self, change: impl FnOnce(&mut ResourceReport)) {
        let mut report = locked(&self.report);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.reports.notify_one();
        }
    }

    /// Changes the listing and publishes its list before the next change, so that lists are sent in order.
    fn change<T>(&self, change: impl FnOnce(&mut Listing, Instant) -> T) -> T {
        let mut listing = locked(&self.listing);
        let now = Instant::now();
        let next = listing.next();
        let result = change(&mut listing, now);
        let list = listing.list(now);
        if listing.next() != next || list.is_none() {
            self.retimed.notify_one();
        }
        publish(&self.lists, list);
        result
    }
}

/// Guard of an Allocate in flight, which ends when the guard is dropped.
pub(crate) struct InFlight {
    offered: Arc<Offered>,
    ids: BTreeSet<String>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.offered
            .change(|listing, now| listing.answered(&self.ids, now));
    }
}

/// Sleeps until `time`; waits forever if it is `None`.
pub(crate) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Sends a value if it differs from the last one.
pub(crate) fn publish<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|sent| {
        let differs = *sent != value;
        *sent = value;
        differs
    });
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
