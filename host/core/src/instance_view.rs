//! What is known of the Instances of a store that is far away: its answers to writes and the events of its watches, in any
//! order. Pure; knows neither the store nor who reads.
//!
//! The newest version of an object wins, wherever it came from: resource versions of one resource are comparable as numbers
//! (KEP-5504). An event that is older than an answer changes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::instance::{Instance, InstanceKey, NODE_LABEL, SHARED_LABEL};

/// So many deleted objects are remembered. An event of one of them that is still on its way does not bring it back.
const DELETED: usize = 4096;

/// What a watch selects; each is listed for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Local Instances of this node.
    Local,
    /// Shared Instances.
    Shared,
}

impl Scope {
    /// The watch that shows the Instance; none where its labels were removed.
    pub fn of(instance: &Instance) -> Option<Self> {
        let labels = &instance.metadata.labels;
        if labels.contains_key(NODE_LABEL) {
            Some(Self::Local)
        } else if labels
            .get(SHARED_LABEL)
            .is_some_and(|value| value == "true")
        {
            Some(Self::Shared)
        } else {
            None
        }
    }
}

/// The Instances, by what was seen of them.
#[derive(Debug, Default)]
pub struct InstanceView {
    instances: BTreeMap<InstanceKey, Arc<Instance>>,
    deleted: BTreeSet<String>,
    /// In the order of their deletion.
    deletions: VecDeque<String>,
    /// The lists that are being read, each with what was seen since it began.
    lists: BTreeMap<Scope, BTreeSet<InstanceKey>>,
}

impl InstanceView {
    /// The Instances.
    pub fn instances(&self) -> &BTreeMap<InstanceKey, Arc<Instance>> {
        &self.instances
    }

    /// An object came as an answer, in an event or in a list. Whether that is news.
    pub fn saw(&mut self, instance: Instance) -> bool {
        if self.deleted.contains(&instance.metadata.uid) {
            return false;
        }
        let key = instance.key();
        for seen in self.lists.values_mut() {
            seen.insert(key.clone());
        }
        let held = self.instances.get(&key);
        if held.is_some_and(|held| version(held) >= version(&instance)) {
            return false;
        }
        self.instances.insert(key, Arc::new(instance));
        true
    }

    /// An object was deleted. Whether that is news.
    pub fn saw_deletion(&mut self, key: &InstanceKey, uid: &str) -> bool {
        if self.deleted.insert(uid.to_owned()) {
            self.deletions.push_back(uid.to_owned());
        }
        if self.deletions.len() > DELETED
            && let Some(oldest) = self.deletions.pop_front()
        {
            self.deleted.remove(&oldest);
        }
        let held = self.instances.get(key);
        let is_held = held.is_some_and(|held| held.metadata.uid == uid);
        if is_held {
            self.instances.remove(key);
        }
        is_held
    }

    /// A list of a scope begins.
    pub fn list_begins(&mut self, scope: Scope) {
        self.lists.insert(scope, BTreeSet::new());
    }

    /// A list of a scope has ended: what neither it nor anything since its beginning has shown is not there. Whether that is news.
    pub fn list_ended(&mut self, scope: Scope) -> bool {
        let Some(seen) = self.lists.remove(&scope) else {
            return false;
        };
        let before = self.instances.len();
        self.instances
            .retain(|key, instance| Scope::of(instance) != Some(scope) || seen.contains(key));
        self.instances.len() != before
    }
}

/// The resource version as the number it is.
fn version(instance: &Instance) -> u64 {
    let version = &instance.metadata.resource_version;
    version.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, uid: &str, version: u64, scope: Scope) -> Instance {
        let label = match scope {
            Scope::Local => (NODE_LABEL, "node-a"),
            Scope::Shared => (SHARED_LABEL, "true"),
        };
        serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": version.to_string(),
                "labels": {label.0: label.1}},
            "spec": {"configurationName": "a"},
        }))
        .unwrap()
    }

    fn shared(name: &str, uid: &str, version: u64) -> Instance {
        instance(name, uid, version, Scope::Shared)
    }

    fn shown(view: &InstanceView) -> Vec<(&str, u64)> {
        let all = view.instances().values();
        all.map(|one| (one.metadata.uid.as_str(), version(one)))
            .collect()
    }

    #[test]
    fn nothing_older_follows_what_is_newer() {
        let mut view = InstanceView::default();
        assert!(view.saw(shared("a-1", "u", 9)));
        // 10 is newer than 9, although its text is not.
        assert!(view.saw(shared("a-1", "u", 10)));
        assert!(!view.saw(shared("a-1", "u", 9)) && !view.saw(shared("a-1", "u", 10)));
        assert_eq!(shown(&view), [("u", 10)]);
    }

    #[test]
    fn a_deleted_object_does_not_come_back_and_its_successor_stays() {
        let mut view = InstanceView::default();
        view.saw(shared("a-1", "old", 5));
        let key = shared("a-1", "old", 5).key();
        assert!(view.saw_deletion(&key, "old"));
        assert!(!view.saw(shared("a-1", "old", 6)));
        assert!(view.saw(shared("a-1", "new", 7)));
        // The event of the deletion comes after the answer that made the successor.
        assert!(!view.saw_deletion(&key, "old"));
        assert_eq!(shown(&view), [("new", 7)]);
    }

    #[test]
    fn a_successor_that_is_seen_first_replaces_what_is_deleted() {
        let mut view = InstanceView::default();
        view.saw(shared("a-1", "old", 5));
        assert!(view.saw(shared("a-1", "new", 7)));
        assert!(!view.saw(shared("a-1", "old", 6)));
        assert_eq!(shown(&view), [("new", 7)]);
    }

    #[test]
    fn a_list_removes_what_it_does_not_have_but_nothing_written_since_it_began_and_nothing_of_another_scope()
     {
        let mut view = InstanceView::default();
        view.saw(shared("a-1", "u1", 1));
        view.saw(shared("a-2", "u2", 2));
        view.saw(instance("a-3", "u3", 3, Scope::Local));
        view.list_begins(Scope::Shared);
        view.saw(shared("a-2", "u2", 2));
        view.saw(shared("a-4", "u4", 9));
        assert!(view.list_ended(Scope::Shared));
        assert_eq!(shown(&view), [("u2", 2), ("u3", 3), ("u4", 9)]);
        assert!(!view.list_ended(Scope::Shared));
    }

    #[test]
    fn deletions_are_remembered_in_bounded_number() {
        let mut view = InstanceView::default();
        let key = shared("a-1", "", 1).key();
        for number in 0..=DELETED {
            view.saw_deletion(&key, &number.to_string());
        }
        assert_eq!(
            (view.deleted.len(), view.deletions.len()),
            (DELETED, DELETED)
        );
        assert!(!view.deleted.contains("0"));
    }
}
