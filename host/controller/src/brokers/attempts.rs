//! What was written a moment ago and is not seen yet, and what failed and is not tried again at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::brokers::{Change, Object, ObjectKey, WriteError};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::timeouts::{BACKOFF_FIRST, BACKOFF_LAST};
use tokio::time::Instant;

/// How long a write may take to be seen.
const SEEN: Duration = Duration::from_secs(10);

/// The longest wait while the API server does not answer.
const AGAIN: Duration = Duration::from_secs(10);

/// The last write of each object.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<ObjectKey, Attempt>);

#[derive(Debug)]
struct Attempt {
    configuration: ConfigurationKey,
    what: What,
    /// The object before.
    before: Option<Arc<Object>>,
    /// When it is to be written again.
    again: Instant,
    failures: u32,
    error: Option<WriteError>,
}

/// A change without what it writes.
#[derive(Debug, PartialEq, Eq)]
enum What {
    Create(String),
    Replace(String),
    Delete(String),
}

impl What {
    fn of(change: &Change) -> Self {
        match change {
            Change::Create { made_of, .. } => Self::Create(made_of.clone()),
            Change::Replace { made_of, .. } => Self::Replace(made_of.clone()),
            Change::Delete { uid, .. } => Self::Delete(uid.clone()),
        }
    }
}

impl Attempts {
    /// When the change is to be written, if not at once. `there` is the object as it was last seen.
    pub fn later(
        &self,
        change: &Change,
        there: Option<&Arc<Object>>,
        now: Instant,
    ) -> Option<Instant> {
        let attempt = self.0.get(change.key())?;
        let is_news = attempt.error.is_none() && attempt.before.as_ref() != there;
        let is_same = attempt.what == What::of(change) && !is_news;
        (is_same && attempt.again > now).then_some(attempt.again)
    }

    /// A change was written, or not. Returns when it is to be written again unless it is seen before.
    pub fn tried(
        &mut self,
        configuration: &ConfigurationKey,
        change: &Change,
        there: Option<&Arc<Object>>,
        written: Result<(), WriteError>,
        now: Instant,
    ) -> Instant {
        let what = What::of(change);
        let before = self.0.get(change.key());
        let failures = before.filter(|before| before.what == what);
        let failures = failures.map_or(0, |before| before.failures);
        let error = written.err();
        let (failures, wait) = match &error {
            None | Some(WriteError::Conflict) => (0, SEEN),
            Some(error) => {
                let wait = BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(failures));
                let last = match error {
                    WriteError::Unavailable(_) => AGAIN,
                    _ => BACKOFF_LAST,
                };
                (failures.saturating_add(1), wait.min(last))
            }
        };
        let again = now + wait;
        let attempt = Attempt {
            configuration: configuration.clone(),
            what,
            before: there.cloned(),
            again,
            failures,
            error: error.filter(|error| *error != WriteError::Conflict),
        };
        self.0.insert(change.key().clone(), attempt);
        again
    }

    /// Forgets all but the writes of these objects.
    pub fn keep(&mut self, wanted: &BTreeSet<&ObjectKey>) {
        self.0.retain(|key, _| wanted.contains(key));
    }

    /// What is wrong, one problem of a kind for each Configuration.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found: BTreeMap<(&ConfigurationKey, bool), (&ObjectKey, &WriteError, usize)> =
            BTreeMap::new();
        for (key, attempt) in &self.0 {
            let Some(error) = &attempt.error else {
                continue;
            };
            let kind = (&attempt.configuration, *error == WriteError::Taken);
            let (_, _, count) = found.entry(kind).or_insert((key, error, 0));
            *count += 1;
        }
        let problem = |((configuration, is_taken), (key, error, count)): (
            (&ConfigurationKey, bool),
            (&ObjectKey, &WriteError, usize),
        )| {
            let configuration = configuration.clone();
            let (object, more) = (key.to_string(), count.saturating_sub(1));
            if is_taken {
                Problem::BrokerNameTaken {
                    configuration,
                    object,
                    more,
                }
            } else {
                Problem::BrokerNotWritten {
                    configuration,
                    object,
                    error: error.to_string(),
                    more,
                }
            }
        };
        found.into_iter().map(problem).collect()
    }
}
