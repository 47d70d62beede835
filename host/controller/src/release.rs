//! Finds the entries of Instances that belong to absent nodes, and builds the writes that remove them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use leafhost_core::allocation::give_back;
use leafhost_core::cluster::NodeState;
use leafhost_core::instance::{Edit, Instance, NODE_LABEL};
use leafhost_core::names::GROUP;
use leafhost_core::ports::Change;
use leafhost_core::slot::DeviceUsage;

/// Time after which a node that is not Ready loses its shared devices, unless one of its pods may use them. Kubernetes itself evicts the
/// pods after five minutes.
pub const NOT_READY: SignedDuration = SignedDuration::from_mins(6);

/// Maximum length of a label value: either a name of that length, or the beginning of a longer name and a digest.
const MAX_LABEL: usize = 63;

/// Reason why a node no longer holds what its entries claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// The node has left the cluster, together with all its pods that ask for devices.
    Deleted,
    /// The node is out of service and not Ready, or has not been Ready for [`NOT_READY`], or its object is gone. Its pods may still run;
    /// the set holds the resources they ask for.
    Away(BTreeSet<String>),
}

/// Availability of a node, derived from its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The node is Ready.
    Present,
    /// The node is not Ready; it counts as absent from this time on.
    PresentUntil(Timestamp),
    /// The node is not Ready, and an operator has marked it out of service.
    OutOfService,
    /// The node has not been Ready for [`NOT_READY`].
    NotReady,
}

/// Returns the verdict on a node at `now`.
pub fn verdict(state: &NodeState, now: Timestamp) -> Verdict {
    match state.not_ready_since {
        // A Ready node runs, whatever an operator says; Kubernetes leaves its pods alone, too.
        None => Verdict::Present,
        Some(_) if state.is_out_of_service => Verdict::OutOfService,
        Some(since) if now.duration_since(since) >= NOT_READY => Verdict::NotReady,
        // A time that cannot be represented never comes.
        Some(since) => since
            .checked_add(NOT_READY)
            .map_or(Verdict::Present, Verdict::PresentUntil),
    }
}

/// Returns the nodes that an Instance names. A local Instance that no node sees names the node of its label, if the label holds the whole
/// name.
pub fn nodes(instance: &Instance) -> BTreeSet<&str> {
    let spec = &instance.spec;
    let seen = spec.nodes.iter().map(String::as_str);
    let label = instance.metadata.labels.get(NODE_LABEL).filter(|label| {
        let is_left = !spec.shared && spec.nodes.is_empty();
        is_left && label.len() < MAX_LABEL
    });
    let seen = seen.chain(label.map(String::as_str));
    let states = instance.status.nodes.keys().map(String::as_str);
    seen.chain(states)
        .chain(holders(instance).map(|(_, node)| node))
        .collect()
}

/// Returns the slots that nodes hold, each with its node. An invalid usage holds none.
fn holders(instance: &Instance) -> impl Iterator<Item = (&str, &str)> {
    let usage = instance.spec.device_usage.iter();
    usage.filter_map(|(slot, text)| {
        let usage: DeviceUsage = text.parse().ok()?;
        // The node is the end of the text, where it can be borrowed.
        let node = text.get(text.len() - usage.node()?.len()..)?;
        Some((slot.as_str(), node))
    })
}

/// Returns the write that removes absent nodes from an Instance, or `None` if there is nothing to remove.
///
/// A node that is away keeps its local devices: no other node can use them, and they are the same when it returns. An Instance that no node
/// sees and of which no node holds a slot is deleted.
pub fn release(instance: &Instance, absent: &BTreeMap<&str, Absence>) -> Option<Change> {
    let spec = &instance.spec;
    let resources =
        [&instance.metadata.name, &spec.configuration_name].map(|name| format!("{GROUP}/{name}"));
    let leaves = |node: &str| match absent.get(node) {
        None => false,
        Some(Absence::Deleted) => true,
        Some(Absence::Away(requested)) => {
            let usages = spec.device_usage.values();
            let mut usages = usages.filter_map(|text| text.parse::<DeviceUsage>().ok());
            let has_pods = resources.iter().any(|one| requested.contains(one))
                || usages.any(|one| {
                    let consumer = one.consumer().filter(|_| one.node() == Some(node));
                    consumer.is_some_and(|consumer| requested.contains(&consumer))
                });
            spec.shared && !has_pods
        }
    };
    let leaving: BTreeSet<&str> = nodes(instance)
        .into_iter()
        .filter(|node| leaves(node))
        .collect();
    let stays = |node: &str| !leaving.contains(node);
    let is_unused = !spec.nodes.iter().any(|node| stays(node))
        && !holders(instance).any(|(_, node)| stays(node));
    if is_unused && (spec.shared || !leaving.is_empty()) {
        return Some(Change::delete(instance));
    }
    let slots = holders(instance).filter(|(_, node)| leaving.contains(node));
    let freed = slots.filter_map(|(slot, _)| {
        let held: DeviceUsage = spec.device_usage.get(slot)?.parse().ok()?;
        Some(give_back(slot, &held))
    });
    let removed = leaving
        .iter()
        .map(|node| Edit::RemoveNode((*node).to_owned()));
    let edits: Vec<Edit> = freed.chain(removed).collect();
    (!edits.is_empty()).then(|| Change::edit(instance, edits))
}

/// Returns the nodes that a change removes from an Instance.
pub fn removed<'a>(instance: &'a Instance, change: &'a Change) -> BTreeSet<&'a str> {
    match change {
        Change::Update { edits, .. } => {
            let removed = edits.iter().filter_map(|edit| match edit {
                Edit::RemoveNode(node) => Some(node.as_str()),
                _ => None,
            });
            removed.collect()
        }
        _ => nodes(instance),
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::instance::InstanceKey;
    use serde_json::json;

    use super::*;

    fn instance(shared: bool) -> Instance {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "cams-1", "namespace": "n", "uid": "u", "resourceVersion": "7"},
            "spec": {"configurationName": "cams", "capacity": 4, "shared": shared, "nodes": ["a", "b"],
                "deviceUsage": {"cams-1-0": "b", "cams-1-1": "C:cams-0:b", "cams-1-2": "a", "cams-1-3": ""}},
            "status": {"nodes": {"a": {"health": "Healthy"}, "b": {"health": "Healthy"}}},
        }))
        .unwrap()
    }

    fn deleted(node: &str) -> BTreeMap<&str, Absence> {
        BTreeMap::from([(node, Absence::Deleted)])
    }

    fn away<'a>(node: &'a str, requested: &[&str]) -> BTreeMap<&'a str, Absence> {
        let requested = requested.iter().map(|one| (*one).to_owned());
        BTreeMap::from([(node, Absence::Away(requested.collect()))])
    }

    fn after(mut instance: Instance, change: Option<Change>) -> Option<Instance> {
        match change {
            Some(Change::Update { edits, .. }) => {
                for edit in edits {
                    edit.apply(&mut instance).unwrap();
                }
                Some(instance)
            }
            Some(Change::Delete { .. }) => None,
            Some(Change::Create(_)) => panic!("nothing is created"),
            None => Some(instance),
        }
    }

    #[test]
    fn a_node_that_is_gone_loses_its_slots_and_its_entries_and_others_keep_theirs() {
        for absent in [deleted("b"), away("b", &[]), away("b", &["akri.sh/other"])] {
            let left = after(instance(true), release(&instance(true), &absent)).unwrap();
            assert_eq!(left.spec.nodes, ["a"]);
            assert_eq!(left.status.nodes.keys().collect::<Vec<_>>(), ["a"]);
            let usage: Vec<&str> = left
                .spec
                .device_usage
                .values()
                .map(String::as_str)
                .collect();
            assert_eq!(usage, ["", "", "a", ""]);
        }
    }

    #[test]
    fn a_node_that_is_away_keeps_what_its_pods_ask_for_and_its_local_devices() {
        for resource in ["akri.sh/cams-1", "akri.sh/cams"] {
            assert_eq!(release(&instance(true), &away("b", &[resource])), None);
        }
        let mut claimed = instance(true);
        let slot = ("cams-1-0".to_owned(), "R:n:viewer:u:b".to_owned());
        claimed.spec.device_usage.extend([slot]);
        assert_eq!(release(&claimed, &away("b", &["R:n:viewer"])), None);
        assert!(release(&claimed, &away("b", &["R:n:other"])).is_some());
        assert_eq!(release(&instance(false), &away("b", &[])), None);
        // A deleted node does not come back as it was, whatever its pods asked for.
        assert!(release(&instance(false), &deleted("b")).is_some());
    }

    #[test]
    fn an_instance_that_nobody_sees_or_has_is_deleted_as_it_was_seen() {
        let mut shared = instance(true);
        shared.spec.nodes = vec!["b".into()];
        shared
            .spec
            .device_usage
            .insert("cams-1-2".into(), String::new());
        let delete = Some(Change::Delete {
            key: InstanceKey::new("n", "cams-1"),
            uid: "u".into(),
            resource_version: "7".into(),
        });
        assert_eq!(release(&shared, &deleted("b")), delete);
        let mut local = shared.clone();
        local.spec.shared = false;
        assert_eq!(release(&local, &deleted("b")), delete);
        // A pod on a node that no longer sees the device still holds it.
        shared
            .spec
            .device_usage
            .insert("cams-1-2".into(), "a".into());
        assert!(matches!(
            release(&shared, &deleted("b")),
            Some(Change::Update { .. })
        ));
        let mut left_over = instance(true);
        left_over.spec.nodes.clear();
        left_over.spec.device_usage.clear();
        assert_eq!(release(&left_over, &BTreeMap::new()), delete);
        left_over.spec.shared = false;
        left_over.status.nodes.clear();
        assert_eq!(release(&left_over, &deleted("b")), None);
        // The node that emptied the Instance did not get to delete it.
        let label = (NODE_LABEL.to_owned(), "b".to_owned());
        left_over.metadata.labels.extend([label]);
        assert_eq!(release(&left_over, &BTreeMap::new()), None);
        assert_eq!(release(&left_over, &away("b", &[])), None);
        assert_eq!(release(&left_over, &deleted("b")), delete);
    }

    #[test]
    fn a_node_that_is_not_ready_is_away_after_six_minutes_or_when_it_is_out_of_service() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let since = |text: &str| NodeState {
            is_out_of_service: false,
            not_ready_since: Some(text.parse().unwrap()),
        };
        assert_eq!(verdict(&NodeState::default(), now), Verdict::Present);
        assert_eq!(
            verdict(&since("2026-01-01T00:04:00Z"), now),
            Verdict::NotReady
        );
        assert_eq!(
            verdict(&since("2026-01-01T00:04:01Z"), now),
            Verdict::PresentUntil("2026-01-01T00:10:01Z".parse().unwrap())
        );
        let out = |state| NodeState {
            is_out_of_service: true,
            ..state
        };
        assert_eq!(
            verdict(&out(since("2026-01-01T00:09:59Z")), now),
            Verdict::OutOfService
        );
        assert_eq!(verdict(&out(NodeState::default()), now), Verdict::Present);
    }
}
