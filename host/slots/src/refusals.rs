//! The last refused allocations.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::report::RefusalView;

/// Time for which a refusal is shown, unless the resource is allocated before.
const SHOWN: Duration = Duration::from_mins(10);

/// Last refusals by resource, each with the time until which it is shown.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<String, (RefusalView, Instant)>);

impl Refusals {
    /// Adds a refused allocation.
    pub fn add(&mut self, resource: &str, reason: String, at: Timestamp) {
        let count = self.0.get(resource).map_or(0, |(before, _)| before.count);
        let view = RefusalView {
            reason,
            count: count.saturating_add(1),
            last: at,
        };
        let until = Instant::now() + SHOWN;
        self.0.insert(resource.to_owned(), (view, until));
    }

    /// Removes the refusals of a resource after a granted allocation.
    pub fn granted(&mut self, resource: &str) {
        self.0.remove(resource);
    }

    /// Removes refusals that have expired or whose resource is not offered.
    pub fn keep(&mut self, is_offered: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.0
            .retain(|resource, (_, until)| *until > now && is_offered(resource));
    }

    /// Returns the next time at which a refusal expires.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, until)| *until).min()
    }

    /// Returns the refusals that are shown.
    pub fn views(&self) -> BTreeMap<String, RefusalView> {
        let refusals = self.0.iter();
        refusals
            .map(|(resource, (view, _))| (resource.clone(), view.clone()))
            .collect()
    }
}
