//! Size limits of the objects that an agent writes; others wait for each write.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{Agent, instance, refused, report};

/// Tries the limits, with the Configuration `cams` in its fourth generation.
pub fn check(a: &Agent<'_>) -> Result<()> {
    instances(a)?;
    reports(a)
}

fn instances(a: &Agent<'_>) -> Result<()> {
    let name = "cams-b00b0d";
    let mut object = instance(name, "node-a", true);
    object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "4"});
    object["spec"]["capacity"] = json!(3);
    let with = |field: &str, value: Value| {
        let mut object = object.clone();
        object["metadata"]["name"] = json!("cams-b00b0e");
        object["spec"]["cdiName"] = json!("akri.sh/cams=b00b0e");
        object["spec"]["deviceUsage"] = json!({});
        object["spec"][field] = value;
        a.create(&object)
    };
    let patch = |spec: Value| a.patch(name, &json!({"spec": spec}));
    let many = |count: usize, value: &str| -> Value {
        let names = (0..count).map(|number| (format!("P_{number}"), json!(value)));
        Value::Object(names.collect())
    };
    let attributes = |count: usize, value: &str| {
        let one = |number: usize| (format!("a{number}"), json!({"string": value}));
        json!({"id": name, "attributes": (0..count).map(one).collect::<Map<_, _>>()})
    };
    let slots = |value: &str| -> Value {
        let one = |number: usize| (format!("{name}-{number}"), json!(value));
        json!({"deviceUsage": (0..1000).map(one).collect::<Map<_, _>>()})
    };

    // An agent never writes more than this.
    a.create(&object)?;
    patch(json!({"brokerProperties": {"A": "\u{e9}".repeat(60 << 10)}}))?;
    patch(json!({"brokerProperties": null}))?;
    patch(json!({"brokerProperties": many(4000, "0123456789abcdef")}))?;
    patch(json!({"leafhost": attributes(32, &"x".repeat(64))}))?;
    patch(slots("C:cams-999:node-a"))?;
    patch(slots(""))?;

    let (properties, device) = ("spec.brokerProperties", "spec.leafhost");
    for (what, done, by) in [
        (
            "properties that fill the object",
            with("brokerProperties", json!({"A": "a".repeat(300 << 10)})),
            properties,
        ),
        (
            "properties whose characters have many bytes",
            patch(json!({"brokerProperties": {"A": "\u{1f4f7}".repeat(40 << 10)}})),
            properties,
        ),
        (
            "properties without end",
            patch(json!({"brokerProperties": many(6000, "")})),
            properties,
        ),
        (
            "attributes without end",
            patch(json!({"leafhost": attributes(40, "x")})),
            device,
        ),
        (
            "a large attribute",
            patch(json!({"leafhost": attributes(1, &"x".repeat(65))})),
            device,
        ),
        (
            "an attribute with a large name",
            patch(json!({"leafhost": {"attributes": {"n".repeat(100): {"int": 1}}}})),
            device,
        ),
        (
            "a large amount",
            patch(json!({"leafhost": {"capacity": {"memory": "1".repeat(100)}}})),
            device,
        ),
        (
            "a slot with a large name of its device",
            patch(
                json!({"deviceUsage": {format!("{name}-0"): format!("C:{}:node-a", "x".repeat(200))}}),
            ),
            "spec.deviceUsage",
        ),
        (
            "another name of the CDI device",
            with("cdiName", json!("akri.sh/cams=b00b0f")),
            "spec.cdiName",
        ),
        (
            "no name of the CDI device",
            with("cdiName", Value::Null),
            "spec.cdiName",
        ),
        (
            "the name of the CDI device changed",
            patch(json!({"cdiName": "x".repeat(500 << 10)})),
            "spec.cdiName",
        ),
        (
            "an annotation",
            a.patch(name, &json!({"metadata": {"annotations": {"a": "b"}}})),
            "metadata.annotations",
        ),
        (
            "another name of the writer",
            a.patch_as(
                "mine",
                name,
                &json!({"spec": {"brokerProperties": {"A": "b"}}}),
            ),
            "fieldManager",
        ),
    ] {
        refused(what, done, by)?;
    }
    a.kubectl(&["delete", "instance", name], "")?;
    Ok(())
}

fn reports(a: &Agent<'_>) -> Result<()> {
    a.kubectl(&["delete", "dh", "node-a.attacks"], "")?;
    let text = |size: usize| "x".repeat(size);
    let sources = |count: usize, size: usize| {
        let one = |number: usize| json!({"name": format!("{number}.wasm"), "problem": text(size)});
        json!({"phase": "Active", "sources": (0..count).map(one).collect::<Vec<_>>()})
    };
    let configurations = |count: usize, size: usize| {
        let one = |number: usize| json!({"namespace": "default", "name": format!("c{number}"), "reason": "DiscoveryFailed", "problem": text(size)});
        json!({"phase": "Active", "configurations": (0..count).map(one).collect::<Vec<_>>()})
    };
    let with = |status: Value| {
        let mut object = report("node-a.attacks", "node-a");
        object["status"] = status;
        a.create(&object)
    };
    let mut grants = sources(1, 0);
    grants["sources"][0]["missingGrants"] = json!(vec!["network"; 4000]);
    let mut noted = report("node-a.attacks", "node-a");
    noted["metadata"]["annotations"] = json!({"note": text(200 << 10)});
    let status = "status:";
    for (what, done, by) in [
        ("sources without end", with(sources(65, 0)), status),
        ("a large source", with(sources(1, 17 << 10)), status),
        ("grants without end", with(grants), status),
        (
            "many sources of some size",
            with(sources(60, 5 << 10)),
            status,
        ),
        ("a large problem", with(configurations(1, 17 << 10)), status),
        ("many problems", with(configurations(600, 512)), status),
        (
            "Configurations without end",
            with(configurations(2001, 0)),
            status,
        ),
        (
            "a large problem of the handler",
            with(json!({"phase": "Active", "problem": text(17 << 10)})),
            status,
        ),
        ("an annotation", a.create(&noted), "metadata.annotations"),
    ] {
        refused(what, done, by)?;
    }
    with(configurations(2000, 80))?;
    Ok(())
}
