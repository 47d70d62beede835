use super::*;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn manager(name: &str, operation: &str, fields: &Value) -> Value {
    json!({"manager": name, "operation": operation, "apiVersion": API_VERSION, "fieldsType": "FieldsV1", "fieldsV1": fields})
}

fn finalizer(node: &str) -> Value {
    json!({"f:metadata": {"f:finalizers": {format!("v:\"{node}\""): {}}}})
}

/// Returns an Instance as two agents of Akri and its controller have written it.
fn instance() -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Instance",
        "metadata": {
            "name": "cams-8120fe", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "finalizers": ["node-a", "node-b", "example.com/x"],
            "managedFields": [
                manager("node-a", "Apply", &json!({"f:spec": {"f:capacity": {}, "f:nodes": {"v:\"node-a\"": {}}}})),
                manager("node-a-fin", "Apply", &finalizer("node-a")),
                manager("dp-node-a", "Apply", &json!({"f:spec": {"f:deviceUsage": {"f:cams-8120fe-0": {}}}})),
                manager("unknown", "Update", &json!({"f:spec": {"f:nodes": {}}})),
            ],
        },
        "spec": {"configurationName": "cams", "cdiName": "akri.sh/cams=8120fe", "capacity": 2, "shared": true, "nodes": ["node-a", "node-b"],
            "brokerProperties": {}, "deviceUsage": {"cams-8120fe-0": "C:cams-0:node-a"}},
    })
}

fn configuration() -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Configuration",
        "metadata": {
            "name": "cams", "namespace": "default", "uid": "u", "resourceVersion": "7", "finalizers": ["node-a", "orphan"],
            "managedFields": [
                manager("node-a-fin", "Apply", &finalizer("node-a")),
                manager("me", "Apply", &json!({"f:metadata": {"f:finalizers": {}, "f:labels": {}}})),
                manager("helm", "Update", &json!({"f:spec": {}})),
            ],
        },
        "spec": {"discoveryHandler": {"name": "onvif"}},
        "status": {"ready": "1/1"},
    })
}

/// Applies the change and returns the object; checks that a second change is not needed.
fn changed(before: Value, change: impl Fn(&DynamicObject) -> Option<Value>) -> Value {
    let patch = change(&object(before.clone())).unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "7", "{patch}");
    let mut after = before;
    json_patch::merge(&mut after, &patch);
    assert_eq!(change(&object(after.clone())), None, "{after:#}");
    after
}

fn managers(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries
        .iter()
        .filter_map(|entry| entry["manager"].as_str())
        .collect()
}

#[test]
fn the_marks_of_akris_agents_go_and_all_else_stays() {
    let after = changed(instance(), take_instance);
    assert_eq!(after["metadata"]["finalizers"], json!(["example.com/x"]));
    assert_eq!(managers(&after), ["leafhost"]);
    assert_eq!(after["spec"], instance()["spec"]);
    let after = changed(configuration(), take_configuration);
    assert_eq!(after["metadata"]["finalizers"], json!(["orphan"]));
    assert_eq!(managers(&after), ["me", "helm"]);
    assert_eq!(
        (&after["spec"], &after["status"]),
        (&configuration()["spec"], &configuration()["status"])
    );
}

#[test]
fn what_leafhost_and_users_wrote_is_no_mark_of_akri() {
    let mut own = instance();
    own["metadata"]["finalizers"] = json!(["example.com/x", "foregroundDeletion"]);
    own["metadata"]["managedFields"] = json!([
        manager("leafhost", "Update", &json!({"f:spec": {}})),
        manager("leafhost-controller", "Update", &json!({"f:spec": {}})),
        manager("kubectl-edit", "Update", &json!({"f:metadata": {}})),
    ]);
    assert_eq!(take_instance(&object(own)), None);
    let mut own = configuration();
    own["metadata"]["finalizers"].take();
    own["metadata"]["managedFields"] = json!([manager("helm", "Update", &json!({"f:spec": {}}))]);
    assert_eq!(take_configuration(&object(own)), None);
}

#[test]
fn each_agent_of_akri_gets_its_own_entries_and_slots_and_nobody_else_has_any() {
    let mut leafhosts = instance();
    leafhosts["metadata"]["managedFields"] = json!([manager(
        "leafhost",
        "Update",
        &json!({"f:spec": {"f:nodes": {}}})
    )]);
    leafhosts["spec"]["deviceUsage"] =
        json!({"cams-8120fe-0": "C:cams-0:node-a", "cams-8120fe-1": "", "cams-8120fe-2": "node-b"});
    leafhosts["spec"]["leafhost"] = json!({"id": "x"});
    let after = changed(leafhosts, give_instance);
    assert_eq!(managers(&after), ["node-a", "node-b", "dp-node-a"]);
    let entries = &after["metadata"]["managedFields"];
    assert_eq!(
        entries[0]["fieldsV1"]["f:spec"]["f:nodes"],
        json!({"v:\"node-a\"": {}})
    );
    assert_eq!(
        entries[2]["fieldsV1"],
        json!({"f:spec": {"f:deviceUsage": {"f:cams-8120fe-0": {}}}})
    );
    // Slot 2 is beyond the capacity, which keeps Akri from reading the Instance.
    assert_eq!(
        after["spec"]["deviceUsage"],
        json!({"cams-8120fe-0": "C:cams-0:node-a", "cams-8120fe-1": ""})
    );
    assert_eq!(
        after["metadata"]["finalizers"],
        instance()["metadata"]["finalizers"]
    );

    let mut of_none = instance();
    of_none["spec"]["nodes"] = json!([]);
    of_none["spec"]["deviceUsage"] = json!({});
    assert_eq!(managers(&changed(of_none, give_instance)), ["leafhost"]);
}

#[test]
fn a_configuration_loses_its_status_and_nothing_else() {
    let after = changed(configuration(), give_configuration);
    let mut expected = configuration();
    expected.as_object_mut().unwrap().remove("status");
    assert_eq!(after, expected);
}
