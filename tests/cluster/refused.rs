//! Objects that the CRDs of the chart refuse: the API server names the field and the rule.

use anyhow::{Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

/// Returns a valid object of the kind.
fn good(kind: &str) -> Value {
    let spec = match kind {
        "Configuration" => json!({
            "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "", "discoveryProperties": [
                {"name": "PLAIN", "value": "x"},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ]},
            "brokerSpec": {"brokerPodSpec": {"containers": []}},
            "capacity": 2,
        }),
        _ => json!({
            "configurationName": "cams", "cdiName": "akri.sh/cams=1", "capacity": 2, "shared": true, "nodes": ["node-a"],
            "deviceUsage": {"cams-1-0": ""}, "leafhost": {"id": "one", "attributes": {"a": {"int": 1}}},
        }),
    };
    json!({"apiVersion": "akri.sh/v0", "kind": kind, "metadata": {"name": "good"}, "spec": spec})
}

#[test]
fn the_api_server_refuses_nonsense_and_names_the_field() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    cluster.define()?;
    let space = cluster.namespace("refused")?;
    let path = |kind: &str| {
        let plural = kind.to_lowercase() + "s";
        format!("/apis/akri.sh/v0/namespaces/{}/{plural}", space.name())
    };
    for kind in ["Configuration", "Instance"] {
        let create = || cluster.api().create(&path(kind), &good(kind));
        eventually("a good one is accepted", create)?;
    }
    let handler = "/spec/discoveryHandler";
    let (plain, secret) = (
        "/spec/discoveryHandler/discoveryProperties/0",
        "/spec/discoveryHandler/discoveryProperties/1/valueFrom",
    );
    let key = json!({"name": "s", "key": "k"});
    for (kind, at, value, field, why) in [
        (
            "Configuration",
            "/metadata/name",
            json!("n".repeat(237)),
            "metadata.name must have at most 236",
            "names of Instances",
        ),
        (
            "Configuration",
            "/spec/capacity",
            json!(-1),
            "spec.capacity",
            "greater than or equal to 0",
        ),
        (
            "Configuration",
            "/spec/capacity",
            json!("two"),
            "spec.capacity",
            "must be of type integer",
        ),
        (
            "Configuration",
            handler,
            json!({}),
            "spec.discoveryHandler.name",
            "Required",
        ),
        (
            "Configuration",
            "/spec/discoveryHandler/name",
            json!(""),
            "spec.discoveryHandler.name",
            "at least 1",
        ),
        (
            "Configuration",
            "/spec/discoveryHandler/name",
            json!("n".repeat(64)),
            "spec.discoveryHandler.name",
            "63",
        ),
        (
            "Configuration",
            "/spec/discoveryHandler/discoveryDetails",
            json!("d".repeat(262_145)),
            "spec.discoveryHandler.discoveryDetails",
            "262144",
        ),
        (
            "Configuration",
            "/spec/discoveryHandler/discoveryDetails",
            json!({"a": 1}),
            "spec.discoveryHandler.discoveryDetails",
            "must be of type string",
        ),
        (
            "Configuration",
            plain,
            json!({"name": "9", "value": "x"}),
            "discoveryProperties[0].name",
            "should match",
        ),
        (
            "Configuration",
            plain,
            json!({"name": "A", "value": "x", "valueFrom": {"secretKeyRef": key}}),
            "discoveryProperties[0]",
            "one of value and valueFrom, not both",
        ),
        (
            "Configuration",
            secret,
            json!({}),
            "discoveryProperties[1].valueFrom",
            "exactly one of secretKeyRef and configMapKeyRef",
        ),
        (
            "Configuration",
            secret,
            json!({"secretKeyRef": key, "configMapKeyRef": key}),
            "discoveryProperties[1].valueFrom",
            "exactly one of secretKeyRef and configMapKeyRef",
        ),
        (
            "Configuration",
            secret,
            json!({"secretKeyRef": {"name": "s"}}),
            "valueFrom.secretKeyRef.key",
            "Required",
        ),
        (
            "Configuration",
            "/spec/brokerSpec",
            json!({}),
            "spec.brokerSpec",
            "exactly one of brokerPodSpec and brokerJobSpec",
        ),
        (
            "Configuration",
            "/spec/brokerSpec",
            json!({"brokerPodSpec": {}, "brokerJobSpec": {}}),
            "spec.brokerSpec",
            "exactly one of brokerPodSpec and brokerJobSpec",
        ),
        (
            "Instance",
            "/spec/capacity",
            json!(-1),
            "spec.capacity",
            "greater than or equal to 0",
        ),
        (
            "Instance",
            "/spec/nodes",
            json!(["a", "a"]),
            "spec.nodes[1]",
            "Duplicate",
        ),
        (
            "Instance",
            "/spec/deviceUsage",
            json!({"cams-1-0": 1}),
            "spec.deviceUsage.cams-1-0",
            "must be of type string",
        ),
        (
            "Instance",
            "/spec/leafhost/id",
            json!("i".repeat(1025)),
            "spec.leafhost.id",
            "1024",
        ),
        (
            "Instance",
            "/spec/leafhost/attributes",
            json!({"a": {"int": 1, "string": "x"}}),
            "spec.leafhost.attributes",
            "at most 1",
        ),
    ] {
        let mut object = good(kind);
        object["metadata"]["name"] = json!("nonsense");
        if let Some(there) = object.pointer_mut(at) {
            *there = value;
        }
        let Err(error) = cluster.api().create(&path(kind), &object) else {
            anyhow::bail!("{kind}: {at} is accepted: {object:#}");
        };
        // The end of the message contains the object itself.
        let text = error.root_cause().to_string();
        ensure!(text.contains("422"), "{kind}: {at}: {text}");
        ensure!(
            text.contains(field) && text.contains(why),
            "{kind}: {at}: {text}"
        );
    }
    let renamed = json!({"spec": {"configurationName": "other"}});
    let path = format!("{}/good", path("Instance"));
    let error = cluster.api().merge(&path, &renamed).err();
    let text = format!(
        "{:#}",
        anyhow::Context::context(error, "it can be renamed")?
    );
    ensure!(
        text.contains("spec.configurationName") && text.contains("cannot be changed"),
        "{text}"
    );
    Ok(())
}
