//! The last allocations that were refused.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::report::RefusalView;

/// How long a refusal is shown, unless the resource is allocated before.
const SHOWN: Duration = Duration::from_mins(10);

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
