//! ResourceSlices that the token of an agent may write.

use std::time::Duration;

use anyhow::Result;
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use super::{Agent, refused};

/// Returns a slice as the agent of this node creates it.
fn slice(name: &str, node: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "leafhost.dev", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "cams-0"}]}})
}

/// Tries the slices that an agent may publish, and those that it may not.
pub(super) fn check(a: &Agent<'_>, b: &Agent<'_>) -> Result<()> {
    a.create(&slice("attacks-a", "node-a"))?;
    b.create(&slice("attacks-b", "node-b"))?;
    let mut pool = slice("attacks-c", "node-a");
    pool["spec"]["pool"]["name"] = json!("node-b");
    pool["spec"]["pool"]["generation"] = json!(999);
    let mut shared = slice("attacks-c", "node-a");
    shared["spec"]["pool"]["name"] = json!("attacks/cams");
    let mut driver = slice("attacks-c", "node-a");
    driver["spec"]["driver"] = json!("gpu.example.com");
    let mut everywhere = slice("attacks-c", "node-a");
    everywhere["spec"]["nodeName"] = Value::Null;
    everywhere["spec"]["allNodes"] = json!(true);
    let other = slice("attacks-c", "node-b");
    within(Duration::from_mins(1), "the policy is in effect", || {
        let done = a.create(&other);
        if done.is_ok() {
            b.delete("resourceslice", "attacks-c")?;
        }
        refused("a slice of another node", done, "spec.nodeName")
    })?;
    for (what, object, by) in [
        ("a slice of another node", &other, "spec.nodeName"),
        ("a slice of all nodes", &everywhere, "spec.nodeName"),
        (
            "a slice in the pool of another node",
            &pool,
            "spec.pool.name",
        ),
        ("a slice in a shared pool", &shared, "spec.pool.name"),
        ("a slice of another driver", &driver, "spec.driver"),
    ] {
        refused(what, a.create(object), by)?;
    }
    let done = a.delete("resourceslice", "attacks-b");
    refused("the end of another node's slice", done, "spec.nodeName")?;
    let all = a.kubectl(&["delete", "resourceslices", "--all", "--wait=false"], "");
    refused("the end of all slices", all, "spec.nodeName")?;
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "attacks"}, "spec": {}});
    refused("a class", a.create(&class), "deviceclasses")?;
    let claims = a.kubectl(&["get", "resourceclaims"], "");
    refused("a list of claims", claims, "resourceclaims")?;
    for agent in [a, b] {
        // The policies refuse the slice of the other node.
        let _ = agent.delete("resourceslice", "attacks-a");
        let _ = agent.delete("resourceslice", "attacks-b");
    }
    Ok(())
}
