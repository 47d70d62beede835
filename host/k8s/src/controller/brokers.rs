//! What brokers are made of, as the controller sees it in the cluster, and the writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kube::api::DynamicObject;
use kube::{Api, Client};
use leafhost_core::brokers::{Brokers, Change, ManifestSet, ObjectSet, WriteError};
use leafhost_core::cluster::{Cluster as _, NodeSet};
use leafhost_core::configuration::{Configuration, Manifest};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::resource_names::{NameSet, NameStore as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

mod objects;
mod writes;

use crate::controller::cluster::KubeCluster;
use crate::manifest;
use crate::watch::{Event, Failure, Watch};

/// The most events that are taken together.
const TOGETHER: usize = 1_000;

/// The objects of brokers in a cluster. Dropping it ends its tasks.
pub struct KubeBrokers {
    client: Client,
    leads: watch::Receiver<bool>,
    nodes: watch::Receiver<Arc<NodeSet>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    manifests: watch::Receiver<Arc<ManifestSet>>,
    objects: watch::Receiver<Arc<ObjectSet>>,
    names: watch::Receiver<Arc<NameSet>>,
    _tasks: JoinSet<()>,
}

impl KubeBrokers {
    /// Watches them, beside what the controller watches anyway.
    pub fn watch(client: &Client, cluster: &KubeCluster) -> Self {
        let mut tasks = JoinSet::new();
        let (manifest_sender, manifests) = watch::channel(Arc::default());
        tasks.spawn(follow_manifests(client.clone(), manifest_sender));
        let (object_sender, objects) = watch::channel(Arc::default());
        tasks.spawn(objects::follow(client.clone(), object_sender));
        Self {
            client: client.clone(),
            leads: cluster.leads(),
            nodes: cluster.nodes(),
            instances: cluster.instances(),
            manifests,
            objects,
            names: cluster.names(),
            _tasks: tasks,
        }
    }
}

#[async_trait]
impl Brokers for KubeBrokers {
    fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>> {
        self.nodes.clone()
    }

    fn manifests(&self) -> watch::Receiver<Arc<ManifestSet>> {
        self.manifests.clone()
    }

    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.instances.clone()
    }

    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>> {
        self.objects.clone()
    }

    fn names(&self) -> watch::Receiver<Arc<NameSet>> {
        self.names.clone()
    }

    async fn write(&self, change: &Change) -> Result<(), WriteError> {
        writes::write(&self.client, change).await
    }
}

type Manifests = BTreeMap<ConfigurationKey, Arc<Manifest>>;

async fn follow_manifests(client: Client, sender: watch::Sender<Arc<ManifestSet>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &manifest::resource());
    let mut watch = Watch::new(api);
    let (mut manifests, mut listed) = (Manifests::new(), Manifests::new());
    let mut complete = false;
    loop {
        match watch.next().await {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.extend(read(&object, &manifests)),
            Ok(Event::InitDone) => {
                manifests = std::mem::take(&mut listed);
                complete = true;
            }
            Ok(Event::Apply(object)) => manifests.extend(read(&object, &manifests)),
            Ok(Event::Delete(object)) => {
                if let Some(key) = key(&object) {
                    manifests.remove(&key);
                }
            }
            Ok(Event::Resumed) => {}
            Err(failure) => warn("Configurations", &failure),
        }
        if complete {
            let manifests = manifests.clone();
            let next = ManifestSet {
                complete,
                manifests,
            };
            crate::publish(&sender, next);
        }
    }
}

fn key(object: &DynamicObject) -> Option<ConfigurationKey> {
    let metadata = &object.metadata;
    ConfigurationKey::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?).ok()
}

/// The Configuration. While it cannot be used, the agents use the version before, and so does the controller.
fn read(object: &DynamicObject, before: &Manifests) -> Option<(ConfigurationKey, Arc<Manifest>)> {
    let key = key(object)?;
    let read = manifest::read(object).ok();
    let usable = read.filter(|read| Configuration::try_from(read.clone()).is_ok());
    let mut manifest = if let Some(mut manifest) = usable {
        // These are long, and no broker is made of them.
        manifest.spec.discovery_handler.discovery_details.clear();
        manifest.spec.discovery_handler.discovery_properties = None;
        Arc::new(manifest)
    } else {
        let uid = object.metadata.uid.as_ref();
        let before = before.get(&key);
        Arc::clone(before.filter(|before| before.metadata.uid.as_ref() == uid)?)
    };
    let deleted = object.metadata.deletion_timestamp.as_ref();
    if deleted.is_some() && manifest.metadata.deletion_timestamp.is_none() {
        let deleted = deleted.map(|time| time.0.to_string());
        Arc::make_mut(&mut manifest).metadata.deletion_timestamp = deleted;
    }
    Some((key, manifest))
}

fn warn(what: &str, failure: &Failure) {
    let error = &failure.message;
    tracing::warn!(
        error,
        "{what} cannot be watched; the controller tries again, and makes no brokers before"
    );
}
