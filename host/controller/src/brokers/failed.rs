//! Keeps the failed writes of brokers and reports them as problems of Configurations.

use std::collections::BTreeMap;

use leafhost_core::brokers::ObjectKey;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::WriteError;

/// Objects whose last write failed, each with the Configuration that it serves.
#[derive(Debug, Default)]
pub struct Failed(BTreeMap<ObjectKey, (ConfigurationKey, WriteError)>);

impl Failed {
    /// Records the outcome of a write. A conflict with another writer does not count as a failure.
    pub fn note(
        &mut self,
        key: ObjectKey,
        configuration: ConfigurationKey,
        answer: Result<(), WriteError>,
    ) {
        match answer {
            Ok(()) | Err(WriteError::Outdated) => drop(self.0.remove(&key)),
            Err(error) => drop(self.0.insert(key, (configuration, error))),
        }
    }

    /// Forgets the objects that need no write any more.
    pub fn forget(&mut self, is_wanted: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|key, _| is_wanted(key));
    }

    /// Returns at most one problem of each kind for each Configuration.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found: BTreeMap<_, (&ObjectKey, &WriteError, usize)> = BTreeMap::new();
        for (key, (configuration, error)) in &self.0 {
            let kind = (configuration, *error == WriteError::Taken);
            let (_, _, count) = found.entry(kind).or_insert((key, error, 0));
            *count += 1;
        }
        let found = found.into_iter();
        let problems = found.map(|((configuration, is_taken), (key, error, count))| {
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
        });
        problems.collect()
    }
}
