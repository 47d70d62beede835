//! Shows the Configurations as far as it matters who gives their devices: the kubelet or the scheduler.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::configuration::{Backend, Configuration};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::pools::PoolRules;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::answers::{self, Kind};
use crate::backoff;
use crate::index::{TRIES_AGAIN, follow};
use crate::manifest;

/// Limits the time of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Is a Configuration, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backed {
    /// Names it.
    pub key: ConfigurationKey,
    /// Says when it was made, and its uid: the older one has a name.
    pub seniority: (Option<String>, String),
    /// True if the scheduler gives its devices.
    pub is_dra: bool,
    /// Says how its shared devices are offered then.
    pub rules: PoolRules,
}

/// Holds all Configurations; nothing until they were listed.
pub type AllBacked = Option<Vec<Backed>>;

/// Follows them without end.
pub async fn watch(client: Client, sender: watch::Sender<AllBacked>) {
    let all = Api::<DynamicObject>::all_with(client, &manifest::resource());
    follow(
        all,
        ("Configurations", TRIES_AGAIN),
        |object: &DynamicObject| (object.namespace(), object.name_any()),
        |object, _: Option<&Backed>| read(&object),
        move |all: &BTreeMap<_, Backed>| {
            let all = Some(all.values().cloned().collect());
            sender.send_if_modified(|before| {
                let differs = *before != all;
                if differs {
                    *before = all;
                }
                differs
            });
        },
    )
    .await;
}

/// Tells that there are objects of an earlier run. A failure that may pass is waited out.
pub async fn has_some<K>(api: &Api<K>, ours: &ListParams) -> bool
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut failures = 0;
    loop {
        match answers::within(REQUEST, api.list_metadata(ours)).await {
            Ok(found) => return !found.items.is_empty(),
            Err(failure) if matches!(failure.kind, Kind::Undefined | Kind::Denied) => return false,
            Err(_) => {
                failures += 1;
                sleep(backoff(failures)).await;
            }
        }
    }
}

/// Reads a Configuration. One that is being deleted has nothing, and none that cannot be used has.
fn read(object: &DynamicObject) -> Option<Backed> {
    if object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let configuration = Configuration::try_from(manifest::read(object).ok()?).ok()?;
    Some(Backed {
        seniority: (configuration.created.clone(), configuration.uid.clone()),
        is_dra: configuration.backend == Backend::Dra,
        rules: PoolRules {
            evicts: configuration.evicts,
        },
        key: configuration.key,
    })
}
