//! The Secrets and `ConfigMap`s that Configurations name, read again when they change.
//!
//! One watch for each namespace says that something changed, by its metadata alone; then the named objects are read, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use leafhost_core::properties::{Reference, ValueKind};
use leafhost_core::tasks::Tasks;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

mod follow;
mod found;
mod wanted;

use follow::follow;
pub use found::Found;
use found::Outcome;
pub use wanted::Wanted;

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

/// What an object has of the wanted keys.
pub type Keys = BTreeMap<String, Arc<[u8]>>;

/// Reads what is wanted.
pub struct Values {
    wanted: watch::Sender<Wanted>,
    found: watch::Receiver<Arc<Found>>,
}

impl Values {
    /// With nothing wanted yet.
    pub fn new(client: Client, tasks: &mut Tasks) -> Self {
        let (wanted, wishes) = watch::channel(Wanted::default());
        let (sender, found) = watch::channel(Arc::default());
        tasks.add_loop(
            "watches of Secrets and ConfigMaps",
            run(client, wishes, sender),
        );
        Self { wanted, found }
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

/// What was read: of which object, which keys of it, and what came of it.
type Message = (Object, BTreeSet<String>, Outcome);

async fn run(
    client: Client,
    mut wanted: watch::Receiver<Wanted>,
    sender: watch::Sender<Arc<Found>>,
) {
    let mut found = Found::default();
    let mut tasks = JoinSet::new();
    let mut following: Vec<(Place, AbortHandle)> = Vec::new();
    let (messages, mut inbox) = mpsc::channel::<Message>(64);
    loop {
        let now = wanted.borrow_and_update().clone();
        found.keep(&now);
        crate::publish(&sender, found.clone());
        let mut places = places(&now);
        following.retain(|(place, task)| {
            let is_wanted = places.contains(place);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        places.retain(|place| !following.iter().any(|(followed, _)| followed == place));
        for place in places {
            let (client, messages, named) = (client.clone(), messages.clone(), place.clone());
            let task = match place.kind {
                ValueKind::Secret => tasks.spawn(follow::<Secret>(client, named, messages)),
                ValueKind::ConfigMap => tasks.spawn(follow::<ConfigMap>(client, named, messages)),
            };
            following.push((place, task));
        }
        loop {
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some((object, keys, outcome)) = inbox.recv() => {
                    // What others are reading now may be of no use any more.
                    if let Some(want) = now.get(&object).filter(|want| want.keys == keys) {
                        found.insert(object, want, outcome);
                        crate::publish(&sender, found.clone());
                    }
                }
                // They never end by themselves.
                Some(ended) = tasks.join_next() => match ended {
                    Err(error) if error.is_cancelled() => {}
                    _ => return,
                },
            }
        }
    }
}

/// The wanted objects by place. Those are watched that have the first objects.
fn places(wanted: &Wanted) -> Vec<Place> {
    let mut places: Vec<(usize, Place)> = Vec::new();
    // They are sorted by kind and namespace.
    for (object, want) in wanted.objects() {
        let named = (object.name.clone(), want.keys.clone());
        match places.last_mut() {
            Some((first, last))
                if last.kind == object.kind && last.namespace == object.namespace =>
            {
                last.names.extend([named]);
                *first = want.place.min(*first);
            }
            _ => {
                let place = Place {
                    kind: object.kind,
                    namespace: object.namespace.clone(),
                    names: [named].into(),
                    is_watched: false,
                };
                places.push((want.place, place));
            }
        }
    }
    places.sort_by_key(|(first, _)| *first);
    for (_, place) in places.iter_mut().take(MAX_WATCHES) {
        place.is_watched = true;
    }
    places.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests;
