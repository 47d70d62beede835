//! What keeps allocations from being granted: a store that takes no claims, and the last refusals.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, InstanceSet, Written};
use leafhost_core::text::chain;
use tokio::time::Instant;

use super::SlotTask;
use super::report::RefusalView;
use super::writes::Purpose;
use crate::backoff;

/// The longest time between two attempts while nothing can be written.
const LONGEST: Duration = Duration::from_secs(10);
/// How long a refusal is shown, unless the resource is allocated before.
const SHOWN: Duration = Duration::from_mins(10);

/// The store takes no writes.
#[derive(Debug, Clone)]
pub struct Unwritable {
    /// What cannot be written, why, and the remedy.
    pub problem: String,
    /// So many writes in a row have failed.
    failures: u32,
    /// When it is tried again.
    pub next: Instant,
    /// What could not be written.
    key: InstanceKey,
}

/// The last refusals by resource.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<String, Refused>);

#[derive(Debug)]
struct Refused {
    view: RefusalView,
    until: Instant,
}

impl Refusals {
    /// An allocation was refused.
    pub fn add(&mut self, resource: &str, reason: String, at: Timestamp) {
        let now = Instant::now();
        let count = self.0.get(resource).map_or(0, |before| before.view.count);
        let view = RefusalView {
            reason,
            count: count.saturating_add(1),
            last: at,
        };
        let until = now + SHOWN;
        self.0.insert(resource.to_owned(), Refused { view, until });
    }

    /// An allocation was granted.
    pub fn granted(&mut self, resource: &str) {
        self.0.remove(resource);
    }

    /// Forgets what is over and what concerns no resource of `offered`.
    pub fn keep(&mut self, is_offered: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.0
            .retain(|resource, refused| refused.until > now && is_offered(resource));
    }

    /// When the next is over.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|refused| refused.until).min()
    }

    /// What is shown.
    pub fn views(&self) -> BTreeMap<String, RefusalView> {
        let refusals = self.0.iter();
        refusals
            .map(|(resource, refused)| (resource.clone(), refused.view.clone()))
            .collect()
    }
}

impl SlotTask {
    /// Learns from the writes of one batch whether slots can be claimed. One that failed tells more than all that did not:
    /// a full disk still takes what fits. A lost race tells that the store looked at what it has.
    pub(super) fn learn(&mut self, results: &[Written]) {
        let errors = results.iter().filter_map(|result| result.as_ref().err());
        let Some(error) = errors.into_iter().find(|error| !error.is_outdated()) else {
            if results.iter().any(Result::is_ok) && self.unwritable.take().is_some() {
                tracing::info!("slots can be claimed again");
                self.is_due = true;
            }
            return;
        };
        let before = self.unwritable.as_ref();
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        let problem = chain(error);
        if before.is_none() {
            tracing::warn!(problem, "slots cannot be claimed, so none is offered");
        }
        self.unwritable = Some(Unwritable {
            problem,
            failures,
            next: Instant::now() + backoff::wait(failures).min(LONGEST),
            key: error.key().clone(),
        });
    }

    /// Tries whether the store can be written again, by what could not be.
    pub(super) fn try_to_write(&mut self) {
        let Some(unwritable) = &mut self.unwritable else {
            return;
        };
        // Not again before this attempt has ended.
        unwritable.next = Instant::now() + LONGEST;
        let instances = self.instances.borrow().clone();
        match trial(&instances, &unwritable.key) {
            Some(change) => self.write(Purpose::Trial, vec![change]),
            // There is nothing to claim.
            None => self.unwritable = None,
        }
    }

    /// The attempt has ended.
    pub(super) fn tried(&mut self) {
        if let Some(unwritable) = &mut self.unwritable {
            // It was changed meanwhile; also, the next one is not tried at once.
            let soon = Instant::now() + Duration::from_secs(1);
            unwritable.next = unwritable.next.max(soon);
        }
    }
}

/// A write of what could not be written, or of anything.
fn trial(instances: &InstanceSet, key: &InstanceKey) -> Option<Change> {
    let found = instances.instances.get_key_value(key);
    let (key, instance) = found.or_else(|| instances.instances.first_key_value())?;
    Some(Change::Update {
        key: key.clone(),
        uid: instance.metadata.uid.clone(),
        edits: Vec::new(),
    })
}
