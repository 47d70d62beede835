//! Keeps what could not be written of brokers, and tells it as problems of Configurations.

use std::collections::BTreeMap;

use leafhost_core::brokers::{ObjectKey, WriteError};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;

/// The objects whose last write failed, each with the Configuration that it serves.
#[derive(Debug, Default)]
pub struct Failed(BTreeMap<ObjectKey, (ConfigurationKey, WriteError)>);

impl Failed {
    /// Notes what came of a write. One that somebody else was quicker than has not failed.
    pub fn note(
        &mut self,
        key: ObjectKey,
        configuration: ConfigurationKey,
        answer: Result<(), WriteError>,
    ) {
        match answer {
            Ok(()) | Err(WriteError::Conflict) => drop(self.0.remove(&key)),
            Err(error) => drop(self.0.insert(key, (configuration, error))),
        }
    }

    /// Forgets the objects that are not to be written any more.
    pub fn forget(&mut self, is_wanted: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|key, _| is_wanted(key));
    }

    /// Returns what is wrong, one problem of a kind for each Configuration.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found: BTreeMap<(&ConfigurationKey, bool), (&ObjectKey, &WriteError, usize)> =
            BTreeMap::new();
        for (key, (configuration, error)) in &self.0 {
            let kind = (configuration, *error == WriteError::Taken);
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
