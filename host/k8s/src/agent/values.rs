//! Secrets and `ConfigMap`s that Configurations name, read again when they change.
//!
//! One watch for each namespace reports changes by metadata alone; only the named objects are then read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use leafhost_core::properties::{Reference, ValueKind};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::changed;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

mod follow;
mod found;
mod wanted;

use follow::follow;
pub use found::Found;
use found::Outcome;
pub use wanted::Wanted;

/// Maximum number of watched namespaces, for Secrets and `ConfigMap`s together, since each watch is a connection. The others are polled.
const MAX_WATCHES: usize = 16;

/// A Secret or `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Kind of the object.
    pub kind: ValueKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Object {
    /// Returns the object that a reference names.
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

/// Values of the wanted keys of an object.
pub type Keys = BTreeMap<String, Arc<[u8]>>;

/// Reads the wanted values.
pub struct Values {
    /// Wanted values.
    pub wanted: watch::Sender<Wanted>,
    /// Values read so far.
    pub found: watch::Receiver<Arc<Found>>,
}

impl Values {
    /// Creates a reader that wants nothing yet.
    pub fn new(client: Client, tasks: &mut Tasks) -> Self {
        let (wanted, wishes) = watch::channel(Wanted::default());
        let (sender, found) = watch::channel(Arc::default());
        tasks.add_loop(
            "watches of Secrets and ConfigMaps",
            run(client, wishes, sender),
        );
        Self { wanted, found }
    }
}

/// Wanted objects of one kind in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchTarget {
    kind: ValueKind,
    namespace: String,
    /// Wanted keys of each object by its name.
    names: BTreeMap<String, BTreeSet<String>>,
    is_watched: bool,
}

/// An object that was read, the keys that were wanted of it, and the outcome.
type Message = (Object, BTreeSet<String>, Outcome);

async fn run(
    client: Client,
    mut wanted: watch::Receiver<Wanted>,
    sender: watch::Sender<Arc<Found>>,
) {
    let mut found = Found::default();
    let mut tasks = JoinSet::new();
    let mut following: Vec<(WatchTarget, AbortHandle)> = Vec::new();
    let (messages, mut inbox) = mpsc::channel::<Message>(64);
    loop {
        let now = wanted.borrow_and_update().clone();
        found.keep(&now);
        crate::publish(&sender, found.clone());
        let mut targets = targets(&now);
        following.retain(|(target, task)| {
            let is_wanted = targets.contains(target);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        targets.retain(|target| !following.iter().any(|(followed, _)| followed == target));
        for target in targets {
            let (client, messages, named) = (client.clone(), messages.clone(), target.clone());
            let task = match target.kind {
                ValueKind::Secret => tasks.spawn(follow::<Secret>(client, named, messages)),
                ValueKind::ConfigMap => tasks.spawn(follow::<ConfigMap>(client, named, messages)),
            };
            following.push((target, task));
        }
        loop {
            tokio::select! {
                () = changed(&mut wanted) => break,
                Some((object, keys, outcome)) = inbox.recv() => {
                    // A reader may still be reading objects that are no longer wanted.
                    if let Some(want) = now.get(&object).filter(|want| want.keys == keys) {
                        found.insert(object, want, outcome);
                        crate::publish(&sender, found.clone());
                    }
                }
                // The tasks never end by themselves.
                Some(ended) = tasks.join_next() => match ended {
                    Err(error) if error.is_cancelled() => {}
                    _ => return,
                },
            }
        }
    }
}

/// Groups the wanted objects by kind and namespace. The groups of the objects with the first ranks are watched.
fn targets(wanted: &Wanted) -> Vec<WatchTarget> {
    let mut targets: Vec<(usize, WatchTarget)> = Vec::new();
    // The objects are sorted by kind and namespace.
    for (object, want) in wanted.objects() {
        let named = (object.name.clone(), want.keys.clone());
        match targets.last_mut() {
            Some((first, last))
                if last.kind == object.kind && last.namespace == object.namespace =>
            {
                last.names.extend([named]);
                *first = want.rank.min(*first);
            }
            _ => {
                let target = WatchTarget {
                    kind: object.kind,
                    namespace: object.namespace.clone(),
                    names: [named].into(),
                    is_watched: false,
                };
                targets.push((want.rank, target));
            }
        }
    }
    targets.sort_by_key(|(first, _)| *first);
    for (_, target) in targets.iter_mut().take(MAX_WATCHES) {
        target.is_watched = true;
    }
    targets.into_iter().map(|(_, target)| target).collect()
}

#[cfg(test)]
mod tests;
