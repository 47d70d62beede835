//! The words of scheduling by devices: what pods say, what a scheduler writes, and the ports through which it sees and changes the cluster.
//!
//! Knows no expression and no choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::watch;

use crate::instance::{Edit, Instance, InstanceKey};
use crate::ports::Written;
use crate::resource_names::ResourceNames;

/// The annotation of a pod that says, by container, what its devices must be like; and the resource with which a container asks for them.
pub const DEVICES: &str = "leafhost.dev/devices";
/// The annotation with which a scheduler says, by container, which Instances a pod was given.
pub const ALLOCATED: &str = "leafhost.dev/allocated-devices";
/// The annotation with which a scheduler has a waiting pod tried again.
pub const TRIED_AGAIN: &str = "leafhost.dev/tried-again";

/// Bounds how many bytes of the annotation [`DEVICES`] are kept: more than are allowed.
const MOST_TEXT: usize = 20 << 10;
/// The annotation of a Node that names the pod which is bound to it and has not got its devices yet, if schedulers lock nodes.
pub const NODE_LOCK: &str = "leafhost.dev/node-lock";

/// Names a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl PodKey {
    /// Reads `namespace/name`.
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

/// Says for which pod a node is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLock {
    /// Since when, RFC 3339. Nothing follows from it: clocks differ.
    pub since: String,
    /// The pod.
    pub pod: PodKey,
    /// The uid of the pod.
    pub uid: String,
}

impl NodeLock {
    /// Reads `TIME,NAMESPACE,NAME,UID`.
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

/// Joins an agent with the lock of its node.
#[derive(Debug, Clone)]
pub struct LockPort {
    /// Receives for which pod the node is locked.
    pub locked: watch::Receiver<Option<NodeLock>>,
    /// Sends the uids of pods that need the lock no more, since they have their devices or do not get them.
    pub done: watch::Sender<BTreeSet<String>>,
}

/// Is what a Node says of its lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// The version of the object.
    pub version: String,
    /// The annotation [`NODE_LOCK`]; empty without one.
    pub lock: String,
}

/// Is a pod that says what its devices must be like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub key: PodKey,
    /// Its uid.
    pub uid: String,
    /// The node to which it is bound; empty while it waits.
    pub node: String,
    /// What it says, as it is written.
    pub devices: String,
    /// Its containers, init containers first.
    pub containers: Vec<Container>,
    /// True once its containers have ended and run no more.
    pub has_ended: bool,
    /// True while scheduling gates hold it back.
    pub is_gated: bool,
    /// True if a scheduler has found no node for it.
    pub is_refused: bool,
    /// When it was bound, RFC 3339 to the second; empty while it waits.
    pub bound_at: String,
    /// By container the names of the Instances that it was given when it was bound.
    pub allocated: BTreeMap<String, Vec<String>>,
}

/// Is what is read of a pod's spec.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node.
    pub node_name: Option<String>,
    /// The containers.
    pub containers: Vec<PodContainer>,
    /// The init containers.
    pub init_containers: Vec<PodContainer>,
    /// What holds it back.
    pub scheduling_gates: Vec<serde_json::Value>,
}

/// Is what is read of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodContainer {
    /// Its name.
    pub name: String,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
    /// What it asks for.
    pub resources: Option<PodResources>,
}

/// Is what a container asks for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodResources {
    /// By resource.
    pub limits: Option<BTreeMap<String, serde_json::Value>>,
}

/// Is what is read of a pod's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// What has become true of it.
    pub conditions: Option<Vec<PodCondition>>,
}

/// Is something that has become true of a pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`.
    pub status: String,
    /// Since when, RFC 3339.
    #[serde(rename = "lastTransitionTime")]
    pub since: Option<String>,
}

impl Pod {
    /// Makes a pod of what was read of one; nothing for one that says nothing of devices.
    pub fn read(
        (key, uid): (PodKey, String),
        annotations: &BTreeMap<String, String>,
        spec: PodSpec,
        status: PodStatus,
    ) -> Option<Self> {
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
        if !containers.iter().any(|container| container.asks) {
            return None;
        }
        let phase = status.phase.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let scheduled = conditions.find(|one| one.kind == "PodScheduled");
        let scheduled = scheduled.unwrap_or_default();
        let allocated = annotations.get(ALLOCATED);
        let allocated = allocated.and_then(|text| serde_json::from_str(text).ok());
        Some(Self {
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
        })
    }
}

/// Cuts what is longer than anything that is read, so that it is refused for its length and does not stay in memory.
fn cut(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        text.shrink_to_fit();
    }
    text
}

/// Is a container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Says when it runs.
    pub kind: ContainerKind,
    /// True if it asks for the resource [`DEVICES`].
    pub asks: bool,
}

/// Says when a container runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContainerKind {
    /// Alone, and it ends before the next one starts.
    Init,
    /// From its turn among the init containers on, as long as the pod does.
    Sidecar,
    /// Beside all others, after the init containers.
    #[default]
    App,
}

/// Is told what the watches of a scheduler show. It must not take long.
pub trait Observer: Send + Sync {
    /// Takes the Instances that were listed, in place of all before.
    fn instances(&self, all: Vec<Arc<Instance>>);
    /// Takes an Instance as it is now.
    fn instance(&self, instance: Arc<Instance>);
    /// Takes that an Instance is gone.
    fn instance_gone(&self, key: &InstanceKey);
    /// Takes which namespaces have which names of Configurations.
    fn names(&self, names: Arc<ResourceNames>);
    /// Takes the pods that were listed, in place of all before.
    fn pods(&self, all: Vec<Pod>);
    /// Takes a pod as it is now.
    fn pod(&self, pod: Pod);
    /// Takes that a pod is gone, or says nothing of devices any more.
    fn pod_gone(&self, key: &PodKey);
    /// Takes the Nodes that were listed, in place of all before. They are watched only if nodes are locked.
    fn nodes(&self, all: BTreeMap<String, NodeSeen>);
    /// Takes a Node as it is now.
    fn node(&self, name: String, seen: NodeSeen);
    /// Takes that a Node is gone.
    fn node_gone(&self, name: &str);
}

/// Says why something was not done for a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// There is no such pod any more, or it has another uid.
    #[error("the pod is gone")]
    Gone,
    /// It is bound already, or must not be bound now.
    #[error("{0}")]
    Refused(String),
    /// No answer came: it may have been done.
    #[error("cannot tell whether it was done: {0}")]
    Unknown(String),
    /// The API server could not be asked.
    #[error("{0}")]
    Unavailable(String),
}

/// Is how a scheduler changes the cluster. Each call ends in bounded time.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Returns a pod as it is now, and nothing if there is none of the name.
    async fn pod(&self, key: &PodKey) -> Result<Option<Pod>, PodError>;
    /// Binds a pod to a node and writes what it was given, in one write.
    async fn bind(
        &self,
        pod: &PodKey,
        uid: &str,
        node: &str,
        annotations: BTreeMap<String, String>,
    ) -> Result<(), PodError>;
    /// Writes an annotation of a pod that waits, if it still has the uid.
    async fn annotate(
        &self,
        pod: &PodKey,
        uid: &str,
        name: &str,
        value: &str,
    ) -> Result<(), PodError>;
    /// Writes the annotation [`NODE_LOCK`] of a Node, or removes it, if the Node still has the version; nothing if it has another one.
    async fn set_lock(
        &self,
        node: &str,
        version: &str,
        lock: Option<&str>,
    ) -> Result<Option<NodeSeen>, PodError>;
    /// Writes an event that people see with the pod.
    async fn tell(&self, pod: &PodKey, uid: &str, reason: &str, message: &str, is_warning: bool);
    /// Makes edits of Instances as they were seen, each Instance for itself; one result each, in order. Of one that is not as it was seen any more
    /// the observer is told how it is.
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
