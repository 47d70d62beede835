//! The cluster as the controller sees it: nodes, all Instances, and the resources that pods ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::api::{Api, ListParams, Patch};
use kube::core::DeserializeGuard;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Resource as _, ResourceExt as _};
use leafhost_core::cluster::{
    Cluster, ClusterViews, Deleting, DeletingKind, EvictionError, NodeLabels, NodeSet, NodeState,
    PodState,
};
use leafhost_core::instance::{Edit, Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::resource_names::{NameSet, ResourceNames};
use leafhost_core::scheduling::{DEVICES, PodKey};
use leafhost_core::slot::{claim_key, pod_key};
use leafhost_core::status_store::WriteError;
use leafhost_core::tasks::Tasks;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;

use crate::answers::{self, Failure, Kind};
use crate::controller::{classes, pools};
use crate::index::follow;
use crate::instance::{self, InstanceObject, REQUEST, api_resource, patch};
use crate::lease;
use crate::nodes::{hostname, state};
use crate::requests::delete_only;
use crate::watch::Watch;

mod agents;
mod clear;
mod finalizers;
mod labels;
mod names;
mod pods;
mod statuses;

pub use clear::clear;
use finalizers::Finalizers;

/// Name of the controllers' Lease, and field manager of their writes.
pub(crate) const NAME: &str = "leafhost-controller";

/// An Instance, and its state of deletion.
type Read = (Arc<Instance>, Option<Deleting>);

/// State of a node, its hostname, and its labels.
type ReadNode = (NodeState, Option<String>, NodeLabels);

/// Watched cluster.
pub struct KubeCluster {
    client: Client,
    views: ClusterViews,
    recorder: Recorder,
}

impl KubeCluster {
    /// Watches the cluster. `holder` identifies this process as a candidate for the Lease in `namespace`. If `agents` is a label selector,
    /// the reports of nodes without a running pod that it selects no longer count. The end of `tasks` releases the Lease so that another
    /// controller acts at once; nothing may be written after that.
    pub fn watch(
        client: &Client,
        namespace: &str,
        holder: String,
        agents: Option<&str>,
        tasks: &mut Tasks,
    ) -> Self {
        let reporter = Reporter {
            controller: NAME.to_owned(),
            instance: Some(holder.clone()),
        };
        let (lead, leads) = watch::channel(false);
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let held = lease::hold(leases, NAME.to_owned(), holder, lead, tasks.stop.clone());
        tasks.add("Lease", held);
        let (sender, nodes) = watch::channel(Arc::default());
        let (hostname_sender, hostnames) = watch::channel(None);
        let (label_sender, node_labels) = watch::channel(Arc::default());
        let publish = move |all: &BTreeMap<String, ReadNode>| {
            let nodes = all.iter().map(|(name, (state, ..))| (name.clone(), *state));
            let nodes = nodes.collect();
            let complete = true;
            crate::publish(&sender, NodeSet { complete, nodes });
            let named = all.iter();
            let named =
                named.filter_map(|(name, (_, host, _))| Some((name.clone(), host.clone()?)));
            let named: BTreeMap<_, _> = named.collect();
            crate::publish(&hostname_sender, Some(Arc::new(named)));
            let labels = all.iter();
            let labels = labels.map(|(name, (.., labels))| (name.clone(), labels.clone()));
            let labels: BTreeMap<_, _> = labels.collect();
            crate::publish(&label_sender, labels);
        };
        let read = |node: Node, _: Option<&_>| {
            let labels = labels::read(&node);
            Some((state(&node), hostname(&node), labels))
        };
        let all = Watch::new(Api::all(client.clone()));
        let following = follow(all, "Nodes", Node::name_any, read, publish);
        tasks.add_loop("watch of Nodes", following);
        let finalizers = Finalizers::default();
        let (shown, deleting) = (finalizers.clone(), finalizers.deleting());
        let (sender, instances) = watch::channel(Arc::default());
        let publish = move |all: &BTreeMap<InstanceKey, Read>| {
            shown.show(DeletingKind::Instance, all.values().map(|(_, one)| one));
            let all = all.iter();
            let all = all.map(|(key, (instance, _))| (key.clone(), Arc::clone(instance)));
            crate::publish(&sender, InstanceSet::read(all.collect()));
        };
        let read = |object: DeserializeGuard<InstanceObject>, _: Option<&Read>| {
            let deleting = finalizers::deleting(DeletingKind::Instance, object.meta());
            Some((instance::read(object)?, deleting))
        };
        let all = Watch::new(Api::all_with(client.clone(), &api_resource()));
        let following = follow(all, "Instances", instance::key, read, publish);
        tasks.add_loop("watch of Instances", following);
        let (configurations, manifests) =
            statuses::follow_configurations(client, finalizers, tasks);
        let mut reports = statuses::follow_reports(client, tasks);
        if let Some(selector) = agents {
            let (place, leading) = ((namespace, selector), leads.clone());
            reports = agents::watch(client, place, reports, leading, tasks);
        }
        let (sender, names) = watch::channel(Arc::default());
        let remembered = ResourceNames::default();
        let publish = move |set: NameSet| _ = crate::publish(&sender, set);
        let following = crate::names::follow(client.clone(), remembered, publish);
        tasks.add_loop("watch of names", following);
        let (sender, device_classes) = watch::channel(Arc::default());
        let views = ClusterViews {
            leads,
            nodes,
            node_labels,
            instances,
            configurations,
            manifests,
            reports,
            names,
            classes: device_classes,
            deleting,
        };
        let keeping = classes::keep(client.clone(), views.clone(), sender);
        tasks.add_loop("DeviceClasses", keeping);
        let keeping = pools::keep(client.clone(), views.clone(), hostnames);
        tasks.add_loop("slices of shared devices", keeping);
        Self {
            client: client.clone(),
            views,
            recorder: Recorder::new(client.clone(), reporter),
        }
    }
}

#[async_trait]
impl Cluster for KubeCluster {
    fn views(&self) -> ClusterViews {
        self.views.clone()
    }

    async fn set_finalizers(
        &self,
        object: &Deleting,
        finalizers: &[String],
    ) -> Result<(), WriteError> {
        finalizers::set(&self.client, object, finalizers).await
    }

    async fn node(&self, name: &str) -> Result<Option<NodeState>, String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = answers::within(REQUEST, nodes.get_opt(name)).await;
        found
            .map(|node| node.as_ref().map(state))
            .map_err(|failure| unread(&format!("Node {name}"), &failure))
    }

    async fn requested(&self, node: &str) -> Result<BTreeSet<String>, String> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let selector = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let params = ListParams::default().fields(&selector);
        let listed = answers::within(REQUEST, pods.list(&params)).await;
        let listed =
            listed.map_err(|failure| unread(&format!("the pods of node {node}"), &failure))?;
        Ok(listed.iter().flat_map(requests).collect())
    }

    async fn write(&self, base: &Instance, change: &Change) -> Result<(), WriteError> {
        let key = change.key();
        let api: Api<InstanceObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &api_resource());
        let done = match change {
            Change::Update { edits, .. } => {
                let operations = patch::of_version(base, edits);
                let written = instance::write(&api, base, operations, NAME).await;
                written.map(drop)
            }
            Change::Delete {
                uid,
                resource_version,
                ..
            } => delete(&api, base, uid, resource_version).await,
            Change::Create(_) => Ok(()),
        };
        done.map_err(|failure| write_error(&failure))
    }

    async fn pod(&self, key: &PodKey) -> Result<Option<PodState>, EvictionError> {
        pods::read(&self.client, key).await
    }

    async fn evict(&self, key: &PodKey, uid: &str) -> Result<(), EvictionError> {
        pods::evict(&self.client, key, uid).await
    }

    async fn label_node(&self, node: &str, labels: &BTreeSet<String>) -> Result<(), WriteError> {
        labels::set(&self.client, node, labels).await
    }
}

/// Removes the nodes from an Instance, then deletes it: the policies allow the controller to delete only an Instance that no node sees.
async fn delete(
    api: &Api<InstanceObject>,
    base: &Instance,
    uid: &str,
    resource_version: &str,
) -> Result<(), Failure> {
    let mut version = Some(resource_version.to_owned());
    let nodes = base.spec.nodes.iter();
    let edits: Vec<Edit> = nodes.cloned().map(Edit::RemoveNode).collect();
    if !edits.is_empty() {
        let operations = patch::of_version(base, &edits);
        let left = instance::write(api, base, operations, NAME).await?;
        version = left.metadata.resource_version;
    }
    let params = delete_only(Some(uid.to_owned()), version);
    answers::within(REQUEST, api.delete(&base.metadata.name, &params))
        .await
        .map(drop)
}

fn unread(what: &str, failure: &Failure) -> String {
    let why = failure.describe();
    format!("cannot read {what}: {why}; the controller tries again")
}

/// Converts a failure to a write error.
fn write_error(failure: &Failure) -> WriteError {
    let (message, retry_after) = (failure.describe(), failure.retry_after);
    match failure.kind {
        Kind::Taken | Kind::Conflict | Kind::Mismatch | Kind::Missing | Kind::NoNamespace => {
            WriteError::Outdated
        }
        Kind::Undefined | Kind::Denied | Kind::Refused => WriteError::Denied(message),
        _ => WriteError::NoAnswer {
            message,
            retry_after: retry_after.filter(|_| !failure.may_be_done()),
        },
    }
}

/// Builds a patch of one field that applies only if the object is unchanged.
fn edit(
    uid: &str,
    version: &str,
    path: &str,
    value: impl Serialize,
) -> Result<Patch<()>, WriteError> {
    let edits = serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": path, "value": value},
    ]));
    edits
        .map(Patch::Json)
        .map_err(|error| WriteError::Denied(error.to_string()))
}

/// Awaits a write and converts its failure.
async fn written<T>(request: impl Future<Output = kube::Result<T>>) -> Result<(), WriteError> {
    let answer = answers::within(REQUEST, request).await;
    answer.map(drop).map_err(|failure| write_error(&failure))
}

/// Returns the resources of this API group that a pod asks for, its claims, and the pod itself if a scheduler assigns devices to it.
fn requests(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else {
        return BTreeSet::new();
    };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let limits = |container: &Container| container.resources.as_ref()?.limits.clone();
    let names = containers.filter_map(limits).flat_map(BTreeMap::into_keys);
    let names: Vec<String> = names.collect();
    let scheduled = names.iter().any(|name| name == DEVICES);
    let scheduled = pod.uid().filter(|_| scheduled);
    let own = spec.resource_claims.iter().flatten();
    let own = own.filter_map(|claim| claim.resource_claim_name.clone());
    let status = pod.status.as_ref();
    let made = status.into_iter().flat_map(|status| {
        let claims = status.resource_claim_statuses.iter().flatten();
        let extended = status.extended_resource_claim_status.iter();
        let extended = extended.map(|claim| claim.resource_claim_name.clone());
        let claims = claims.filter_map(|claim| claim.resource_claim_name.clone());
        claims.chain(extended).collect::<Vec<_>>()
    });
    let namespace = pod.namespace().unwrap_or_default();
    let claims = own.chain(made).map(|name| claim_key(&namespace, &name));
    let names = names.into_iter().filter(|name| labels::is_ours(name));
    let scheduled = scheduled.map(|uid| pod_key(&uid));
    names.chain(claims).chain(scheduled).collect()
}
