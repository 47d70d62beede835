//! Vocabulary of scheduling by devices: requests of pods, annotations that a scheduler writes, and the ports through which it sees and changes the
//! cluster.
//!
//! Knows neither expressions nor how devices are chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::watch;

use crate::instance::{Edit, Instance, InstanceKey};
use crate::ports::Written;
use crate::resource_names::ResourceNames;

/// Annotation of a pod with the requirements for its devices by container; also the resource with which a container asks for them.
pub const DEVICES: &str = "leafhost.dev/devices";
/// Annotation in which a scheduler names the Instances that a pod was given, by container.
pub const ALLOCATED: &str = "leafhost.dev/allocated-devices";
/// Annotation that a scheduler writes so that a pending pod is tried again.
pub const TRIED_AGAIN: &str = "leafhost.dev/tried-again";

/// Maximum number of bytes kept of the annotation [`DEVICES`]; more than the allowed length.
const MOST_TEXT: usize = 20 << 10;
/// Annotation of a Node that names the pod that is bound to it and has not got its devices yet, if schedulers lock nodes.
pub const NODE_LOCK: &str = "leafhost.dev/node-lock";

/// Namespace and name of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
}

impl PodKey {
    /// Parses `namespace/name`.
    pub fn read(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Lock of a node for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLock {
    /// RFC 3339 time of the lock. Nothing depends on it, because clocks differ.
    pub since: String,
    /// Pod that holds the lock.
    pub pod: PodKey,
    /// Uid of the pod.
    pub uid: String,
}

impl NodeLock {
    /// Parses `TIME,NAMESPACE,NAME,UID`.
    pub fn read(text: &str) -> Option<Self> {
        let mut fields = text.split(',').map(str::to_owned);
        let mut field = || fields.next().filter(|field| !field.is_empty());
        let lock = Self {
            since: field()?,
            pod: PodKey {
                namespace: field()?,
                name: field()?,
            },
            uid: field()?,
        };
        fields.next().is_none().then_some(lock)
    }
}

impl std::fmt::Display for NodeLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PodKey { namespace, name } = &self.pod;
        write!(f, "{},{namespace},{name},{}", self.since, self.uid)
    }
}

/// Connection of an agent to the lock of its node.
#[derive(Debug, Clone)]
pub struct LockPort {
    /// Receives the current lock of the node.
    pub locked: watch::Receiver<Option<NodeLock>>,
    /// Sends the uids of pods that no longer need the lock, because they have their devices or will not get them.
    pub done: watch::Sender<BTreeSet<String>>,
}

/// Lock annotation of a Node as it was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// Resource version of the Node.
    pub version: String,
    /// Value of the annotation [`NODE_LOCK`]; empty without one.
    pub lock: String,
}

/// Pod that asks for devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name of the pod.
    pub key: PodKey,
    /// Uid of the pod.
    pub uid: String,
    /// Node that the pod is bound to; empty while it waits.
    pub node: String,
    /// Raw text of the annotation [`DEVICES`].
    pub devices: String,
    /// Containers of the pod, init containers first.
    pub containers: Vec<Container>,
    /// True once the pod has succeeded or failed, so that no container runs any more.
    pub has_ended: bool,
    /// True while scheduling gates hold the pod back.
    pub is_gated: bool,
    /// True if the condition `PodScheduled` is `False`: a scheduler has found no node for the pod, or gates hold it back.
    pub is_refused: bool,
    /// RFC 3339 time in seconds at which the pod was bound; empty while it waits.
    pub bound_at: String,
    /// Names of the Instances that the pod was given when it was bound, by container.
    pub allocated: Given,
}

/// Fields of a pod's spec that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Node that the pod is bound to.
    pub node_name: Option<String>,
    /// Containers of the pod.
    pub containers: Vec<PodContainer>,
    /// Init containers of the pod.
    pub init_containers: Vec<PodContainer>,
    /// Gates that hold the pod back from scheduling.
    pub scheduling_gates: Vec<serde_json::Value>,
}

/// Fields of a container that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodContainer {
    /// Name of the container.
    pub name: String,
    /// Restart policy; `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
    /// Resources that the container asks for.
    pub resources: Option<PodResources>,
}

/// Fields of a container's resources that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodResources {
    /// Limits by resource.
    pub limits: Option<BTreeMap<String, serde_json::Value>>,
}

/// Fields of a pod's status that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// Phase: `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: Option<String>,
    /// Conditions of the pod.
    pub conditions: Option<Vec<PodCondition>>,
}

/// Condition of a pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status of the condition, such as `True` or `False`.
    pub status: String,
    /// RFC 3339 time of the last transition.
    #[serde(rename = "lastTransitionTime")]
    pub since: Option<String>,
}

impl Pod {
    /// Creates a pod from an object's fields.
    pub fn read(
        (key, uid): (PodKey, String),
        annotations: &BTreeMap<String, String>,
        spec: PodSpec,
        status: PodStatus,
    ) -> Self {
        let of = |container: PodContainer, is_init: bool| {
            let limits = container.resources.unwrap_or_default().limits;
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            Container {
                asks: limits.is_some_and(|limits| limits.contains_key(DEVICES)),
                name: container.name,
                kind: match (is_init, is_sidecar) {
                    (true, false) => ContainerKind::Init,
                    (true, true) => ContainerKind::Sidecar,
                    (false, _) => ContainerKind::App,
                },
            }
        };
        let init = spec.init_containers.into_iter();
        let init = init.map(|container| of(container, true));
        let app = spec.containers.into_iter();
        let containers: Vec<Container> = init
            .chain(app.map(|container| of(container, false)))
            .collect();
        let phase = status.phase.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let scheduled = conditions.find(|one| one.kind == "PodScheduled");
        let scheduled = scheduled.unwrap_or_default();
        let allocated = annotations.get(ALLOCATED);
        let allocated = allocated.and_then(|text| serde_json::from_str(text).ok());
        Self {
            key,
            uid,
            node: spec.node_name.unwrap_or_default(),
            devices: cut(annotations.get(DEVICES).cloned().unwrap_or_default()),
            containers,
            has_ended: matches!(&*phase, "Succeeded" | "Failed"),
            is_gated: !spec.scheduling_gates.is_empty(),
            is_refused: scheduled.status == "False",
            bound_at: match &*scheduled.status {
                "True" => scheduled.since.unwrap_or_default(),
                _ => String::new(),
            },
            allocated: allocated.unwrap_or_default(),
        }
    }

    /// Returns true if a container asks for devices.
    pub fn asks(&self) -> bool {
        self.containers.iter().any(|container| container.asks)
    }
}

/// Cuts a text that is longer than any allowed one, so that it is refused for its length without staying in memory.
fn cut(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        text.shrink_to_fit();
    }
    text
}

/// Container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Kind of the container, which decides when it runs.
    pub kind: ContainerKind,
    /// True if the container asks for the resource [`DEVICES`].
    pub asks: bool,
}

/// Kind of a container, which decides when it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs alone and ends before the next container starts.
    Init,
    /// Runs from its turn among the init containers for as long as the pod does.
    Sidecar,
    /// Runs beside the other app containers, after the init containers.
    #[default]
    App,
}

/// Receiver of the lists and events of a scheduler's watches. Its methods must return quickly.
pub trait Observer: Send + Sync {
    /// Receives an Instance of a list, even if its version is older than the known one: the database may have been restored.
    fn listed(&self, instance: Arc<Instance>);
    /// Ends a list of Instances: those without a key in `all` are gone.
    fn instances(&self, all: BTreeSet<InstanceKey>);
    /// Receives the current state of an Instance.
    fn instance(&self, instance: Arc<Instance>);
    /// Receives the deletion of an Instance.
    fn instance_gone(&self, key: &InstanceKey);
    /// Receives the namespaces that own the names of Configurations.
    fn names(&self, names: Arc<ResourceNames>);
    /// Replaces all pods with those that were listed.
    fn pods(&self, all: Vec<Pod>);
    /// Receives the current state of a pod.
    fn pod(&self, pod: Pod);
    /// Receives the deletion of a pod.
    fn pod_gone(&self, key: &PodKey);
    /// Replaces all Nodes with those that were listed. Nodes are watched only if schedulers lock them.
    fn nodes(&self, all: BTreeMap<String, NodeSeen>);
    /// Receives the current state of a Node.
    fn node(&self, name: String, seen: NodeSeen);
    /// Receives the deletion of a Node.
    fn node_gone(&self, name: &str);
}

/// Request of a kube-scheduler to bind a pod to a node, as it sends it to an extender.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingArgs {
    /// Name of the pod.
    pub pod_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// Uid of the pod.
    #[serde(rename = "PodUID")]
    pub uid: String,
    /// Name of the node.
    pub node: String,
}

impl BindingArgs {
    /// Returns the namespace and name of the pod.
    pub fn key(&self) -> PodKey {
        PodKey {
            namespace: self.pod_namespace.clone(),
            name: self.pod_name.clone(),
        }
    }
}

/// Names of the Instances that each container gets, by container.
pub type Given = BTreeMap<String, Vec<String>>;

/// Error of an operation on a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// The operation was not done.
    #[error("{0}")]
    Failed(String),
    /// No answer came; the operation may have been done.
    #[error("cannot determine whether it was done: {0}")]
    Unknown(String),
}

/// Port through which a scheduler reads and changes the cluster. Each call ends in bounded time.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Returns the current state of a pod, or `None` if no pod has the name.
    async fn pod(&self, key: &PodKey) -> Result<Option<Pod>, PodError>;
    /// Binds a pod to its node and writes the annotation [`ALLOCATED`] in the same request.
    async fn bind(&self, target: &BindingArgs, given: &Given) -> Result<(), PodError>;
    /// Writes the annotation [`TRIED_AGAIN`] of a waiting pod, if the pod still has the uid.
    async fn try_again(&self, pod: &PodKey, uid: &str) -> Result<(), PodError>;
    /// Writes or removes the annotation [`NODE_LOCK`] of a Node if the Node still has the version; returns `None` if it has another.
    async fn set_lock(
        &self,
        node: &str,
        version: &str,
        lock: Option<&str>,
    ) -> Result<Option<NodeSeen>, PodError>;
    /// Creates an Event about the pod.
    async fn record_event(&self, pod: &BindingArgs, reason: &str, message: &str, is_warning: bool);
    /// Returns the current state of an Instance, or `None` if it is gone.
    async fn instance(&self, key: &InstanceKey) -> Result<Option<Arc<Instance>>, PodError>;
    /// Applies edits to Instances as they were seen, each Instance on its own; returns one result per Instance, in order. If an Instance has changed
    /// since, the watch passes on its current state.
    async fn edit(&self, edits: Vec<(Arc<Instance>, Vec<Edit>)>) -> Vec<Written>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_read_as_it_is_written() {
        let text = "2026-11-26T12:00:00Z,default,abc-1,uid-1";
        let lock = NodeLock::read(text).unwrap();
        assert_eq!(lock.pod.to_string(), "default/abc-1");
        assert_eq!(lock.to_string(), text);
        for other in [
            "",
            "now",
            "now,default,abc",
            "now,default,,uid",
            "a,b,c,d,e",
        ] {
            assert_eq!(NodeLock::read(other), None, "{other:?}");
        }
    }
}
