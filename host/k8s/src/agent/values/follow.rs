//! Keeps reading the wanted objects of one kind in one namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep_until};

use super::found::Known;
use super::{Keys, Message, Object, WatchTarget};
use crate::answers::{self, Failure};
use crate::watch::{Event, Watch};

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Interval between two reads of objects that cannot be watched.
const POLL: Duration = Duration::from_secs(30);

/// A Secret or a `ConfigMap`.
pub trait Holder:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Returns the values by key.
    fn values(self) -> BTreeMap<String, Vec<u8>>;
}

impl Holder for Secret {
    fn values(self) -> BTreeMap<String, Vec<u8>> {
        let values = self.data.unwrap_or_default().into_iter();
        values.map(|(key, value)| (key, value.0)).collect()
    }
}

impl Holder for ConfigMap {
    fn values(self) -> BTreeMap<String, Vec<u8>> {
        let binary = self.binary_data.unwrap_or_default().into_iter();
        let text = self.data.unwrap_or_default().into_iter();
        let binary = binary.map(|(key, value)| (key, value.0));
        let text = text.map(|(key, value)| (key, value.into_bytes()));
        binary.chain(text).collect()
    }
}

/// Sends the outcome of each read until the receiver of `messages` is dropped.
///
/// If the agent may not watch, each attempt to do so is followed by a read of all objects, eventually every 30 s.
pub async fn follow<K: Holder>(
    client: Client,
    target: WatchTarget,
    messages: mpsc::Sender<Message>,
) {
    let api: Api<K> = Api::namespaced(client.clone(), &target.namespace);
    let mut watch = Watch::new(Api::<PartialObjectMeta<K>>::namespaced(
        client,
        &target.namespace,
    ));
    // For a single object, permissions for its name alone are enough.
    if let Some(name) = target
        .names
        .keys()
        .next()
        .filter(|_| target.names.len() == 1)
    {
        watch = watch.fields(&format!("metadata.name={name}"));
    }
    let all = || target.names.keys().cloned().collect::<BTreeSet<String>>();
    let mut due = if target.is_watched {
        BTreeSet::new()
    } else {
        all()
    };
    let mut backoff = DefaultBackoff::default();
    let mut again = Instant::now();
    loop {
        let (is_waiting, mut is_due) = (!due.is_empty(), false);
        // Several changes of an object that arrive together cause only one read.
        let take = |event: Result<Event<PartialObjectMeta<K>>, Failure>| match event {
            Ok(Event::Init | Event::InitApply(_) | Event::Resumed) => {}
            Ok(Event::InitDone(_)) | Err(_) => {
                due = all();
                is_due = true;
            }
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                let name = object.name_any();
                if target.names.contains_key(&name) {
                    due.insert(name);
                    is_due = true;
                }
            }
        };
        tokio::select! {
            () = watch.take(take), if target.is_watched => if !is_due {
                continue;
            },
            () = sleep_until(again), if is_waiting => {}
        }
        let mut is_away = None;
        for (name, keys) in &target.names {
            if !due.contains(name) {
                continue;
            }
            let object = Object {
                kind: target.kind,
                namespace: target.namespace.clone(),
                name: name.clone(),
            };
            let failure = match is_away.clone() {
                Some(failure) => Err(failure),
                None => answers::within(REQUEST, api.get_opt(name)).await,
            };
            let outcome = match failure {
                Ok(None) => Ok(Known::Missing),
                Ok(Some(held)) => Ok(Known::Keys(wanted(held, keys))),
                Err(Failure {
                    code: Some(403),
                    message,
                    ..
                }) => Ok(Known::Unreadable(format!(
                    "the agent may not read {object}: {message}; allow its service account to get, list and watch it"
                ))),
                Err(failure) => {
                    let why = format!(
                        "cannot read {object}: {}; the agent tries again",
                        failure.message
                    );
                    is_away = Some(failure);
                    Err(why)
                }
            };
            if matches!(outcome, Ok(Known::Keys(_) | Known::Missing)) {
                due.remove(name);
            }
            if messages
                .send((object, keys.clone(), outcome))
                .await
                .is_err()
            {
                return;
            }
        }
        if due.is_empty() {
            backoff = DefaultBackoff::default();
        }
        again = Instant::now() + backoff.next().unwrap_or(POLL);
        if !target.is_watched {
            due = all();
            again = Instant::now() + POLL;
        }
    }
}

fn wanted<K: Holder>(held: K, keys: &BTreeSet<String>) -> Keys {
    let values = held.values().into_iter();
    let values = values.filter(|(key, _)| keys.contains(key));
    values.map(|(key, value)| (key, value.into())).collect()
}
