//! Reports the failed writes of brokers as problems of Configurations.

use std::collections::BTreeMap;

use leafhost_core::brokers::ObjectKey;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::WriteError;

/// Object whose last write failed, after the Configuration that it serves.
type FailedWrite<'a> = (&'a ConfigurationKey, &'a ObjectKey, &'a WriteError);

/// Returns at most one problem of each kind for each Configuration.
pub fn problems<'a>(failed: impl Iterator<Item = FailedWrite<'a>>) -> Vec<Problem> {
    let mut found: BTreeMap<_, (&ObjectKey, &WriteError, usize)> = BTreeMap::new();
    for (configuration, key, error) in failed {
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
