//! Shared Instance, and an agent whose node does not see its device.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Agent, instance, instance_path, refused};

/// Name of the Instance; only `b` of both nodes sees the device.
const NAME: &str = "cams-0b5eed";

/// Tries the requests, with the Configuration `cams` in its fourth generation.
pub fn check(a: &Agent<'_>, b: &Agent<'_>) -> Result<()> {
    let mut object = instance(NAME, "node-b", true);
    object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "4"});
    object["spec"]["capacity"] = json!(3);
    b.create(&object)?;
    let path = instance_path(a.space, NAME);
    let admin = |change: &Value| a.cluster.api().merge(&path, change).map(drop);
    let slot = |value: &str| json!({"spec": {"deviceUsage": {format!("{NAME}-0"): value}}});
    let entry = |entry: Value| a.patch(NAME, &json!({"status": {"nodes": {"node-a": entry}}}));
    let label = json!({"metadata": {"labels": {"leafhost.dev/shared": "true"}}});
    let newer = json!({"metadata": {"annotations": {"leafhost.dev/generation": "4"}}});
    let (nodes, status) = ("spec.nodes", "status.nodes");

    // The Instance's capacity now differs from the Configuration's, and an agent of its nodes would correct it.
    admin(&json!({"spec": {"capacity": 2}}))?;

    // An agent may write only its own entry in the status.
    entry(json!({"health": "Unhealthy", "reason": "cold"}))?;
    for (what, done, by) in [
        (
            "a reason without an illness",
            entry(json!({"health": "Healthy", "reason": "x"})),
            status,
        ),
        (
            "an illness without a reason",
            entry(json!({"health": "Unhealthy", "reason": null})),
            status,
        ),
        (
            "a reason that fills the object",
            entry(json!({"reason": "x".repeat(60_000)})),
            status,
        ),
        (
            "a time before the start of the node",
            entry(json!({"missingUptime": {"boot": "b", "seconds": -1}})),
            status,
        ),
        ("a claim", a.patch(NAME, &slot("node-a")), nodes),
        (
            "a claim through the Configuration's resource",
            a.patch(NAME, &slot("C:cams-0:node-a")),
            nodes,
        ),
        (
            "a slot more",
            a.patch(
                NAME,
                &json!({"spec": {"deviceUsage": {format!("{NAME}-7"): ""}}}),
            ),
            nodes,
        ),
        (
            "properties",
            a.patch(
                NAME,
                &json!({"spec": {"brokerProperties": {"URL": "mine"}}}),
            ),
            nodes,
        ),
        (
            "attributes",
            a.patch(
                NAME,
                &json!({"spec": {"leafhost": {"attributes": {"model": {"string": "mine"}}}}}),
            ),
            nodes,
        ),
        (
            "the capacity",
            a.edit(NAME, &json!({"spec": {"capacity": 3}})),
            nodes,
        ),
        (
            "the generation",
            a.edit(
                NAME,
                &json!({"metadata": {"annotations": {"leafhost.dev/generation": "3"}}}),
            ),
            nodes,
        ),
        ("the label of odd edits", a.edit(NAME, &json!({})), nodes),
        (
            "an annotation",
            a.patch(NAME, &json!({"metadata": {"annotations": {"a": "b"}}})),
            nodes,
        ),
        (
            "the name of the CDI device",
            a.patch(NAME, &json!({"spec": {"cdiName": "akri.sh/cams=other"}})),
            "spec.cdiName",
        ),
    ] {
        refused(what, done, by)?;
    }
    admin(&json!({"metadata": {"labels": {"leafhost.dev/shared": null}, "annotations": null}}))?;
    refused("a label put back", a.patch(NAME, &label), nodes)?;
    refused("the generation put back", a.edit(NAME, &newer), nodes)?;

    // A node that finds the device joins with its first write.
    let joined = json!([
        {"op": "add", "path": "/spec/nodes/-", "value": "node-a"},
        {"op": "add", "path": "/metadata/labels/leafhost.dev~1shared", "value": "true"},
        {"op": "add", "path": format!("/spec/deviceUsage/{NAME}-0"), "value": "node-a"},
        {"op": "add", "path": "/spec/brokerProperties", "value": {"URL": "found"}},
    ]);
    a.patch(NAME, &joined)?;
    a.edit(NAME, &newer)?;
    // The node leaves while a pod still has the slot, and frees the slot later.
    let left = json!({"spec": {"nodes": ["node-b"]}, "status": {"nodes": {"node-a": null}}});
    a.patch(NAME, &left)?;
    refused(
        "a slot renamed",
        a.patch(NAME, &slot("C:cams-0:node-a")),
        nodes,
    )?;
    a.patch(NAME, &slot(""))?;
    refused("a slot taken again", a.patch(NAME, &slot("node-a")), nodes)?;
    entry(
        json!({"health": "Unknown", "missingSince": "2026-01-01T00:00:00Z", "missingUptime": {"boot": "b", "seconds": 1}}),
    )?;
    entry(json!(null))?;
    let found = a.cluster.get(&path)?;
    ensure!(found["spec"]["nodes"] == json!(["node-b"]), "{found:#}");
    local(a)
}

/// Tries a local Instance whose device its node does not see at the moment.
fn local(a: &Agent<'_>) -> Result<()> {
    let name = "cams-10ca10";
    let mut object = instance(name, "node-b", false);
    object["spec"]["nodes"] = json!([]);
    object["spec"]["deviceUsage"] = json!({});
    let in_space = ["create", "--namespace", a.space.name(), "--filename", "-"];
    a.cluster.kubectl_with(&in_space, &object.to_string())?;
    let joined = json!({"spec": {"nodes": ["node-a"]}});
    let nodes = "spec.nodes";
    for (what, done) in [
        ("another node's Instance taken over", a.patch(name, &joined)),
        (
            "another node's Instance deleted",
            a.delete("instance", name),
        ),
    ] {
        refused(what, done, nodes)?;
    }
    Ok(())
}
