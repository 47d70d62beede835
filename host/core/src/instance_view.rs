//! View of the Instances of a remote store, built from its answers to writes and the events of its watches, in any
//! order. Pure; knows neither the store nor the readers.
//!
//! The newest version of an object wins, whatever its source: resource versions of one resource are comparable as
//! numbers (KEP-5504). An event older than an answer changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::instance::{Instance, InstanceKey, NODE_LABEL, SHARED_LABEL};

/// Maximum number of deleted objects remembered, so that a late event of one does not bring it back.
const GONE: usize = 4096;

/// Instances that one watch selects; each scope is listed separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Local Instances of this node.
    Local,
    /// Shared Instances.
    Shared,
}

impl Scope {
    /// Returns the scope of the Instance, or `None` if its labels were removed.
    pub fn of(instance: &Instance) -> Option<Self> {
        let labels = &instance.metadata.labels;
        if labels.contains_key(NODE_LABEL) {
            return Some(Self::Local);
        }
        let shared = labels.get(SHARED_LABEL);
        let is_shared = shared.is_some_and(|value| value == "true");
        is_shared.then_some(Self::Shared)
    }
}

/// Instances as last seen.
#[derive(Debug, Default)]
pub struct InstanceView {
    instances: BTreeMap<InstanceKey, Arc<Instance>>,
    /// Newest version of any object seen.
    newest: u64,
    /// Version of each deleted object, by uid; older ones of the object are ignored.
    gone: BTreeMap<String, u64>,
    /// Uids in `gone`, in order of deletion.
    order: VecDeque<String>,
    /// Lists in progress.
    lists: BTreeMap<Scope, Listing>,
}

/// List in progress.
#[derive(Debug, Default)]
struct Listing {
    /// Newest version of any object seen before the list began.
    newest: u64,
    /// Objects seen since the list began.
    seen: BTreeMap<InstanceKey, Arc<Instance>>,
}

impl InstanceView {
    /// Returns the Instances.
    pub fn instances(&self) -> &BTreeMap<InstanceKey, Arc<Instance>> {
        &self.instances
    }

    /// Returns the newest version seen before the list of a scope began, if the list is older. Then either the
    /// answering server lags behind, or the store was restored from a backup.
    pub fn overtaken(&self, scope: Scope, listed: u64) -> Option<u64> {
        let newest = self.lists.get(&scope)?.newest;
        (listed < newest).then_some(newest)
    }

    /// Records an object from an answer, an event or a list.
    pub fn observe(&mut self, instance: Instance) {
        let (key, now) = (instance.key(), version(&instance));
        let instance = Arc::new(instance);
        for Listing { seen, .. } in self.lists.values_mut() {
            let earlier = seen.get(&key);
            if earlier.is_none_or(|earlier| version(earlier) <= now) {
                seen.insert(key.clone(), Arc::clone(&instance));
            }
        }
        let gone = self.gone.get(&instance.metadata.uid);
        let held = self.instances.get(&key);
        if gone.is_none_or(|gone| now >= *gone) && held.is_none_or(|held| version(held) < now) {
            self.newest = self.newest.max(now);
            self.instances.insert(key, instance);
        }
    }

    /// Records the deletion of an object.
    pub fn observe_deletion(&mut self, key: &InstanceKey, uid: &str) {
        self.observe_leave(key, uid, u64::MAX);
    }

    /// Removes an object that left the watch: it was deleted, or lost its label with this version. The object is shown
    /// again once this or a newer version of it is seen.
    pub fn observe_leave(&mut self, key: &InstanceKey, uid: &str, version: u64) {
        if version < u64::MAX {
            self.newest = self.newest.max(version);
        }
        let gone = self.gone.entry(uid.to_owned()).or_insert_with(|| {
            self.order.push_back(uid.to_owned());
            version
        });
        *gone = version.max(*gone);
        if self.order.len() > GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        for Listing { seen, .. } in self.lists.values_mut() {
            if seen.get(key).is_some_and(|seen| seen.metadata.uid == uid) {
                seen.remove(key);
            }
        }
        let held = self.instances.get(key);
        if held.is_some_and(|held| held.metadata.uid == uid) {
            self.instances.remove(key);
        }
    }

    /// Starts a list of a scope.
    pub fn list_begins(&mut self, scope: Scope) {
        let (newest, seen) = (self.newest, BTreeMap::new());
        self.lists.insert(scope, Listing { newest, seen });
    }

    /// Ends the list of a scope at version `listed`. Removes the objects of the scope that neither the list nor
    /// anything since its start has shown, except those newer than the list.
    pub fn list_ended(&mut self, scope: Scope, listed: u64) {
        let Some(Listing { seen, .. }) = self.lists.remove(&scope) else {
            return;
        };
        self.newest = self.newest.max(listed);
        self.instances.retain(|key, instance| {
            Scope::of(instance) != Some(scope)
                || seen.contains_key(key)
                || version(instance) > listed
        });
    }

    /// Ends the list of a scope of a store that was restored to an earlier state. Keeps only those objects of the scope
    /// that were seen since the list began, and clears the versions of the objects outside the scope.
    pub fn list_restored(&mut self, scope: Scope, listed: u64) {
        let Listing { seen, .. } = self.lists.remove(&scope).unwrap_or_default();
        self.gone.clear();
        self.order.clear();
        self.newest = listed;
        self.instances
            .retain(|_, instance| Scope::of(instance) != Some(scope));
        for instance in self.instances.values_mut() {
            let metadata = &mut Arc::make_mut(instance).metadata;
            metadata.resource_version.clear();
        }
        self.instances.extend(seen);
    }
}

/// Returns the resource version as a number.
pub fn version(instance: &Instance) -> u64 {
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
        view.observe(shared("a-1", "u", 9));
        // As text, 10 would sort before 9.
        view.observe(shared("a-1", "u", 10));
        view.observe(shared("a-1", "u", 9));
        assert_eq!(shown(&view), [("u", 10)]);
    }

    #[test]
    fn a_deleted_object_does_not_come_back_and_its_successor_stays() {
        let mut view = InstanceView::default();
        view.observe(shared("a-1", "old", 5));
        let key = shared("a-1", "old", 5).key();
        view.observe_deletion(&key, "old");
        view.observe(shared("a-1", "old", 6));
        assert_eq!(shown(&view), []);
        view.observe(shared("a-1", "new", 7));
        // The deletion event arrives after the answer that created the successor.
        view.observe_deletion(&key, "old");
        assert_eq!(shown(&view), [("new", 7)]);
    }

    #[test]
    fn a_successor_that_is_seen_first_replaces_what_is_deleted() {
        let mut view = InstanceView::default();
        view.observe(shared("a-1", "old", 5));
        view.observe(shared("a-1", "new", 7));
        view.observe(shared("a-1", "old", 6));
        assert_eq!(shown(&view), [("new", 7)]);
    }

    #[test]
    fn a_list_removes_what_it_does_not_have_but_nothing_written_since_it_began_and_nothing_of_another_scope()
     {
        let mut view = InstanceView::default();
        view.observe(shared("a-1", "u1", 1));
        view.observe(shared("a-2", "u2", 2));
        view.observe(instance("a-3", "u3", 3, Scope::Local));
        view.list_begins(Scope::Shared);
        view.observe(shared("a-2", "u2", 2));
        view.observe(shared("a-4", "u4", 9));
        view.list_ended(Scope::Shared, 8);
        assert_eq!(shown(&view), [("u2", 2), ("u3", 3), ("u4", 9)]);
        view.list_ended(Scope::Shared, 8);
        assert_eq!(shown(&view), [("u2", 2), ("u3", 3), ("u4", 9)]);
    }

    #[test]
    fn what_is_newer_than_a_list_is_there_although_the_list_does_not_have_it() {
        let mut view = InstanceView::default();
        view.observe(shared("a-1", "u1", 7));
        view.observe(shared("a-2", "u2", 9));
        view.list_begins(Scope::Shared);
        view.list_ended(Scope::Shared, 8);
        assert_eq!(shown(&view), [("u2", 9)]);
    }

    #[test]
    fn what_has_lost_its_label_comes_back_with_a_newer_version_and_no_older_one() {
        let mut view = InstanceView::default();
        view.observe(shared("a-1", "u", 5));
        let key = shared("a-1", "u", 5).key();
        view.observe_leave(&key, "u", 7);
        view.observe(shared("a-1", "u", 6));
        assert_eq!(shown(&view), []);
        // A read finds the object, now without its label.
        view.observe(shared("a-1", "u", 7));
        assert_eq!(shown(&view), [("u", 7)]);
        view.observe(shared("a-1", "u", 8));
        assert_eq!(shown(&view), [("u", 8)]);
    }

    #[test]
    fn a_store_that_was_restored_shows_what_it_has() {
        let mut view = InstanceView::default();
        for number in [40, 41, 42] {
            view.observe(shared(&format!("a-{number}"), &number.to_string(), number));
        }
        view.observe(instance("b-1", "local", 43, Scope::Local));
        let key = shared("a-40", "40", 40).key();
        view.observe_deletion(&key, "40");
        view.list_begins(Scope::Shared);
        view.observe(shared("a-40", "40", 10));
        view.observe(shared("a-41", "41", 11));
        assert_eq!(view.overtaken(Scope::Shared, 12), Some(43));
        view.list_restored(Scope::Shared, 12);
        assert_eq!(shown(&view), [("40", 10), ("41", 11), ("local", 0)]);
        // Later events count, even if their versions are older than some seen before the restore.
        view.observe(shared("a-41", "41", 13));
        view.observe(instance("b-1", "local", 9, Scope::Local));
        assert_eq!(shown(&view), [("40", 10), ("41", 13), ("local", 9)]);
        // A list that is not older than everything seen before it does not indicate a restored store.
        view.list_begins(Scope::Local);
        view.observe(shared("a-41", "41", 20));
        assert_eq!(view.overtaken(Scope::Local, 13), None);
        assert_eq!(view.overtaken(Scope::Local, 12), Some(13));
    }

    #[test]
    fn deletions_are_remembered_in_bounded_number() {
        let mut view = InstanceView::default();
        let key = shared("a-1", "", 1).key();
        for number in 0..=GONE {
            view.observe_deletion(&key, &number.to_string());
        }
        assert_eq!((view.gone.len(), view.order.len()), (GONE, GONE));
        assert!(!view.gone.contains_key("0"));
    }
}
