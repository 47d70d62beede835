//! The cluster as the controller sees it: its nodes, all Instances, and what pods ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryFutureExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Client, ResourceExt as _};
use leafhost_core::cluster::{Cluster, NodeSet, NodeState, ReadError};
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::GROUP;
use leafhost_core::ports::{Change, InstanceSet, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::instances::errors::{self, Failure};
use crate::instances::object::{self, InstanceObject, api_resource};
use crate::instances::patch;
use crate::lease;
use crate::watch::{self as watching, Watch};

/// The Lease of the controllers, and the manager of the fields that they write.
const NAME: &str = "leafhost-controller";
/// An operator says with it that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The cluster.
pub struct KubeCluster {
    client: Client,
    leads: watch::Receiver<bool>,
    nodes: watch::Receiver<Arc<NodeSet>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    /// Ends with this.
    _tasks: JoinSet<()>,
}

impl KubeCluster {
    /// Watches it. `holder` names this process among those that want the Lease in `namespace`.
    pub fn watch(client: &Client, namespace: &str, holder: String) -> Self {
        let mut tasks = JoinSet::new();
        let (lead, leads) = watch::channel(false);
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        tasks.spawn(lease::hold(leases, NAME.to_owned(), holder, lead));
        let (node_sender, nodes) = watch::channel(Arc::default());
        tasks.spawn(follow_nodes(Api::all(client.clone()), node_sender));
        let (instance_sender, instances) = watch::channel(Arc::default());
        let api = Api::all_with(client.clone(), &api_resource());
        tasks.spawn(follow_instances(api, instance_sender));
        Self {
            client: client.clone(),
            leads,
            nodes,
            instances,
            _tasks: tasks,
        }
    }
}

#[async_trait]
impl Cluster for KubeCluster {
    fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>> {
        self.nodes.clone()
    }

    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.instances.clone()
    }

    async fn has_node(&self, name: &str) -> Result<bool, ReadError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = errors::within(nodes.get_metadata_opt(name)).await;
        found
            .map(|node| node.is_some())
            .map_err(|failure| read_error(format!("Node {name}"), &failure))
    }

    async fn requested(&self, node: &str) -> Result<BTreeSet<String>, ReadError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let selector = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let params = ListParams::default().fields(&selector);
        let listed = errors::within(pods.list(&params)).await;
        let listed =
            listed.map_err(|failure| read_error(format!("the pods of node {node}"), &failure))?;
        Ok(listed.iter().flat_map(resources).collect())
    }

    async fn write(&self, base: &Instance, change: &Change) -> Result<(), StoreError> {
        let key = change.key();
        let api: Api<InstanceObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &api_resource());
        let done = match change {
            Change::Update { edits, .. } => {
                let patch =
                    patch::of(base, edits).and_then(|patch| serde_json::from_value(patch).ok());
                let patch: Patch<()> =
                    Patch::Json(patch.ok_or_else(|| StoreError::Conflict { key: key.clone() })?);
                let params = PatchParams {
                    field_manager: Some(NAME.to_owned()),
                    ..PatchParams::default()
                };
                errors::within(api.patch(&key.name, &params, &patch).map_ok(drop)).await
            }
            Change::Delete {
                uid,
                resource_version,
                ..
            } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        resource_version: Some(resource_version.clone()),
                        uid: Some(uid.clone()),
                    }),
                    ..DeleteParams::default()
                };
                errors::within(api.delete(&key.name, &params).map_ok(drop)).await
            }
            Change::Create(_) => Ok(()),
        };
        done.map_err(|failure| failure.for_key(&key))
    }
}

fn read_error(what: String, failure: &Failure) -> ReadError {
    let why = match failure {
        Failure::Denied(message) | Failure::Unknown(message) | Failure::Unavailable(message, _) => {
            message.clone()
        }
        Failure::NotFound | Failure::Conflict | Failure::AlreadyExists => {
            "it is not there".to_owned()
        }
    };
    ReadError { what, why }
}

/// The resources of ours that a pod asks for.
fn resources(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else {
        return BTreeSet::new();
    };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let limits = |container: &Container| container.resources.as_ref()?.limits.clone();
    let names = containers.filter_map(limits).flat_map(BTreeMap::into_keys);
    let is_ours = |name: &String| {
        name.split_once('/')
            .is_some_and(|(domain, _)| domain == GROUP)
    };
    names.filter(is_ours).collect()
}

fn state(node: &Node) -> NodeState {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_out =
        taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == OUT_OF_SERVICE));
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
    // A node that has not reported yet is as old as its object.
    let since = match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => ready.last_transition_time.clone(),
        None => node.metadata.creation_timestamp.clone(),
    };
    NodeState {
        is_out_of_service: is_out,
        not_ready_since: since.map(|time| time.0),
    }
}

async fn follow_nodes(api: Api<Node>, sender: watch::Sender<Arc<NodeSet>>) {
    let mut watch = Watch::new(api);
    let (mut nodes, mut listed) = (BTreeMap::new(), BTreeMap::new());
    let mut complete = false;
    loop {
        match watch.next().await {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => drop(listed.insert(node.name_any(), state(&node))),
            Ok(Event::InitDone) => {
                nodes = std::mem::take(&mut listed);
                complete = true;
            }
            Ok(Event::Apply(node)) => drop(nodes.insert(node.name_any(), state(&node))),
            Ok(Event::Delete(node)) => drop(nodes.remove(&node.name_any())),
            Err(failure) => warn("Nodes", &failure),
        }
        if complete {
            let nodes = nodes.clone();
            crate::publish(&sender, NodeSet { complete, nodes });
        }
    }
}

/// An object, or why it cannot be read.
type Object = DeserializeGuard<InstanceObject>;

async fn follow_instances(api: Api<Object>, sender: watch::Sender<Arc<InstanceSet>>) {
    let mut watch = Watch::new(api);
    let mut instances: BTreeMap<InstanceKey, Arc<Instance>> = BTreeMap::new();
    let mut listed = BTreeMap::new();
    let mut complete = false;
    // What cannot be read is nothing that an agent wrote.
    let read = |object: Object| {
        let instance = object::into_instance(object.0.ok()?);
        Some((instance.key(), Arc::new(instance)))
    };
    loop {
        match watch.next().await {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.extend(read(object)),
            Ok(Event::InitDone) => {
                instances = std::mem::take(&mut listed);
                complete = true;
            }
            Ok(Event::Apply(object)) => instances.extend(read(object)),
            Ok(Event::Delete(object)) => {
                let key = InstanceKey {
                    namespace: object.namespace().unwrap_or_default(),
                    name: object.name_any(),
                };
                instances.remove(&key);
            }
            Err(failure) => warn("Instances", &failure),
        }
        if complete {
            crate::publish(&sender, InstanceSet::read(instances.clone()));
        }
    }
}

fn warn(what: &str, failure: &watching::Failure) {
    let error = &failure.message;
    tracing::warn!(
        error,
        "{what} cannot be watched; the controller tries again"
    );
}
