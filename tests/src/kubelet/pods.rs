//! The pods of the stand-in's node: what the API server and the container runtime would know of them.

use std::collections::{BTreeMap, BTreeSet};

/// What a container is to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs to its end before the others; what it had goes to them.
    Init,
    /// An init container that goes on running.
    Sidecar,
    /// Any other.
    App,
}

/// A container and the extended resources it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// What it is to its pod.
    pub kind: Kind,
    /// By resource.
    pub requests: BTreeMap<String, usize>,
}

/// A pod to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Init containers and sidecars first, as the kubelet goes through them.
    pub containers: Vec<Container>,
}

impl PodSpec {
    /// One in the namespace `default`, without containers.
    pub fn new(name: &str) -> Self {
        Self {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            containers: Vec::new(),
        }
    }

    /// One with a container `main` that asks for so many of a resource.
    pub fn asking(name: &str, resource: &str, count: usize) -> Self {
        Self::new(name).with(Kind::App, "main", &[(resource, count)])
    }

    /// With one more container.
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

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Neither ended nor rejected.
    Active,
    /// Its containers have ended well.
    Succeeded,
    /// They have not, or the kubelet rejected it.
    Failed(String),
}

/// A pod of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// What was asked for.
    pub spec: PodSpec,
    /// How far it is.
    pub phase: Phase,
    /// Its containers that run.
    pub running: BTreeSet<String>,
}

impl Pod {
    /// A container by name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.spec
            .containers
            .iter()
            .find(|container| container.name == name)
    }
}
