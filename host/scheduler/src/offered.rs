//! Remembers the nodes that a scheduler offered for a pod that found no devices. Only the scheduler knows taints, selectors and other resources.

use std::collections::HashMap;
use std::sync::Arc;

/// Upper bound of remembered pods.
const MOST: usize = 10_000;

/// Nodes offered for pods, by the pod's uid.
#[derive(Debug, Default)]
pub struct OfferedNodes {
    pods: HashMap<String, Arc<[String]>>,
    /// Nodes offered for the last pod; most pods share them.
    last: Arc<[String]>,
}

impl OfferedNodes {
    /// Stores the nodes that a scheduler has asked about for a pod.
    pub fn put(&mut self, uid: &str, mut nodes: Vec<String>) {
        nodes.sort_unstable();
        if *self.last != *nodes {
            self.last = nodes.into();
        }
        if self.pods.len() >= MOST {
            self.pods.clear();
        }
        self.pods.insert(uid.to_owned(), Arc::clone(&self.last));
    }

    /// Forgets a pod that no longer waits.
    pub fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Returns true if a scheduler has asked about a pod.
    pub fn is_known(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Returns true if a scheduler may place a pod on a node, or has not asked about the pod. When the set of nodes changes, the scheduler asks again
    /// by itself.
    pub fn has(&self, uid: &str, node: &str) -> bool {
        let nodes = self.pods.get(uid);
        nodes.is_none_or(|nodes| nodes.binary_search_by(|one| (**one).cmp(node)).is_ok())
    }
}
