//! Names, slots and sizes: the forms in which an agent may write its own objects.

use anyhow::Result;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use super::{Agent, instance, refused, report};

/// Configuration that is created after an Instance of it.
const LATER: &str = "later";

/// Tries the forms, with the Configuration `cams` in its fourth generation and its shared Instance `cams-5ba0ed`.
pub fn check(a: &Agent<'_>) -> Result<()> {
    let current = |name: &str| {
        let mut object = instance(name, "node-a", false);
        object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "4"});
        object["spec"]["capacity"] = json!(3);
        object
    };
    let with = |field: &str, value: Value| {
        let mut object = current("cams-0f0f0f");
        object["spec"][field] = value;
        object
    };
    let slot = |slot: &str, value: &str| {
        let name = format!("cams-5ba0ed-{slot}");
        a.patch(
            "cams-5ba0ed",
            &json!({"spec": {"deviceUsage": {name: value}}}),
        )
    };
    let many: serde_json::Map<String, Value> = (0..20_000)
        .map(|number| (format!("x{number}"), json!("")))
        .collect();
    let mut dotted = report("node-a.lan.attacks", "node-a");
    dotted["spec"]["handler"] = json!("lan.attacks");
    let mut elsewhere = report("node-a.attacks", "node-a");
    elsewhere["status"] = json!({"phase": "Active", "sources": [{"name": "a.wasm",
        "configMap": {"namespace": "kube-system", "name": "evil", "uid": "u"}}]});
    let (name, slots) = ("metadata.name", "spec.deviceUsage");
    a.kubectl(&["delete", "dh", "node-a.attacks"], "")?;
    for (what, done, by) in [
        (
            "a name that is not the Configuration's",
            a.create(&current("node-b-cams-0f0f0f")),
            name,
        ),
        (
            "a name without a digest",
            a.create(&current("cams-svc")),
            name,
        ),
        (
            "a name with a digest of another length",
            a.create(&current("cams-0f0f0")),
            name,
        ),
        (
            "a slot whose value is no usage",
            slot("0", "x:node-a"),
            slots,
        ),
        (
            "a slot with a device that has no name",
            slot("0", "C::node-a"),
            slots,
        ),
        ("a slot that has no number", slot("first", "node-a"), slots),
        (
            "a slot whose number begins with a zero",
            slot("00", "node-a"),
            slots,
        ),
        (
            "slots without end",
            a.create(&with("deviceUsage", Value::Object(many))),
            slots,
        ),
        (
            "the report of another node's handler",
            a.create(&dotted),
            name,
        ),
        (
            "a report of a ConfigMap elsewhere",
            a.create(&elsewhere),
            "status.sources",
        ),
    ] {
        refused(what, done, by)?;
    }
    a.create(&report("node-a.attacks", "node-a"))?;
    too_early(a)
}

/// Checks that an Instance created before its Configuration gets an owner only together with the Configuration's capacity and generation.
fn too_early(a: &Agent<'_>) -> Result<()> {
    let name = "later-0a0a0a";
    let mut object = instance(name, "node-a", true);
    object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "999999"});
    object["metadata"]["labels"]["leafhost.dev/configuration"] = json!(LATER);
    object["spec"]["configurationName"] = json!(LATER);
    object["spec"]["cdiName"] = json!(format!("akri.sh/{LATER}=0a0a0a"));
    object["spec"]["capacity"] = json!(1000);
    a.create(&object)?;
    let space = a.space.name();
    let manifest = format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {LATER}, namespace: {space}}}\nspec: {{discoveryHandler: {{name: none}}, capacity: 1}}\n"
    );
    a.cluster.apply(&manifest)?;
    let path = format!("/apis/akri.sh/v0/namespaces/{space}/configurations/{LATER}");
    let uid = a.cluster.get(&path)?["metadata"]["uid"].clone();
    let mut owned = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": LATER, "uid": uid, "controller": true}]}});
    eventually("the API server knows the Configuration", || {
        refused(
            "an owner with another capacity",
            a.edit(name, &owned),
            "spec.capacity",
        )
    })?;
    owned["metadata"]["annotations"] = json!({"leafhost.dev/generation": "1"});
    owned["spec"] = json!({"capacity": 1});
    a.edit(name, &owned)?;
    Ok(())
}
