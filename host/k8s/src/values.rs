//! The Secrets and `ConfigMap`s that Configurations name, read again when they change.
//!
//! One watch for each namespace says that something changed, by its metadata alone; then the named objects are read, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use leafhost_core::properties::{Lookup, Reference, ValueKind};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

mod follow;

use follow::follow;

/// The most Secrets and `ConfigMap`s that an agent reads.
const MAX_OBJECTS: usize = 1_000;
/// The most bytes of values that an agent holds.
const MAX_BYTES: usize = 32 << 20;
/// The most namespaces that are watched, for Secrets and for `ConfigMap`s: each watch is a connection. Others are read from time to
/// time.
const MAX_WATCHES: usize = 16;

/// A Secret or `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Which of the two.
    pub kind: ValueKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Object {
    /// The one that a reference names.
    pub fn of(reference: &Reference<'_>) -> Self {
        Self {
            kind: reference.kind,
            namespace: reference.namespace.to_owned(),
            name: reference.name.to_owned(),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        write!(f, "{} {namespace}/{name}", kind.name())
    }
}

/// What is wanted: the keys of each object.
pub type Wanted = BTreeMap<Object, BTreeSet<String>>;

/// What an object has of the wanted keys.
pub type Keys = BTreeMap<String, Arc<[u8]>>;

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// It is there.
    Keys(Keys),
    /// It is not there.
    Missing,
    /// It cannot be read: why and the remedy.
    Unreadable(String),
}

/// What is known of each wanted object, and for which keys. One that was not read yet is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found(BTreeMap<Object, (BTreeSet<String>, Known)>);

impl Found {
    /// Whether the value was read, or could not be.
    pub fn has(&self, reference: &Reference<'_>) -> bool {
        let read = self.0.get(&Object::of(reference));
        read.is_some_and(|(keys, _)| keys.contains(reference.key))
    }

    /// The value.
    pub fn lookup(&self, reference: &Reference<'_>) -> Lookup {
        let object = Object::of(reference);
        match self.0.get(&object).map(|(_, known)| known) {
            Some(Known::Keys(keys)) => match keys.get(reference.key) {
                Some(value) => Lookup::Value(Arc::clone(value)),
                None => Lookup::Missing(format!("{object} has no key {:?}; add it", reference.key)),
            },
            Some(Known::Missing) => Lookup::Missing(format!("{object} does not exist; create it")),
            Some(Known::Unreadable(why)) => Lookup::Unavailable(why.clone()),
            None => Lookup::Unavailable(format!("{object} is being read")),
        }
    }

    /// Takes what came of reading an object. One that cannot be reached at the moment stays as it was read last.
    fn insert(&mut self, object: Object, wanted: BTreeSet<String>, outcome: Outcome) {
        let known = match outcome {
            Outcome::Known(Known::Keys(keys)) => {
                let others = self.0.iter().filter(|(other, _)| **other != object);
                let held: usize = others.map(|(_, (_, known))| known.size()).sum();
                if held + size(&keys) > MAX_BYTES {
                    Known::Unreadable(format!(
                        "{object} is beyond the {} MiB of values that an agent holds; name fewer or smaller ones",
                        MAX_BYTES >> 20
                    ))
                } else {
                    Known::Keys(keys)
                }
            }
            Outcome::Known(known) => known,
            Outcome::Failed(_) if self.is_read(&object) => return,
            Outcome::Failed(why) => Known::Unreadable(why),
        };
        self.0.insert(object, (wanted, known));
    }

    fn is_read(&self, object: &Object) -> bool {
        let known = self.0.get(object).map(|(_, known)| known);
        matches!(known, Some(Known::Keys(_) | Known::Missing))
    }
}

impl Known {
    fn size(&self) -> usize {
        match self {
            Self::Keys(keys) => size(keys),
            _ => 0,
        }
    }
}

fn size(keys: &Keys) -> usize {
    keys.iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

/// What came of reading an object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// This is known now.
    Known(Known),
    /// The API server did not answer: why.
    Failed(String),
}

/// Reads what is wanted as long as it lives.
pub struct Values {
    wanted: watch::Sender<Wanted>,
    found: watch::Receiver<Arc<Found>>,
    _tasks: JoinSet<()>,
}

impl Values {
    /// With nothing wanted yet.
    pub fn new(client: Client) -> Self {
        let (wanted, wishes) = watch::channel(Wanted::new());
        let (sender, found) = watch::channel(Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(run(client, wishes, sender));
        Self {
            wanted,
            found,
            _tasks: tasks,
        }
    }

    /// Says what is wanted from now on.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|before| {
            let differs = *before != wanted;
            *before = wanted;
            differs
        });
    }

    /// What is known.
    pub fn found(&self) -> watch::Receiver<Arc<Found>> {
        self.found.clone()
    }
}

/// What is wanted of one kind in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    kind: ValueKind,
    namespace: String,
    /// The keys of each object by its name.
    names: BTreeMap<String, BTreeSet<String>>,
    is_watched: bool,
}

async fn run(
    client: Client,
    mut wanted: watch::Receiver<Wanted>,
    sender: watch::Sender<Arc<Found>>,
) {
    let mut found = Found::default();
    loop {
        let now = wanted.borrow_and_update().clone();
        found
            .0
            .retain(|object, (keys, _)| now.get(object) == Some(keys));
        let (places, beyond) = places(&now);
        for object in beyond {
            let why = format!(
                "{object} is beyond the {MAX_OBJECTS} Secrets and ConfigMaps that an agent reads; name fewer"
            );
            let keys = now.get(&object).cloned().unwrap_or_default();
            found.insert(object, keys, Outcome::Known(Known::Unreadable(why)));
        }
        crate::publish(&sender, found.clone());
        // All are read anew. What is wanted changes rarely, and until then what was read before is there.
        let mut tasks = JoinSet::new();
        let (messages, mut inbox) = mpsc::channel(64);
        for place in places {
            let (client, messages) = (client.clone(), messages.clone());
            match place.kind {
                ValueKind::Secret => tasks.spawn(follow::<Secret>(client, place, messages)),
                ValueKind::ConfigMap => tasks.spawn(follow::<ConfigMap>(client, place, messages)),
            };
        }
        loop {
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some((object, outcome)) = inbox.recv() => {
                    let keys = now.get(&object).cloned().unwrap_or_default();
                    found.insert(object, keys, outcome);
                    crate::publish(&sender, found.clone());
                }
                // They never end by themselves.
                Some(_) = tasks.join_next() => return,
            }
        }
    }
}

/// The wanted objects by place; and those that are too many.
fn places(wanted: &Wanted) -> (Vec<Place>, Vec<Object>) {
    let mut places: Vec<Place> = Vec::new();
    // They are sorted by kind and namespace.
    for (object, keys) in wanted.iter().take(MAX_OBJECTS) {
        let named = (object.name.clone(), keys.clone());
        let is_watched = places.len() < MAX_WATCHES;
        match places.last_mut() {
            Some(last) if last.kind == object.kind && last.namespace == object.namespace => {
                last.names.extend([named]);
            }
            _ => places.push(Place {
                kind: object.kind,
                namespace: object.namespace.clone(),
                names: [named].into(),
                is_watched,
            }),
        }
    }
    let beyond = wanted.keys().skip(MAX_OBJECTS).cloned().collect();
    (places, beyond)
}

#[cfg(test)]
mod tests;
