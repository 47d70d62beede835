//! Reserved resource names of namespaces: follows `resourcenames.leafhost.dev`, for agents and for the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DeserializeGuard;
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::resource_names::{NameRecord, NameSet, Reservation, ResourceNames};

use crate::answers::Failure;
use crate::crd::ResourceName;
use crate::index::Index;
use crate::watch::{Event, Watch};

/// Annotation with the time since which no Configuration of the namespace has the name, in RFC 3339 format.
pub const UNUSED_SINCE: &str = "leafhost.dev/unused-since";
/// Number of failures in a row after which the reservations count as unreadable.
const TRIES: u32 = 5;

/// Follows the reservations forever; `publish` gets all of them after each event. Until they are read, the `remembered` ones apply.
pub async fn follow(client: Client, remembered: ResourceNames, publish: impl Fn(NameSet)) {
    let mut watch: Watch<DeserializeGuard<ResourceName>> = Watch::new(Api::all(client));
    let mut reservations = NameReservations {
        remembered: Arc::new(remembered),
        ..NameReservations::default()
    };
    loop {
        publish(reservations.set());
        watch.take(|event| reservations.take(event)).await;
    }
}

/// State of the reservations.
#[derive(Debug, Default)]
struct NameReservations {
    remembered: Arc<ResourceNames>,
    records: Index<BTreeMap<String, NameRecord>>,
    is_unreadable: bool,
    /// Failures in a row.
    failures: u32,
    problem: Option<String>,
}

impl NameReservations {
    fn take(&mut self, event: Result<Event<DeserializeGuard<ResourceName>>, Failure>) {
        match event {
            Ok(event) => {
                if matches!(event, Event::Resumed) {
                    self.failures = 0;
                    self.problem = None;
                }
                let name = DeserializeGuard::name_any;
                self.records.take(event, name, |object, _| record(object));
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                let is_final = matches!(failure.code, Some(401 | 403 | 404));
                self.is_unreadable |= is_final || self.failures >= TRIES;
                let why = failure.describe_watch("resourcenames.leafhost.dev");
                self.problem = Some(format!(
                    "cannot be watched: {why}; a name that was read before stays with its namespace, any other is that of the oldest Configuration"
                ));
            }
        }
    }

    fn set(&self) -> NameSet {
        let problem = self.problem.clone();
        if let Some(records) = self.records.read() {
            let read = NameSet::read(records.clone());
            return NameSet { problem, ..read };
        }
        NameSet {
            is_known: self.is_unreadable,
            problem,
            names: Arc::clone(&self.remembered),
            ..NameSet::default()
        }
    }
}

/// Reads an object. Returns `None` if it is invalid, since no controller wrote it.
pub fn record(object: DeserializeGuard<ResourceName>) -> Option<NameRecord> {
    let object = object.0.ok()?;
    let unused = object.annotations().get(UNUSED_SINCE);
    let unused: Option<Timestamp> = unused.and_then(|text| text.parse().ok());
    let metadata = object.metadata;
    Some(NameRecord {
        reservation: Reservation {
            namespace: object.spec.namespace,
            created: metadata.creation_timestamp.map(|time| time.0),
        },
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        unused_since: unused,
    })
}

#[cfg(test)]
mod tests;
