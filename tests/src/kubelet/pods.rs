//! Pods of the stand-in's node, as the API server and the container runtime would know them.

use std::collections::{BTreeMap, BTreeSet};

/// Role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs to its end before the others, which get its devices.
    Init,
    /// Init container that keeps running.
    Sidecar,
    /// Any other container.
    App,
}

/// Container and the extended resources it requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Role of the container in its pod.
    pub kind: Kind,
    /// Requested amounts by resource.
    pub requests: BTreeMap<String, usize>,
}

/// Pod to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Containers in the order of admission: init containers and sidecars first.
    pub containers: Vec<Container>,
}

impl PodSpec {
    /// Creates a pod in the namespace `default`, without containers.
    pub fn new(name: &str) -> Self {
        Self {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            containers: Vec::new(),
        }
    }

    /// Creates a pod with a container `main` that requests `count` of a resource.
    pub fn asking(name: &str, resource: &str, count: usize) -> Self {
        Self::new(name).with(Kind::App, "main", &[(resource, count)])
    }

    /// Adds a container.
    #[must_use]
    pub fn with(mut self, kind: Kind, name: &str, requests: &[(&str, usize)]) -> Self {
        self.containers.push(Container {
            name: name.to_owned(),
            kind,
            requests: requests
                .iter()
                .map(|&(resource, count)| (resource.to_owned(), count))
                .collect(),
        });
        self.containers
            .sort_by_key(|container| container.kind == Kind::App);
        self
    }
}

/// State of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The pod has neither ended nor been rejected.
    Active,
    /// All containers ended with success.
    Succeeded,
    /// A container failed, or the kubelet rejected the pod, with a message.
    Failed(String),
}

/// Pod of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Pod as it was requested.
    pub spec: PodSpec,
    /// State of the pod.
    pub phase: Phase,
    /// Names of the running containers.
    pub running: BTreeSet<String>,
}

impl Pod {
    /// Returns a container by name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.spec
            .containers
            .iter()
            .find(|container| container.name == name)
    }
}
