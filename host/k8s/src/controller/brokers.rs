//! Inputs of brokers, as the controller sees them in the cluster, and the writes of brokers.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::brokers::{Brokers, Change, ManifestSet, ObjectSet};
use leafhost_core::configuration::{Backend, Configuration, Manifest};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::status_store::WriteError;
use leafhost_core::tasks::Tasks;
use tokio::sync::watch;

mod objects;
mod writes;

use crate::index::follow;
use crate::manifest;

/// Behavior of the controller while a watch fails, as told in the log.
const MAKES_NONE: &str = "the controller tries again, and makes no brokers before";

/// Brokers of a cluster.
pub struct KubeBrokers {
    client: Client,
    manifests: watch::Receiver<Arc<ManifestSet>>,
    objects: watch::Receiver<Arc<ObjectSet>>,
}

impl KubeBrokers {
    /// Watches the objects of brokers and their Configurations.
    pub fn watch(client: &Client, tasks: &mut Tasks) -> Self {
        let (manifest_sender, manifests) = watch::channel(Arc::default());
        let (claim_sender, claims) = watch::channel(false);
        let following = follow_manifests(client.clone(), manifest_sender, claim_sender);
        tasks.add_loop("watch of brokers' Configurations", following);
        let (object_sender, objects) = watch::channel(Arc::default());
        let following = objects::follow(client.clone(), object_sender, claims);
        tasks.add_loop("watch of brokers", following);
        Self {
            client: client.clone(),
            manifests,
            objects,
        }
    }
}

#[async_trait]
impl Brokers for KubeBrokers {
    fn manifests(&self) -> watch::Receiver<Arc<ManifestSet>> {
        self.manifests.clone()
    }

    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>> {
        self.objects.clone()
    }

    async fn write(&self, change: &Change) -> Result<(), WriteError> {
        writes::write(&self.client, change).await
    }
}

/// A Configuration with its key.
type Read = (ConfigurationKey, Arc<Manifest>);

/// Follows the Configurations; `claims` gets true if a broker gets its device through a claim.
async fn follow_manifests(
    client: Client,
    sender: watch::Sender<Arc<ManifestSet>>,
    claims: watch::Sender<bool>,
) {
    let api: Api<DynamicObject> = Api::all_with(client, &manifest::resource());
    let name = |object: &DynamicObject| (object.namespace(), object.name_any());
    let publish = |all: &BTreeMap<_, Read>| {
        let next = ManifestSet {
            complete: true,
            manifests: all.values().cloned().collect(),
        };
        claims.send_replace(next.manifests.values().any(|one| has_claims(one)));
        crate::publish(&sender, next);
    };
    let read = |object: DynamicObject, before: Option<&Read>| read(&object, before);
    let what = ("Configurations", MAKES_NONE);
    follow(api, what, name, read, publish).await;
}

fn has_claims(manifest: &Manifest) -> bool {
    let backend = Backend::of(&manifest.metadata.annotations);
    backend == Backend::Dra && manifest.spec.broker_spec.is_some()
}

fn key(object: &DynamicObject) -> Option<ConfigurationKey> {
    let metadata = &object.metadata;
    ConfigurationKey::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?).ok()
}

/// Reads a Configuration. If it is invalid, keeps the version before, as the agents do.
fn read(object: &DynamicObject, before: Option<&Read>) -> Option<Read> {
    let key = key(object)?;
    let read = manifest::read(object).ok();
    let usable = read.filter(|read| Configuration::try_from(read.clone()).is_ok());
    let mut manifest = if let Some(mut manifest) = usable {
        // The discovery fields are long, and brokers do not depend on them.
        manifest.spec.discovery_handler.discovery_details.clear();
        manifest.spec.discovery_handler.discovery_properties = None;
        Arc::new(manifest)
    } else {
        let uid = object.metadata.uid.as_ref();
        let before = before.map(|(_, before)| before);
        Arc::clone(before.filter(|before| before.metadata.uid.as_ref() == uid)?)
    };
    let deleted = object.metadata.deletion_timestamp.as_ref();
    if deleted.is_some() && manifest.metadata.deletion_timestamp.is_none() {
        let deleted = deleted.map(|time| time.0.to_string());
        Arc::make_mut(&mut manifest).metadata.deletion_timestamp = deleted;
    }
    Some((key, manifest))
}
