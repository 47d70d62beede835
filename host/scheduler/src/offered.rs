//! Remembers on which nodes a scheduler would have a pod that found no devices there: it alone knows taints, selectors and other resources.

use std::collections::HashMap;
use std::sync::Arc;

/// The most pods that are remembered.
const MOST: usize = 10_000;

/// Holds the nodes of pods by their uid.
#[derive(Debug, Default)]
pub struct Offered {
    pods: HashMap<String, Arc<[String]>>,
    /// The nodes of the last pod, which are those of most others.
    last: Arc<[String]>,
}

impl Offered {
    /// Takes the nodes that a scheduler has asked about.
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

    /// Takes that a pod waits no more.
    pub fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Tells that a scheduler has asked about a pod.
    pub fn is_known(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Tells that a scheduler may have a pod on a node. Once that is otherwise, the scheduler asks again by itself.
    pub fn has(&self, uid: &str, node: &str) -> bool {
        let nodes = self.pods.get(uid);
        nodes.is_none_or(|nodes| nodes.binary_search_by(|one| (**one).cmp(node)).is_ok())
    }
}
