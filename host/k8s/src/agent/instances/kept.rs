//! Chooses the Instances that are kept on disk for a start without the API server: those that concern this node.

use std::sync::Arc;

use leafhost_core::instance::Instance;
use leafhost_core::ports::InstanceSet;

/// Instances that concern a node, each as it was last kept.
pub struct Worth {
    node: String,
    kept: Option<Vec<Arc<Instance>>>,
}

impl Worth {
    /// Creates a chooser that has kept nothing yet.
    pub fn of(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            kept: None,
        }
    }

    /// Returns the Instances to write if any of them differs from the kept version. The use of an Instance by other nodes does not count:
    /// without the API server no free slot is offered.
    pub fn keeping(&mut self, set: &InstanceSet) -> Option<Vec<Instance>> {
        if !set.complete {
            return None;
        }
        let all = set.instances.values();
        let all = all.filter(|instance| instance.concerns(&self.node));
        let now: Vec<_> = all.cloned().collect();
        let is_same = self.kept.as_ref().is_some_and(|kept| {
            kept.len() == now.len()
                && kept.iter().zip(&now).all(|(old, new)| {
                    Arc::ptr_eq(old, new) || old.seen_from(&self.node) == new.seen_from(&self.node)
                })
        });
        if is_same {
            return None;
        }
        let now = self.kept.insert(now).iter();
        Some(now.map(|instance| Instance::clone(instance)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn set(instances: &[(&str, &[&str], &[&str])]) -> InstanceSet {
        let made = instances.iter().map(|(name, nodes, users)| {
            let usage: BTreeMap<String, &str> = users
                .iter()
                .enumerate()
                .map(|(slot, user)| (format!("{name}-{slot}"), *user))
                .collect();
            let instance: Instance = serde_json::from_value(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "default"},
                "spec": {"configurationName": "a", "shared": true, "nodes": nodes, "deviceUsage": usage},
            }))
            .unwrap();
            (instance.key(), Arc::new(instance))
        });
        InstanceSet::read(made.collect())
    }

    #[test]
    fn only_what_concerns_the_node_is_kept_and_a_reason_to_write() {
        let mut worth = Worth::of("node-a");
        let mut written = |set: &InstanceSet| {
            let kept = worth.keeping(set)?;
            let names: Vec<_> = kept.iter().map(|one| one.metadata.name.clone()).collect();
            Some(names.join(" "))
        };
        let mut unread = set(&[("a-1", &["node-a"], &[])]);
        unread.complete = false;
        assert_eq!(written(&unread), None);
        let others: &[&str] = &["node-b"];
        let both: &[&str] = &["node-a", "node-b"];
        let first = set(&[("a-1", both, &["", ""]), ("a-2", others, &[])]);
        assert_eq!(written(&first).as_deref(), Some("a-1"));
        for (what, others_do) in [
            ("nothing", first.clone()),
            (
                "a slot",
                set(&[("a-1", both, &["node-b", ""]), ("a-2", others, &["node-b"])]),
            ),
            (
                "a node",
                set(&[
                    ("a-1", &["node-a", "node-c"], &["C:a-0:node-b"]),
                    ("a-3", others, &[]),
                ]),
            ),
        ] {
            assert_eq!(written(&others_do), None, "{what}");
        }
        let own = set(&[("a-1", both, &["node-b", "node-a"])]);
        assert_eq!(written(&own).as_deref(), Some("a-1"));
        assert_eq!(written(&own), None);
        let slot = set(&[
            ("a-1", both, &["node-b", "node-a"]),
            ("a-2", others, &["C:a-0:node-a"]),
        ]);
        assert_eq!(written(&slot).as_deref(), Some("a-1 a-2"));
        assert_eq!(written(&set(&[])).as_deref(), Some(""));
    }
}
