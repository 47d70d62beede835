//! Decides which names to reserve and which to free. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, NameRecord, NameSet};
use leafhost_core::status_store::ConfigurationStates;

use super::name_index::oldest_first;

/// Upper bound of reserved names per namespace, equal to the number of Configurations that an agent takes. Beyond it, a name belongs to its
/// oldest Configuration.
pub const MOST: usize = leafhost_core::configuration::MAX_CONFIGURATIONS;

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Reserves a name.
    Reserve {
        /// Name to reserve.
        name: String,
        /// Namespace that gets the name.
        namespace: String,
    },
    /// Notes that a name is unused from now on, or that it is used again.
    Note {
        /// Reserved name.
        name: String,
        /// True if the name is used again.
        is_used: bool,
    },
    /// Frees a name.
    Free {
        /// Name to free.
        name: String,
    },
}

impl Change {
    /// Returns the name that the change is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Reserve { name, .. } | Self::Note { name, .. } | Self::Free { name } => name,
        }
    }
}

/// Outcome of a planning pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Writes to make; namespaces take turns.
    pub changes: Vec<Change>,
    /// Time at which to plan again even if nothing changes.
    pub next: Option<Timestamp>,
}

/// Names and changes of one namespace.
#[derive(Debug, Default)]
struct Namespace<'a> {
    names: usize,
    /// Unused names, with the time since when.
    unused: BTreeSet<(Timestamp, &'a str)>,
    changes: Vec<Change>,
}

/// Plans the changes. A name stays reserved for `grace` after its namespace last used it.
pub fn plan(states: &ConfigurationStates, set: &NameSet, grace: Duration, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut namespaces: BTreeMap<&str, Namespace<'_>> = BTreeMap::new();
    for (name, record) in &set.records {
        let namespace = namespaces.entry(&record.reservation.namespace).or_default();
        namespace.names = namespace.names.saturating_add(1);
        let is_used = is_used(states, name, record);
        match record.unused_since {
            Some(since) if !is_used => {
                let end = since.checked_add(grace).unwrap_or(Timestamp::MAX);
                if end <= now {
                    let name = name.clone();
                    namespace.changes.push(Change::Free { name });
                } else {
                    namespace.unused.insert((since, name.as_str()));
                    plan.next = Some(plan.next.map_or(end, |next| next.min(end)));
                }
            }
            noted if noted.is_some() == is_used => {
                let name = name.clone();
                namespace.changes.push(Change::Note { name, is_used });
            }
            _ => {}
        }
    }
    let live = states.configurations.iter();
    let live = oldest_first(live.filter(|(_, state)| !state.is_deleting));
    let name_index = NameOwners::new(&set.names, live.iter().copied());
    for key in live.into_iter().filter(|key| name_index.is_unreserved(key)) {
        let namespace = namespaces.entry(key.namespace()).or_default();
        if namespace.names >= MOST {
            // The next pass reserves the name in the freed place.
            if let Some((_, name)) = namespace.unused.pop_first() {
                let name = name.to_owned();
                namespace.changes.push(Change::Free { name });
            }
            continue;
        }
        namespace.names = namespace.names.saturating_add(1);
        namespace.changes.push(Change::Reserve {
            name: key.name().to_owned(),
            namespace: key.namespace().to_owned(),
        });
    }
    plan.changes = round_robin(namespaces);
    plan
}

/// Returns true if a Configuration of the namespace has the name.
fn is_used(states: &ConfigurationStates, name: &str, record: &NameRecord) -> bool {
    let key = ConfigurationKey::new(&record.reservation.namespace, name);
    key.is_ok_and(|key| states.configurations.contains_key(&key))
}

/// Returns the first change of each namespace, then the second of each, so that many changes of one namespace delay no other.
fn round_robin(namespaces: BTreeMap<&str, Namespace<'_>>) -> Vec<Change> {
    let each = namespaces.into_values();
    let each = each.flat_map(|namespace| namespace.changes.into_iter().enumerate());
    let mut changes: Vec<(usize, Change)> = each.collect();
    changes.sort_by_key(|(turn, _)| *turn);
    changes.into_iter().map(|(_, change)| change).collect()
}

#[cfg(test)]
mod tests;
