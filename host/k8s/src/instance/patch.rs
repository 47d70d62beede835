//! Converts edits to a JSON Patch. Each edit tests the state that it assumes, so that the patch fails if another writer has changed that
//! state, and changes nothing else. Pure.

use std::collections::BTreeMap;

use leafhost_core::instance::{Edit, GENERATION_ANNOTATION, Instance, ODD_EDIT_LABEL};
use serde_json::{Value, json};

/// Returns the operations of the `edits` on `base`, or `None` if `base` does not meet their assumptions.
pub fn of(base: &Instance, edits: &[Edit]) -> Option<Value> {
    operations(base, edits, false)
}

/// Returns the operations like [`of`], with a test that the object has not been written since `base` was read.
pub fn of_version(base: &Instance, edits: &[Edit]) -> Option<Value> {
    operations(base, edits, true)
}

fn operations(base: &Instance, edits: &[Edit], is_whole: bool) -> Option<Value> {
    let list = Vec::new();
    let mut patch = Operations { list, is_whole };
    patch.test("/metadata/uid", &json!(base.metadata.uid));
    let mut now = base.clone();
    for edit in edits {
        let before = now.clone();
        edit.apply(&mut now).ok()?;
        patch.add_edit(edit, &before, &now);
    }
    if is_guarded(base, &now) {
        patch.turn(&now.metadata.labels);
    }
    if patch.is_whole {
        // The patch fails if another writer changes the object first, so the count is right.
        let used = now.used();
        // A scheduler may not write the status; an agent later counts the slots that the scheduler has reserved.
        let reserves =
            |edit: &Edit| matches!(edit, Edit::Slot { reserved, .. } if reserved.is_some());
        let is_reserved = edits.iter().any(reserves);
        if !is_reserved && base.status.used.is_some() && now.status.used != Some(used) {
            patch.add("/status/used", &json!(used));
        }
        let version = json!(base.metadata.resource_version);
        patch.test("/metadata/resourceVersion", &version);
        // The test comes first.
        patch.list.rotate_right(1);
    }
    Some(Value::Array(patch.list))
}

/// Returns true if the policies check the Configuration before they allow these edits.
fn is_guarded(before: &Instance, now: &Instance) -> bool {
    let (old, new) = (&before.metadata, &now.metadata);
    let generation = |annotations: &BTreeMap<String, String>| {
        let text = annotations.get(GENERATION_ANNOTATION);
        text.cloned().unwrap_or_default()
    };
    before.spec.capacity != now.spec.capacity
        || generation(&old.annotations) != generation(&new.annotations)
        || old.owner_references != new.owner_references
}

struct Operations {
    list: Vec<Value>,
    /// True if a part is written as a whole, so that no other writer may have changed the object since it was read.
    is_whole: bool,
}

impl Operations {
    fn test(&mut self, path: &str, value: &Value) {
        self.list
            .push(json!({"op": "test", "path": path, "value": value}));
    }

    fn add(&mut self, path: &str, value: &Value) {
        self.list
            .push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Adds a part that another writer may have written, too.
    fn add_whole(&mut self, path: &str, value: &Value) {
        self.is_whole = true;
        self.add(path, value);
    }

    fn remove(&mut self, path: &str) {
        self.list.push(json!({"op": "remove", "path": path}));
    }

    /// Turns a value that exists if `is_there` into another one, or removes it.
    fn set(&mut self, path: &str, is_there: bool, value: Option<Value>) {
        match value {
            Some(value) => self.add(path, &value),
            None if is_there => self.remove(path),
            None => {}
        }
    }

    /// Toggles the label of odd edits.
    fn turn(&mut self, labels: &BTreeMap<String, String>) {
        if labels.is_empty() {
            return self.add_whole("/metadata/labels", &json!({ODD_EDIT_LABEL: "true"}));
        }
        let path = format!("/metadata/labels/{}", token(ODD_EDIT_LABEL));
        let found = labels.get(ODD_EDIT_LABEL);
        // An absent value is equal to null.
        self.test(&path, &json!(found));
        let next = found.is_none().then(|| json!("true"));
        self.set(&path, found.is_some(), next);
    }

    fn add_edit(&mut self, edit: &Edit, before: &Instance, now: &Instance) {
        match edit {
            Edit::Common { .. } => {
                let (old, new) = (&before.metadata.annotations, &now.metadata.annotations);
                if old.is_empty() && !new.is_empty() {
                    self.add_whole("/metadata/annotations", &json!(new));
                } else if !old.is_empty() {
                    let path = generation_path();
                    // An absent value is equal to null.
                    self.test(&path, &json!(old.get(GENERATION_ANNOTATION)));
                    if let Some(generation) = new.get(GENERATION_ANNOTATION) {
                        self.add(&path, &json!(generation));
                    }
                }
                self.add("/spec/capacity", &json!(now.spec.capacity));
                self.add("/spec/brokerProperties", &json!(now.spec.broker_properties));
                self.add_description(before, now);
            }
            Edit::Labels(labels) => {
                if before.metadata.labels.is_empty() {
                    self.add_whole("/metadata/labels", &json!(now.metadata.labels));
                } else {
                    for (name, value) in labels {
                        self.add(&format!("/metadata/labels/{}", token(name)), &json!(value));
                    }
                }
            }
            Edit::Owner(_) => {
                let owners = json!(super::owners(now.metadata.owner_references.clone()));
                self.add_whole("/metadata/ownerReferences", &owners);
                if before
                    .metadata
                    .annotations
                    .contains_key(GENERATION_ANNOTATION)
                {
                    self.remove(&generation_path());
                }
            }
            Edit::AddNode(node) => {
                if before.spec.nodes.is_empty() {
                    self.add_whole("/spec/nodes", &json!([node]));
                } else if before.spec.nodes != now.spec.nodes {
                    self.add("/spec/nodes/-", &json!(node));
                }
            }
            Edit::RemoveNode(node) => {
                let places = before.spec.nodes.iter().enumerate();
                for (index, _) in places.rev().filter(|(_, other)| *other == node) {
                    let path = format!("/spec/nodes/{index}");
                    self.test(&path, &json!(node));
                    self.remove(&path);
                }
                if before.status.nodes.contains_key(node) {
                    self.remove(&format!("/status/nodes/{}", token(node)));
                }
            }
            Edit::Status { node, .. } => {
                if before.status.nodes.is_empty() {
                    self.add_whole("/status", &json!(now.status));
                } else if let Some(entry) = now.status.nodes.get(node) {
                    self.add(&format!("/status/nodes/{}", token(node)), &json!(entry));
                }
            }
            Edit::Holders { node, holders } => {
                self.is_whole = true;
                if before.status.is_empty() {
                    self.add("/status", &json!(now.status));
                    return;
                }
                if let Some(entry) = before.status.nodes.get(node) {
                    let path = format!("/status/nodes/{}/holders", token(node));
                    let holders = (!holders.is_empty()).then(|| json!(holders));
                    self.set(&path, !entry.holders.is_empty(), holders);
                }
                self.add("/status/used", &json!(now.status.used));
            }
            Edit::Slot { id, .. } => {
                self.add_reserved(id, before, now);
                let (old, new) = (&before.spec.device_usage, &now.spec.device_usage);
                if old.is_empty() {
                    return self.add_whole("/spec/deviceUsage", &json!(new));
                }
                let path = format!("/spec/deviceUsage/{}", token(id));
                // An absent value is equal to null.
                self.test(&path, &json!(old.get(id)));
                let usage = new.get(id).map(|usage| json!(usage));
                self.set(&path, old.contains_key(id), usage);
            }
        }
    }

    /// Writes the handler's description of the device, and keeps the reservations of schedulers.
    fn add_description(&mut self, before: &Instance, now: &Instance) {
        let (Some(old), Some(new)) = (&before.spec.leafhost, &now.spec.leafhost) else {
            return self.add("/spec/leafhost", &json!(now.spec.leafhost));
        };
        let (old, new) = (json!(old), json!(new));
        for name in ["id", "attributes", "capacity", "physicalId"] {
            let path = format!("/spec/leafhost/{name}");
            self.set(&path, old.get(name).is_some(), new.get(name).cloned());
        }
    }

    /// Writes or removes a scheduler's reservation of a slot.
    fn add_reserved(&mut self, id: &str, before: &Instance, now: &Instance) {
        const ALL: &str = "/spec/leafhost/reserved";
        let path = format!("{ALL}/{}", token(id));
        let Some(leafhost) = &before.spec.leafhost else {
            if now.reserved(id).is_some() {
                self.add_whole("/spec/leafhost", &json!(now.spec.leafhost));
            }
            return;
        };
        match now.reserved(id) {
            Some(new) if leafhost.reserved.is_empty() => self.add_whole(ALL, &json!({id: new})),
            new => {
                let new = new.map(|new| json!(new));
                self.set(&path, leafhost.reserved.contains_key(id), new);
            }
        }
    }
}

fn generation_path() -> String {
    format!("/metadata/annotations/{}", token(GENERATION_ANNOTATION))
}

/// Escapes a key for a JSON pointer (RFC 6901).
fn token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use leafhost_core::allocation;
    use leafhost_core::device::Health;
    use leafhost_core::instance::{Leafhost, NodeStatus, OwnerReference, Reserved};
    use leafhost_core::slot::DeviceUsage;

    use super::*;

    fn base() -> Instance {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "a-1", "namespace": "default", "uid": "u", "resourceVersion": "7",
                "labels": {"leafhost.dev/shared": "true"}, "annotations": {"leafhost.dev/generation": "2"}},
            "spec": {"configurationName": "a", "capacity": 2, "shared": true, "nodes": ["m", "n"],
                "deviceUsage": {"a-1-0": "", "a-1-5": "n"}},
            "status": {"nodes": {"n": {"health": "Healthy"}}},
        }))
        .unwrap()
    }

    fn slot(id: &str, held: DeviceUsage, new: DeviceUsage) -> Edit {
        Edit::Slot {
            id: id.into(),
            held,
            new,
            reserved: None,
        }
    }

    fn reserved() -> Reserved {
        Reserved {
            pod: "default/p".into(),
            ..Reserved::default()
        }
    }

    fn common(replaces: Option<i64>, generation: Option<i64>) -> Edit {
        Edit::Common {
            replaces,
            generation,
            capacity: 3,
            broker_properties: BTreeMap::new(),
            leafhost: Leafhost::default(),
        }
    }

    /// Applies every patch with a JSON Patch library and expects the effect of the edit.
    #[test]
    fn a_patch_does_what_its_edit_does() {
        let node = DeviceUsage::Node("n".into());
        let status = NodeStatus::new(Health::Unhealthy("hot".into()));
        let owner = OwnerReference {
            api_version: "akri.sh/v0".into(),
            kind: "Configuration".into(),
            name: "a".into(),
            uid: "new".into(),
            controller: Some(true),
        };
        let labels = BTreeMap::from([("leafhost.dev/configuration".to_owned(), "a".to_owned())]);
        let mut bare = base();
        bare.metadata.annotations.clear();
        bare.metadata.labels.clear();
        bare.spec.nodes.clear();
        bare.spec.device_usage.clear();
        bare.status.nodes.clear();
        let reserve =
            |id: &str| allocation::reserve(id, DeviceUsage::of_pod("5f", "n"), reserved());
        let pod = DeviceUsage::of_pod("4e", "n");
        let edits = [
            reserve("a-1-0"),
            reserve("a-1-1"),
            slot("a-1-6", pod, DeviceUsage::Unused),
            slot("a-1-0", DeviceUsage::Unused, node.clone()),
            slot("a-1-1", DeviceUsage::Unused, node.clone()),
            slot("a-1-5", node.clone(), DeviceUsage::Unused),
            Edit::AddNode("o/p~q".into()),
            Edit::AddNode("n".into()),
            Edit::RemoveNode("n".into()),
            Edit::Status {
                node: "o".into(),
                status,
            },
            Edit::Owner(owner),
            Edit::Labels(labels),
            Edit::Holders {
                node: "n".into(),
                holders: BTreeMap::from([("a-1-5".to_owned(), "default/p".to_owned())]),
            },
        ];
        let mut reserving = base();
        let usage = &mut reserving.spec.device_usage;
        usage.insert("a-1-6".to_owned(), "P:4e:n".to_owned());
        reserving.spec.leafhost = Some(Leafhost {
            id: "x".into(),
            physical_id: Some("usb-1".into()),
            reserved: BTreeMap::from([("a-1-6".to_owned(), reserved())]),
            ..Leafhost::default()
        });
        let of_bases = [
            (reserving, common(Some(2), Some(3))),
            (base(), common(Some(2), Some(3))),
            (bare, common(None, Some(3))),
        ];
        for (base, common) in of_bases {
            for edit in edits.iter().chain([&common]) {
                let mut wanted = base.clone();
                if edit.apply(&mut wanted).is_err() {
                    assert_eq!(of(&base, std::slice::from_ref(edit)), None);
                    continue;
                }
                let mut patch = of(&base, std::slice::from_ref(edit)).unwrap();
                // To the API server's library an absent value equals null; to this one it is an error.
                let operations = patch.as_array_mut().unwrap();
                operations.retain(|one| one["op"] != "test" || !one["value"].is_null());
                let mut object = serde_json::to_value(&base).unwrap();
                let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
                json_patch::patch(&mut object, &patch).unwrap();
                let mut made: Instance = serde_json::from_value(object).unwrap();
                let is_odd = made.metadata.labels.remove(ODD_EDIT_LABEL).is_some();
                let is_guarded = matches!(edit, Edit::Owner(_) | Edit::Common { .. });
                assert_eq!(is_odd, is_guarded, "{edit:?}");
                assert_eq!(made, wanted, "{edit:?}");
                assert!(edit.is_made(&made), "{edit:?}");
            }
        }
    }

    #[test]
    fn a_claim_names_the_object_and_the_value_it_replaces_and_nothing_else() {
        let node = DeviceUsage::Node("n".into());
        let patch = |id: &str| of(&base(), &[slot(id, DeviceUsage::Unused, node.clone())]);
        let test = |value: Value| {
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": value["path"], "value": value["value"]},
                {"op": "add", "path": value["path"], "value": "n"},
            ])
        };
        assert_eq!(
            patch("a-1-0"),
            Some(test(
                json!({"path": "/spec/deviceUsage/a-1-0", "value": ""})
            ))
        );
        assert_eq!(
            patch("a-1-1"),
            Some(test(
                json!({"path": "/spec/deviceUsage/a-1-1", "value": null})
            ))
        );
        assert_eq!(patch("a-1-5"), None);
    }

    #[test]
    fn the_label_of_odd_edits_comes_and_goes_with_edits_of_owner_generation_and_capacity() {
        let path = format!("/metadata/labels/{}", token(ODD_EDIT_LABEL));
        let turns = |base: &Instance, edit: Edit| {
            let written = of(base, &[edit]).unwrap();
            let operations = written.as_array().unwrap().iter();
            let found = operations.filter(|one| one["path"] == path.as_str());
            found.map(|one| one["op"].clone()).collect::<Vec<_>>()
        };
        let unguarded = Edit::Common {
            replaces: Some(2),
            generation: Some(2),
            capacity: 2,
            broker_properties: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            leafhost: Leafhost::default(),
        };
        let mut odd = base();
        let label = (ODD_EDIT_LABEL.to_owned(), "true".to_owned());
        odd.metadata.labels.extend([label]);
        assert_eq!(turns(&base(), common(Some(2), Some(3))), ["test", "add"]);
        assert_eq!(turns(&odd, common(Some(2), Some(2))), ["test", "remove"]);
        assert!(turns(&odd, unguarded).is_empty());
        assert!(turns(&odd, Edit::AddNode("o".into())).is_empty());
    }

    #[test]
    fn a_release_needs_the_version_on_which_it_was_decided() {
        let edits = [slot(
            "a-1-5",
            DeviceUsage::Node("n".into()),
            DeviceUsage::Unused,
        )];
        let patch = of_version(&base(), &edits).unwrap();
        let first = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
        assert_eq!(patch[0], first);
        assert_eq!(
            patch.as_array().unwrap()[1..],
            of(&base(), &edits).unwrap().as_array().unwrap()[..]
        );
    }

    #[test]
    fn what_is_used_is_counted_again_where_nobody_else_can_have_written() {
        let edits = [slot(
            "a-1-5",
            DeviceUsage::Node("n".into()),
            DeviceUsage::Unused,
        )];
        let mut base = base();
        base.status.used = Some(1);
        let last = |patch: Option<Value>| patch.unwrap().as_array().unwrap().last().cloned();
        let counted = json!({"op": "add", "path": "/status/used", "value": 0});
        assert_eq!(last(of_version(&base, &edits)), Some(counted.clone()));
        assert_ne!(last(of(&base, &edits)), Some(counted));
    }

    #[test]
    fn a_reservation_writes_nothing_but_the_slot_and_for_whom_it_is() {
        let edit = allocation::reserve("a-1-0", DeviceUsage::of_pod("5f", "n"), reserved());
        let mut base = base();
        base.status.used = Some(0);
        base.spec.leafhost = Some(Leafhost::default());
        let patch = of(&base, &[edit]).unwrap();
        let written: Vec<&Value> = patch
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["op"] != "test")
            .map(|one| &one["path"])
            .collect();
        assert_eq!(
            written,
            ["/spec/leafhost/reserved", "/spec/deviceUsage/a-1-0"]
        );
    }

    #[test]
    fn holders_are_written_into_the_nodes_own_entry_and_a_state_keeps_them() {
        let holders = BTreeMap::from([("a-1-5".to_owned(), "default/p".to_owned())]);
        let held = Edit::Holders {
            node: "n".into(),
            holders: holders.clone(),
        };
        let patch = of(&base(), &[held]).unwrap();
        let paths: Vec<&Value> = patch
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["path"])
            .collect();
        let expected = [
            "/metadata/resourceVersion",
            "/metadata/uid",
            "/status/nodes/n/holders",
            "/status/used",
        ];
        assert_eq!(paths, expected);
        let mut seen = base();
        seen.status.nodes.get_mut("n").unwrap().holders = holders.clone();
        let hot = Edit::Status {
            node: "n".into(),
            status: NodeStatus::new(Health::Unhealthy("hot".into())),
        };
        let patch = of(&seen, &[hot]).unwrap();
        assert_eq!(patch[1]["value"]["holders"], json!(holders));
        assert_eq!(patch[1]["value"]["reason"], "hot");
    }

    #[test]
    fn a_node_without_holders_has_no_field_of_holders() {
        let none = Edit::Holders {
            node: "n".into(),
            holders: BTreeMap::new(),
        };
        let of_holders = |seen: &Instance| -> Vec<Value> {
            let patch = of(seen, std::slice::from_ref(&none)).unwrap();
            let all = patch.as_array().unwrap().iter();
            let all = all.filter(|one| one["path"] == "/status/nodes/n/holders");
            all.map(|one| one["op"].clone()).collect()
        };
        let mut seen = base();
        assert_eq!(of_holders(&seen), Vec::<Value>::new());
        let entry = seen.status.nodes.get_mut("n").unwrap();
        entry.holders = BTreeMap::from([("a-1-5".to_owned(), "default/p".to_owned())]);
        assert_eq!(of_holders(&seen), ["remove"]);
    }

    #[test]
    fn what_is_written_whole_needs_the_version_that_was_seen() {
        let owner = OwnerReference {
            api_version: String::new(),
            kind: "Configuration".into(),
            name: "a".into(),
            uid: "new".into(),
            controller: None,
        };
        let patch = of(&base(), &[Edit::Owner(owner)]).unwrap();
        let first = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
        assert_eq!(patch[0], first);
    }
}
