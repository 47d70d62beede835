//! Slots that a scheduler reserves for pods, and the pods: the changes that agents, the scheduler's account and users may write.

use anyhow::{Context as _, Result};
use leafhost_tests::cluster::IMAGE;
use serde_json::{Value, json};

use super::accounts::Account;
use super::{Agent, NAMESPACE, instance, refused};

/// Name of the device's Instance.
const NAME: &str = "cams-5c4ed0";
const ALLOCATED: &str = "leafhost.dev/allocated-devices";

/// Returns a pod that asks for devices.
fn asking(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"leafhost.dev/devices": "{}"}},
        "spec": {"schedulerName": "leafhost", "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never",
            "resources": {"limits": {"leafhost.dev/devices": "1"}}}]},
    })
}

/// Returns a patch of slot 0 with this usage and this reservation.
fn slot(usage: &str, reserved: &Value) -> Value {
    let slot = format!("{NAME}-0");
    json!({"spec": {"deviceUsage": {&slot: usage}, "leafhost": {"reserved": {&slot: reserved}}}})
}

/// Tries the requests, with the Configuration `cams` in the namespace.
pub(super) fn check(a: &Agent<'_>, b: &Agent<'_>) -> Result<()> {
    let (cluster, space) = (a.cluster, a.space.name());
    let scheduler = Account::new(cluster, "scheduler", space);
    let admin = |arguments: &[&str], input: &str| {
        cluster.kubectl_with(&[&["--namespace", space], arguments].concat(), input)
    };
    let create = ["create", "--filename", "-"];
    let mut shared = instance(NAME, "node-a", true);
    shared["spec"]["nodes"] = json!(["node-a", "node-b"]);
    admin(&create, &shared.to_string())?;
    let target = ["instance", NAME];
    let reserved = json!({"pod": "default/p", "uses": [{"container": "main", "place": 0, "number": 0, "of": 1, "request": "a"}]});
    let given = "P:0d2b5f1e-3f8f-4d0a-9a6f-1f0c7c0e5f11:node-a";
    for (what, done, by) in [
        (
            "a slot that an agent gives to a pod",
            a.patch(NAME, &slot(given, &Value::Null)),
            "spec.deviceUsage",
        ),
        (
            "a slot that the scheduler gives to a node",
            scheduler.patch(&target, &slot("node-b", &Value::Null)),
            "spec.deviceUsage",
        ),
        (
            "a pod without a node",
            scheduler.patch(&target, &slot("P:5f-1", &reserved)),
            "spec.deviceUsage",
        ),
        (
            "a reservation without a slot",
            scheduler.patch(&target, &slot("", &reserved)),
            "spec.leafhost.reserved",
        ),
        (
            "another capacity by the scheduler",
            scheduler.patch(&target, &json!({"spec": {"capacity": 9}})),
            "the scheduler changes",
        ),
        (
            "a label by the scheduler",
            scheduler.patch(&target, &json!({"metadata": {"labels": {"a": "b"}}})),
            "the scheduler changes",
        ),
        (
            "health by the scheduler",
            scheduler.patch(
                &target,
                &json!({"status": {"nodes": {"node-a": {"health": "Unknown"}}}}),
            ),
            "the scheduler changes",
        ),
        (
            "another device by the scheduler",
            scheduler.patch(&target, &json!({"spec": {"leafhost": {"id": "other"}}})),
            "the scheduler changes",
        ),
        (
            "a node's slot freed by the scheduler",
            scheduler.patch(
                &target,
                &json!({"spec": {"deviceUsage": {format!("{NAME}-1"): ""}}}),
            ),
            "spec.deviceUsage",
        ),
        (
            "an Instance deleted by the scheduler",
            scheduler.kubectl(&["delete", "instance", NAME], ""),
            "creates and deletes no Instance",
        ),
        (
            "a Configuration deleted by the scheduler",
            scheduler.kubectl(&["delete", "configurations.akri.sh", "cams"], ""),
            "no Configuration",
        ),
    ] {
        refused(what, done, by)?;
    }
    // Requests of the scheduler that write the first reservation of an Instance, and free it.
    let (slot_path, all) = (
        format!("/spec/deviceUsage/{NAME}-0"),
        "/spec/leafhost/reserved",
    );
    let reserve = json!([{"op": "test", "path": slot_path, "value": ""}, {"op": "add", "path": all, "value": {format!("{NAME}-0"): reserved}},
        {"op": "add", "path": slot_path, "value": given}]);
    scheduler.kubectl(
        &[
            "patch",
            "instance",
            NAME,
            "--type=json",
            "--patch",
            &reserve.to_string(),
        ],
        "",
    )?;
    let free = json!([{"op": "test", "path": slot_path, "value": given}, {"op": "remove", "path": format!("{all}/{NAME}-0")},
        {"op": "add", "path": slot_path, "value": ""}]);
    scheduler.kubectl(
        &[
            "patch",
            "instance",
            NAME,
            "--type=json",
            "--patch",
            &free.to_string(),
        ],
        "",
    )?;
    scheduler.patch(&target, &slot(given, &reserved))?;
    let other = json!({"pod": "default/other", "uses": []});
    let corrected = "P:7c1b6a2e-3f8f-4d0a-9a6f-1f0c7c0e6a22:node-a";
    for (what, done, by) in [
        (
            "another node's pod freed",
            b.patch(NAME, &slot("", &Value::Null)),
            "spec.deviceUsage",
        ),
        (
            "a pod's slot moved to another node",
            a.patch(
                NAME,
                &slot("P:0d2b5f1e-3f8f-4d0a-9a6f-1f0c7c0e5f11:node-b", &reserved),
            ),
            "spec.deviceUsage",
        ),
        (
            "another pod's name by an agent",
            a.patch(NAME, &slot(given, &other)),
            "spec.leafhost.reserved",
        ),
        (
            "a reservation removed by an agent",
            a.patch(NAME, &slot(given, &Value::Null)),
            "spec.leafhost.reserved",
        ),
        (
            "another pod by the scheduler",
            scheduler.patch(&target, &slot(corrected, &reserved)),
            "spec.deviceUsage",
        ),
        (
            "another pod's name by the scheduler",
            scheduler.patch(&target, &slot(given, &other)),
            "spec.leafhost.reserved",
        ),
    ] {
        refused(what, done, by)?;
    }
    a.patch(NAME, &slot(corrected, &reserved))?;
    a.patch(NAME, &slot("", &Value::Null))?;
    scheduler.patch(&target, &slot(given, &reserved))?;
    scheduler.patch(&target, &slot("", &Value::Null))?;

    let with = |path: &str, value: Value| {
        let mut pod = asking("refused");
        if let Some(place) = pod.pointer_mut(path) {
            *place = value;
        }
        pod
    };
    let limits = "/spec/containers/0/resources/limits";
    let mut bound = asking("refused");
    bound["spec"]["nodeName"] = json!("node-a");
    let mut said = asking("refused");
    said["metadata"]["annotations"][ALLOCATED] = json!("{}");
    let mut first = asking("refused");
    first["spec"]["initContainers"] = first["spec"]["containers"].clone();
    first["spec"]["initContainers"][0]["name"] = json!("first");
    first["spec"]["initContainers"][0]["resources"]["limits"]["leafhost.dev/devices"] = json!("3");
    for (what, pod, by) in [
        ("a pod that says what it was given", said, ALLOCATED),
        (
            "a pod of another scheduler",
            with("/spec/schedulerName", json!("default-scheduler")),
            "spec.schedulerName",
        ),
        ("a pod on a node of its choice", bound, "spec.nodeName"),
        (
            "a pod that says nothing of devices",
            with("/metadata/annotations", json!({})),
            "metadata.annotations",
        ),
        (
            "a pod with two tickets",
            with(limits, json!({"leafhost.dev/devices": "2"})),
            "spec.containers",
        ),
        ("a first container with three", first, "spec.containers"),
    ] {
        refused(what, admin(&create, &pod.to_string()), by)?;
    }
    admin(&create, &asking("asks").to_string())?;
    admin(&["label", "pod", "asks", "a=b"], "")?;
    let annotate = format!("{ALLOCATED}={{}}");
    let done = admin(&["annotate", "pod", "asks", &annotate], "");
    refused("what a pod was given, by an administrator", done, ALLOCATED)?;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "asks", "annotations": {ALLOCATED: "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"}});
    let path = format!("/api/v1/namespaces/{space}/pods/asks/binding");
    let bind = ["create", "--raw", &path, "--filename", "-"];
    let done = admin(&bind, &binding.to_string());
    refused("a Binding by an administrator", done, ALLOCATED)?;
    scheduler
        .kubectl(&bind, &binding.to_string())
        .context("the scheduler binds")?;
    let delete = ["delete", "pod", "asks", "--force", "--grace-period=0"];
    admin(&delete, "")?;
    admin(&["delete", "instance", NAME], "")?;
    locks(a, &scheduler)
}

/// Tries writes of a Node's lock: the scheduler sets it, and the agent of the Node removes it.
fn locks(a: &Agent<'_>, scheduler: &Account<'_>) -> Result<()> {
    const LOCK: &str = "leafhost.dev/node-lock";
    let says = |name: &str, value: Value| json!({"metadata": {"annotations": {name: value}}});
    let locked = says(LOCK, json!("2026-11-26T12:00:00Z,default,first,uid"));
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let taint = json!({"spec": {"unschedulable": true}});
    let (own, other) = (["node", "node-a"], ["node", "node-b"]);
    let agent = |node: &[&str; 2], patch: &Value| {
        let patch = patch.to_string();
        let how = ["--type=merge", "--patch", &patch];
        a.kubectl(&[&["patch"], &node[..], &how].concat(), "")
    };
    // kubectl reads what it patches, a right that agents do not need.
    let reader = "reads-nodes";
    let group = "rbac.authorization.k8s.io";
    let of = |kind: &str| json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": reader}});
    let (mut role, mut binding) = (of("ClusterRole"), of("ClusterRoleBinding"));
    role["rules"] = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
    binding["roleRef"] = json!({"apiGroup": group, "kind": "ClusterRole", "name": reader});
    let account = format!("{NAMESPACE}-leafhost-agent");
    binding["subjects"] =
        json!([{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]);
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]});
    a.cluster.apply(&both.to_string())?;
    scheduler.patch(&own, &locked)?;
    scheduler.patch(&other, &locked)?;
    for (what, done, by) in [
        (
            "a lock by an agent",
            agent(&own, &says(LOCK, json!("mine"))),
            "only removes it",
        ),
        (
            "another node's lock",
            agent(&other, &says(LOCK, Value::Null)),
            "only removes it",
        ),
        ("a label by an agent", agent(&own, &label), "of a Node only"),
        (
            "an annotation by an agent",
            agent(&own, &says("a", json!("b"))),
            "of a Node only",
        ),
        (
            "a node that an agent closes",
            agent(&own, &taint),
            "of a Node only",
        ),
        (
            "a label by the scheduler",
            scheduler.patch(&own, &label),
            "of a Node only",
        ),
        (
            "a node that the scheduler closes",
            scheduler.patch(&own, &taint),
            "of a Node only",
        ),
        (
            "a Node deleted by the scheduler",
            scheduler.kubectl(&["delete", "node", "node-a", "--dry-run=server"], ""),
            "of a Node only",
        ),
    ] {
        refused(what, done, by)?;
    }
    agent(&own, &says(LOCK, Value::Null))?;
    scheduler.patch(&other, &says(LOCK, Value::Null))?;
    let delete = ["delete", "clusterrole,clusterrolebinding", reader];
    a.cluster.kubectl(&delete).map(drop)
}
