//! Decides which names to reserve and which to free. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, NameRecord, NameSet, oldest_first};
use leafhost_core::status_store::ConfigurationStates;

/// Maximum number of reserved names per namespace, equal to the number of Configurations that an agent takes. Beyond it, a name belongs to its
/// oldest Configuration.
pub const MOST: usize = leafhost_core::configuration::MAX_CONFIGURATIONS;

/// Change of the reservation of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name that the change is about.
    pub name: String,
    /// Namespace that has the name, or gets it.
    pub namespace: String,
    pub action: Action,
}

/// Action on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reserves the name.
    Reserve,
    /// Records that the name is unused from now on, or that it is used again.
    Note {
        /// True if the name is used again.
        is_used: bool,
    },
    /// Frees the name.
    Free,
}

/// Outcome of a planning pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Writes to make.
    pub changes: Vec<Change>,
    /// Time at which to plan again even if nothing changes.
    pub next: Option<Timestamp>,
}

/// Names of one namespace.
#[derive(Debug, Default)]
struct Namespace<'a> {
    names: usize,
    /// Unused names, with the time since which they are unused.
    unused: BTreeSet<(Timestamp, &'a str)>,
}

/// Plans the changes. A name stays reserved for `grace` after its namespace last used it.
pub fn plan(states: &ConfigurationStates, set: &NameSet, grace: Duration, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut namespaces: BTreeMap<&str, Namespace<'_>> = BTreeMap::new();
    for (name, record) in &set.records {
        let owner = record.reservation.namespace.as_str();
        let namespace = namespaces.entry(owner).or_default();
        namespace.names = namespace.names.saturating_add(1);
        let is_used = is_used(states, name, record);
        match record.unused_since {
            Some(since) if !is_used => {
                let end = since.checked_add(grace).unwrap_or(Timestamp::MAX);
                if end <= now {
                    plan.add(name, owner, Action::Free);
                } else {
                    namespace.unused.insert((since, name.as_str()));
                    plan.next = Some(plan.next.map_or(end, |next| next.min(end)));
                }
            }
            noted if noted.is_some() == is_used => plan.add(name, owner, Action::Note { is_used }),
            _ => {}
        }
    }
    let live = states.configurations.iter();
    let live = oldest_first(live.filter(|(_, state)| !state.is_deleting));
    let owners = NameOwners::new(&set.names, live.iter().copied());
    for key in live.into_iter().filter(|key| owners.is_unreserved(key)) {
        let namespace = namespaces.entry(key.namespace()).or_default();
        if namespace.names >= MOST {
            // The next pass reserves the name in the freed place.
            if let Some((_, name)) = namespace.unused.pop_first() {
                plan.add(name, key.namespace(), Action::Free);
            }
            continue;
        }
        namespace.names = namespace.names.saturating_add(1);
        plan.add(key.name(), key.namespace(), Action::Reserve);
    }
    plan
}

impl Plan {
    fn add(&mut self, name: &str, namespace: &str, action: Action) {
        self.changes.push(Change {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            action,
        });
    }
}

/// Returns true if a Configuration of the namespace has the name.
fn is_used(states: &ConfigurationStates, name: &str, record: &NameRecord) -> bool {
    let key = ConfigurationKey::new(&record.reservation.namespace, name);
    key.is_ok_and(|key| states.configurations.contains_key(&key))
}

#[cfg(test)]
mod tests;
