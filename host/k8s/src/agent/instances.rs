//! Instances as objects of the API server.
//!
//! Two watches show the Instances that concern this node, and each write returns the object as it is now. Both feed one view, in which an
//! older version never replaces a newer one; so a write is visible before [`InstanceStore::apply`] returns. Write requests have short
//! deadlines and are never retried, except once after reading the object.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::DeserializeGuard;
use leafhost_core::instance::{
    Edit, Instance, InstanceKey, InstanceStatus, Leafhost, OwnerReference,
};
use leafhost_core::instance_view::{InstanceView, Scope, version};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError, Written};
use leafhost_core::tasks::Tasks;
use rand::RngExt as _;
use tokio::sync::{Semaphore, watch};

mod events;
mod kept;

use crate::answers::{self, Failure, Kind};
use crate::instance::{self, InstanceObject, REQUEST, api_resource, outdated, patch, store_error};
use crate::requests::{delete_only, put_by};
use crate::{manifest, memory, nodes};

/// Maximum number of concurrent writes.
const IN_FLIGHT: usize = 16;
/// Period in which nodes that see a new shared device at the same time create its Instance, each at a random moment; all but the first then
/// join the existing Instance.
const SPREAD: Duration = Duration::from_secs(1);
/// Timeout of a write with all its reads. A write that hangs delays the others of its batch at most that long.
const CHANGE: Duration = Duration::from_secs(4);
/// Field manager of all agents. With one for each agent, an Instance would grow with the number of nodes.
const MANAGER: &str = "leafhost";

/// Instances that concern one node.
pub struct KubeInstances {
    shared: Arc<Shared>,
    set: watch::Receiver<Arc<InstanceSet>>,
}

/// State shared by watches and writes.
struct Shared {
    client: Client,
    resource: ApiResource,
    node: String,
    state: Mutex<State>,
    /// Number of times that the API server was found to have returned to an earlier state; the watches then list again.
    restored: watch::Sender<u64>,
}

struct State {
    view: InstanceView,
    /// Watches that have not completed their first list.
    unread: BTreeSet<Scope>,
    /// Fields that the API server drops from Instances, by uid, if the installed definition is Akri's, which lacks them.
    pruned: BTreeMap<String, Pruned>,
    /// Reasons why watches are interrupted; `None` for a watch that works.
    interrupted: BTreeMap<Scope, Option<String>>,
    set: watch::Sender<Arc<InstanceSet>>,
}

/// Fields of an Instance that Akri's definition lacks.
#[derive(Clone, Default)]
struct Pruned {
    leafhost: Option<Leafhost>,
    status: InstanceStatus,
}

impl Pruned {
    fn swap(&mut self, instance: &mut Instance) {
        std::mem::swap(&mut self.leafhost, &mut instance.spec.leafhost);
        std::mem::swap(&mut self.status, &mut instance.status);
    }
}

impl KubeInstances {
    /// Watches the Instances that concern `node`. The client must not retry requests by itself. The file `memory` keeps the Instances for
    /// an agent that starts while the API server is unreachable.
    pub fn watch(client: &Client, node: &str, memory: PathBuf, tasks: &mut Tasks) -> Self {
        let remembered: Option<Vec<Instance>> = memory::read(&memory);
        let keyed = |instance: Instance| (instance.key(), Arc::new(instance));
        let instances = remembered.iter().flatten().cloned().map(keyed);
        let set = InstanceSet {
            complete: false,
            remembered: remembered.is_some(),
            instances: instances.collect(),
            interrupted: None,
        };
        let (sender, set) = watch::channel(Arc::new(set));
        let shared = Arc::new(Shared {
            client: client.clone(),
            resource: api_resource(),
            node: node.to_owned(),
            restored: watch::Sender::new(0),
            state: Mutex::new(State {
                view: InstanceView::default(),
                unread: events::SCOPES.into(),
                pruned: BTreeMap::new(),
                interrupted: BTreeMap::new(),
                set: sender,
            }),
        });
        for scope in events::SCOPES {
            let api = Api::all_with(client.clone(), &shared.resource);
            let following = events::follow(Arc::clone(&shared), api, scope);
            tasks.add_loop("watch of Instances", following);
        }
        let mut worth = kept::Worth::of(node);
        let keeping = memory::keep(memory, set.clone(), move |set| worth.keeping(set));
        tasks.add_loop("file of Instances", keeping);
        Self { shared, set }
    }
}

/// Sleeps for a random delay if other nodes may be creating the same Instance.
async fn spread(change: &Change) {
    if let Change::Create(instance) = change
        && instance.spec.shared
    {
        let wait = SPREAD.mul_f64(rand::rng().random_range(0.0..1.0));
        tokio::time::sleep(wait).await;
    }
}

#[async_trait]
impl InstanceStore for KubeInstances {
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.set.clone()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<Written> {
        // A slow write delays none of the others.
        let places = Semaphore::new(IN_FLIGHT);
        let writes = changes.into_iter().map(async |change| {
            spread(&change).await;
            let _place = places.acquire().await;
            self.shared.write_in_time(change).await
        });
        let written = futures::future::join_all(writes).await;
        self.shared.publish();
        written
    }

    /// Lists without a resource version, so that the API server reads its database; the watches may lag behind, or be interrupted.
    async fn refresh(&self) -> Result<(), String> {
        let api: Api<events::Object> =
            Api::all_with(self.shared.client.clone(), &self.shared.resource);
        let lists = events::SCOPES.map(async |scope| {
            let selected =
                ListParams::default().labels(&events::selector(scope, &self.shared.node));
            answers::within(REQUEST, api.list(&selected)).await
        });
        for list in futures::future::join_all(lists).await {
            let list = list.map_err(|failure| failure.describe())?;
            for object in list.items.into_iter().filter_map(|object| object.0.ok()) {
                self.shared.observe(object);
            }
        }
        self.shared.publish();
        Ok(())
    }

    fn batch(&self) -> usize {
        IN_FLIGHT.saturating_mul(4)
    }

    fn has_other_nodes(&self) -> bool {
        true
    }

    async fn count_nodes(&self) -> Option<usize> {
        let count = nodes::count(&Api::all(self.shared.client.clone())).await;
        count.and_then(|count| usize::try_from(count).ok())
    }

    fn collects_garbage(&self) -> bool {
        true
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No holder of the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the API of Instances in a namespace.
    fn api(&self, namespace: &str) -> Api<events::Object> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resource)
    }

    /// Publishes the current state; includes Instances only once all watches have completed their first list.
    fn publish(&self) {
        let state = self.state();
        let is_read = state.unread.is_empty();
        let instances = state.view.instances();
        let interrupted = state.interrupted.values().flatten().next();
        state.set.send_if_modified(|shown| {
            let is_news = is_read && (!shown.complete || shown.instances != *instances);
            if !is_news && shown.interrupted.as_ref() == interrupted {
                return false;
            }
            let mut next = if is_news {
                InstanceSet::read(instances.clone())
            } else {
                InstanceSet::clone(shown)
            };
            next.interrupted = interrupted.cloned();
            *shown = Arc::new(next);
            true
        });
    }

    /// Records that a watch works, or why it does not.
    fn interrupted(&self, scope: Scope, why: Option<String>) {
        self.state().interrupted.insert(scope, why);
    }

    /// Takes an object into the view; returns it with the fields that the API server has dropped.
    fn observe(&self, object: InstanceObject) -> Arc<Instance> {
        let mut instance = instance::into_instance(object);
        let mut state = self.state();
        if instance.spec.leafhost.is_none()
            && let Some(pruned) = state.pruned.get(&instance.metadata.uid)
        {
            pruned.clone().swap(&mut instance);
        }
        state.view.observe(instance.clone());
        Arc::new(instance)
    }

    /// Takes the answer to a write of `sent` into the view. Fields that the definition lacks are kept here, or they would be written again
    /// and again.
    fn saw_written(&self, object: InstanceObject, mut sent: Instance) -> Arc<Instance> {
        if sent.spec.leafhost.is_some() && object.spec.leafhost.is_none() {
            let mut pruned = Pruned::default();
            pruned.swap(&mut sent);
            let uid = object.metadata.uid.clone().unwrap_or_default();
            let mut state = self.state();
            if state.pruned.is_empty() {
                tracing::warn!(
                    "the definition of Instances is Akri's: spec.leafhost and status are not stored; apply what leafhost crds prints"
                );
            }
            state.pruned.insert(uid, pruned);
        }
        self.observe(object)
    }

    fn observe_deletion(&self, key: &InstanceKey, uid: &str) {
        let mut state = self.state();
        state.pruned.remove(uid);
        state.view.observe_deletion(key, uid);
    }

    /// Records that an object has lost its label or is gone, without asking which.
    fn observe_leave(&self, key: &InstanceKey, uid: &str, version: u64) {
        let mut state = self.state();
        state.pruned.remove(uid);
        state.view.observe_leave(key, uid, version);
    }

    async fn write_in_time(&self, change: Change) -> Written {
        let key = change.key();
        let written = async {
            match change {
                Change::Create(instance) => self.create(&key, *instance).await,
                Change::Update { uid, edits, .. } => self.update(&key, &uid, &edits).await,
                Change::Delete {
                    uid,
                    resource_version,
                    ..
                } => self.delete(&key, uid, resource_version).await,
            }
        };
        let written = tokio::time::timeout(CHANGE, written).await;
        written.unwrap_or_else(|_| Err(store_error(&Failure::silent(CHANGE), &key)))
    }

    async fn create(&self, key: &InstanceKey, instance: Instance) -> Written {
        let found = self.state().view.instances().get(key).cloned();
        if found.is_some() {
            let key = key.clone();
            return Err(StoreError::AlreadyExists { key, found });
        }
        let (node, device) = (instance.spec.nodes.clone(), instance.spec.leafhost.clone());
        let params = put_by(MANAGER);
        let object = instance::from_instance(instance.clone());
        let api: Api<InstanceObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &self.resource);
        let failure = match answers::within(REQUEST, api.create(&params, &object)).await {
            Ok(object) => return Ok(Some(self.saw_written(object, instance))),
            Err(failure) => failure,
        };
        if failure.kind != Kind::Taken && !failure.may_be_done() {
            return Err(store_error(&failure, key));
        }
        let found = self.look(key).await.ok().flatten();
        if failure.kind == Kind::Taken {
            let key = key.clone();
            return Err(StoreError::AlreadyExists { key, found });
        }
        // No answer came; an Instance with this node and this device is the one that the request created.
        match found {
            Some(found) if found.spec.nodes == node && found.spec.leafhost == device => {
                Ok(Some(found))
            }
            _ => Err(store_error(&failure, key)),
        }
    }

    /// Writes the edits based on the known object; if that is outdated, once more based on the current one.
    async fn update(&self, key: &InstanceKey, uid: &str, edits: &[Edit]) -> Written {
        let known = self.state().view.instances().get(key).cloned();
        let known = match known {
            Some(known) => Some(known),
            None => self
                .look(key)
                .await
                .map_err(|failure| store_error(&failure, key))?,
        };
        let mut base = known.ok_or_else(|| StoreError::Gone { key: key.clone() })?;
        for edit in edits {
            if let Edit::Owner(owner) = edit
                && !self.has_owner(key, owner).await?
            {
                return Err(StoreError::Conflict { key: key.clone() });
            }
        }
        let mut is_second = false;
        loop {
            if base.metadata.uid != uid {
                return Err(StoreError::Gone { key: key.clone() });
            }
            let failure = match self.patch(key, &base, edits).await {
                Ok(written) => return Ok(Some(written)),
                Err(failure) => failure,
            };
            if failure.is_missing() {
                self.observe_deletion(key, uid);
            }
            if !failure.is_conflict() && !failure.may_be_done() {
                return Err(store_error(&failure, key));
            }
            let found = match self.look(key).await {
                Ok(Some(found)) => found,
                Ok(None) => return Err(StoreError::Gone { key: key.clone() }),
                Err(_) => return Err(store_error(&failure, key)),
            };
            if found.metadata.uid == uid && edits.iter().all(|edit| edit.is_made(&found)) {
                return Ok(Some(found));
            }
            let is_news = found.metadata.resource_version != base.metadata.resource_version;
            if is_second || !is_news || failure.may_be_done() {
                return Err(store_error(&failure, key));
            }
            is_second = true;
            base = found;
        }
    }

    /// Returns true if the owning Configuration exists and is not being deleted. Garbage collection deletes an Instance whose owner does
    /// not exist, and an agent may see another node's write earlier than the Configuration that caused it.
    async fn has_owner(
        &self,
        key: &InstanceKey,
        owner: &OwnerReference,
    ) -> Result<bool, StoreError> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &manifest::resource());
        let found = answers::within(REQUEST, api.get_metadata_opt(&owner.name)).await;
        let found = found.map_err(|failure| store_error(&failure, key))?;
        Ok(found.is_some_and(|found| {
            let metadata = found.metadata;
            metadata.uid.as_ref() == Some(&owner.uid) && metadata.deletion_timestamp.is_none()
        }))
    }

    async fn patch(
        &self,
        key: &InstanceKey,
        base: &Instance,
        edits: &[Edit],
    ) -> Result<Arc<Instance>, Failure> {
        let mut sent = base.clone();
        if edits.iter().any(|edit| edit.apply(&mut sent).is_err()) {
            return Err(outdated());
        }
        let mut stored = base.clone();
        if self.state().pruned.contains_key(&base.metadata.uid) {
            Pruned::default().swap(&mut stored);
        }
        let operations = patch::of(&stored, edits);
        let api = self.api(&key.namespace);
        let object = instance::write(&api, base, operations, MANAGER).await?;
        // The write succeeded, whether the answer can be read or not.
        let object = object.0.unwrap_or_else(|unreadable| InstanceObject {
            metadata: unreadable.metadata,
            ..instance::from_instance(sent.clone())
        });
        let answer = self.saw_written(object, sent);
        if version(&answer) < version(base) {
            self.restored.send_modify(|signs| *signs += 1);
        }
        Ok(answer)
    }

    async fn delete(&self, key: &InstanceKey, uid: String, resource_version: String) -> Written {
        let params = delete_only(Some(uid.clone()), Some(resource_version));
        let api = self.api(&key.namespace);
        let failure = match answers::within(REQUEST, api.delete(&key.name, &params)).await {
            Err(failure) if !failure.is_missing() => failure,
            _ => {
                self.observe_deletion(key, &uid);
                return Ok(None);
            }
        };
        if failure.is_conflict() || failure.may_be_done() {
            let found = self.look(key).await;
            if let Ok(found) = found
                && found.is_none_or(|found| found.metadata.uid != uid)
            {
                self.observe_deletion(key, &uid);
                return Ok(None);
            }
        }
        Err(store_error(&failure, key))
    }

    /// Reads one object and takes it into the view.
    async fn look(&self, key: &InstanceKey) -> Result<Option<Arc<Instance>>, Failure> {
        match answers::within(REQUEST, self.api(&key.namespace).get_opt(&key.name)).await? {
            Some(DeserializeGuard(Ok(object))) => Ok(Some(self.observe(object))),
            Some(DeserializeGuard(Err(unreadable))) => {
                let why = format!("cannot read the existing object: {}", unreadable.error);
                Err(Failure::new(Kind::Failed, why))
            }
            None => Ok(None),
        }
    }
}
