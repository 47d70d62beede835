//! The cluster as a scheduler extender sees and changes it: all Instances, the pods that ask for devices, locks of Nodes, Bindings, Events.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference};
use kube::Client;
use kube::api::{Api, Patch};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use leafhost_core::instance::{Edit, Instance, InstanceKey};
use leafhost_core::ports::{StoreError, Written};
use leafhost_core::resource_names::{NameSet, ResourceNames};
use leafhost_core::scheduling::{
    ALLOCATED, BindingArgs, Cluster, Given, NodeSeen, Observer, Pod, PodError, PodKey, TRIED_AGAIN,
};
use leafhost_core::tasks::Tasks;
use serde_json::{Value, json};

use crate::answers::{self, Failure, Kind};
use crate::instance::{
    self, InstanceObject, REQUEST, api_resource, into_instance, patch, store_error,
};
use crate::node_lock;
use crate::requests::{patch_by, put_by, reference};

pub mod extender;
mod once;
mod watches;

pub use once::read as read_once;
use watches::PodObject;

/// Field manager of the extender's writes.
const MANAGER: &str = "leafhost-scheduler";

/// Cluster of a scheduler extender, reached through the API server.
pub struct KubeScheduling {
    client: Client,
    recorder: Recorder,
    observer: OnceLock<Weak<dyn Observer>>,
}

impl KubeScheduling {
    /// Creates a cluster that uses `client`, which must not retry requests by itself.
    pub fn new(client: &Client) -> Self {
        let reporter = Reporter::from(MANAGER);
        Self {
            client: client.clone(),
            recorder: Recorder::new(client.clone(), reporter),
            observer: OnceLock::new(),
        }
    }

    /// Adds the watches that inform `observer` of all Instances, of the owners of names, and of the pods that ask for devices, for any scheduler.
    pub fn watch(&self, observer: &Arc<dyn Observer>, tasks: &mut Tasks) {
        // Held weakly, because the observer itself may hold this cluster.
        drop(self.observer.set(Arc::downgrade(observer)));
        let all = Api::all_with(self.client.clone(), &api_resource());
        let following = watches::instances(all, Arc::clone(observer));
        tasks.add_loop("watch of Instances", following);
        let pods = Api::all_with(self.client.clone(), &watches::pods());
        let following = watches::follow_pods(pods, Arc::clone(observer));
        tasks.add_loop("watch of pods", following);
        let observer = Arc::clone(observer);
        let publish = move |set: NameSet| observer.names(set.names);
        let none = ResourceNames::default();
        let following = crate::names::follow(self.client.clone(), none, publish);
        tasks.add_loop("watch of names", following);
    }

    /// Adds the watch that informs `observer` of the locks of all Nodes.
    pub fn watch_nodes(&self, observer: &Arc<dyn Observer>, tasks: &mut Tasks) {
        let all = Api::all(self.client.clone());
        let following = watches::nodes(all, Arc::clone(observer));
        tasks.add_loop("watch of Nodes", following);
    }

    fn observe(&self, instance: &Arc<Instance>) {
        if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
            observer.instance(Arc::clone(instance));
        }
    }

    fn instances(&self, namespace: &str) -> Api<InstanceObject> {
        Api::namespaced_with(self.client.clone(), namespace, &api_resource())
    }

    fn pods(&self, namespace: &str) -> Api<PodObject> {
        Api::namespaced_with(self.client.clone(), namespace, &watches::pods())
    }

    async fn edit_one(&self, base: Arc<Instance>, edits: Vec<Edit>) -> Written {
        let key = base.key();
        let api = self.instances(&key.namespace);
        let operations = patch::of(&base, &edits);
        let failure = match instance::write(&api, &base, operations, MANAGER).await {
            Ok(object) => {
                let instance = Arc::new(into_instance(object));
                return Ok(Some(instance));
            }
            Err(failure) => failure,
        };
        if !failure.is_conflict() && !failure.may_be_done() {
            return Err(store_error(&failure, &key));
        }
        // The newest state shows whether the edits were applied and what can be done next.
        let found = answers::within(REQUEST, api.get_opt(&key.name)).await;
        let Ok(found) = found else {
            return Err(store_error(&failure, &key));
        };
        let Some(found) = found.map(|object| Arc::new(into_instance(object))) else {
            return Err(StoreError::Gone { key });
        };
        self.observe(&found);
        let is_same = found.metadata.uid == base.metadata.uid;
        if is_same && edits.iter().all(|edit| edit.is_made(&found)) {
            return Ok(Some(found));
        }
        Err(store_error(&failure, &key))
    }
}

fn pod_error(failure: &Failure) -> PodError {
    match failure.kind {
        Kind::Missing | Kind::NoNamespace => PodError::Failed("the pod is gone".to_owned()),
        Kind::Taken
        | Kind::Conflict
        | Kind::Mismatch
        | Kind::Denied
        | Kind::Refused
        | Kind::Undefined => PodError::Failed(failure.message.clone()),
        Kind::Busy | Kind::Unreachable => PodError::Failed(failure.describe()),
        Kind::Failed | Kind::Lost | Kind::Unreadable => PodError::Unknown(failure.describe()),
    }
}

#[async_trait]
impl Cluster for KubeScheduling {
    async fn pod(&self, key: &PodKey) -> Result<Option<Pod>, PodError> {
        let api = self.pods(&key.namespace);
        let found = answers::within(REQUEST, api.get_opt(&key.name)).await;
        let found = found.map_err(|failure| pod_error(&failure))?;
        Ok(found.map(watches::pod))
    }

    async fn bind(&self, target: &BindingArgs, given: &Given) -> Result<(), PodError> {
        let text = serde_json::to_string(given).unwrap_or_default();
        let binding = Binding {
            metadata: kube::api::ObjectMeta {
                name: Some(target.pod_name.clone()),
                namespace: Some(target.pod_namespace.clone()),
                // Makes the binding of another pod with the same name fail.
                uid: Some(target.uid.clone()),
                annotations: Some(BTreeMap::from([(ALLOCATED.to_owned(), text)])),
                ..kube::api::ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(target.node.clone()),
                ..ObjectReference::default()
            },
        };
        let api = self.pods(&target.pod_namespace);
        let (name, params) = (&target.pod_name, put_by(MANAGER));
        let bound = api.create_subresource::<_, Value>("binding", name, &params, &binding);
        let bound = answers::within(REQUEST, bound).await;
        bound.map(drop).map_err(|failure| pod_error(&failure))
    }

    async fn try_again(&self, pod: &PodKey, uid: &str) -> Result<(), PodError> {
        let annotations = json!({TRIED_AGAIN: Timestamp::now().to_string()});
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let (api, params) = (self.pods(&pod.namespace), patch_by(MANAGER));
        let patch = Patch::Merge(&patch);
        // Written through the status, because whoever may patch pods may run any image.
        let written = api.patch_status(&pod.name, &params, &patch);
        let written = answers::within(REQUEST, written).await;
        written.map(drop).map_err(|failure| pod_error(&failure))
    }

    async fn set_lock(
        &self,
        node: &str,
        version: &str,
        lock: Option<&str>,
    ) -> Result<Option<NodeSeen>, PodError> {
        let nodes = Api::all(self.client.clone());
        let written = node_lock::set(&nodes, node, version, lock, MANAGER).await;
        written.map_err(|failure| pod_error(&failure))
    }

    async fn record_event(&self, pod: &BindingArgs, reason: &str, message: &str, is_warning: bool) {
        let place = (&*pod.pod_namespace, &*pod.pod_name);
        let regarding = reference("v1", "Pod", place, &pod.uid);
        let event = Event {
            type_: if is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(message.chars().take(1_000).collect()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        let published = answers::within(REQUEST, self.recorder.publish(&event, &regarding)).await;
        if let Err(failure) = published {
            tracing::debug!(pod = %pod.key(), error = failure.message, "cannot write an Event");
        }
    }

    async fn instance(&self, key: &InstanceKey) -> Result<Option<Arc<Instance>>, PodError> {
        let api = self.instances(&key.namespace);
        let found = answers::within(REQUEST, api.get_opt(&key.name)).await;
        let found = found.map_err(|failure| pod_error(&failure))?;
        Ok(found.map(|object| Arc::new(into_instance(object))))
    }

    async fn edit(&self, edits: Vec<(Arc<Instance>, Vec<Edit>)>) -> Vec<Written> {
        let all = edits
            .into_iter()
            .map(|(base, edits)| self.edit_one(base, edits));
        futures::future::join_all(all).await
    }
}
