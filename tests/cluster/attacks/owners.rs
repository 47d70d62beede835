//! Owners, finalizers, generations and names that an agent may write.

use anyhow::{Context, Result};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use super::{Agent, configure, instance, instance_path, refused, report};

/// Tries the requests, with the Configuration `cams` in its fourth generation.
pub fn check(a: &Agent<'_>) -> Result<()> {
    let configuration = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations/cams",
        a.space.name()
    );
    let uid_of =
        |path: &str| -> Result<Value> { Ok(a.cluster.get(path)?["metadata"]["uid"].clone()) };
    let list_of = |uid: &Value| json!([{"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cams", "uid": uid, "controller": true}]);
    let with = |name: &str, field: &str, value: Value| {
        let mut object = instance(name, "node-a", false);
        object["metadata"]["annotations"] = json!({"leafhost.dev/generation": "4"});
        object["metadata"][field] = value;
        object["spec"]["capacity"] = json!(3);
        object
    };
    let generation = |generation: &str| json!({"leafhost.dev/generation": generation});
    let change = |metadata: Value| a.edit("cams-0e0e0d", &json!({"metadata": metadata}));

    let right = list_of(&uid_of(&configuration)?);
    a.create(&with("cams-0e0e0d", "ownerReferences", right.clone()))?;
    let gone = list_of(&json!("00000000-0000-0000-0000-000000000000"));
    let long = list_of(&json!("u".repeat(1000)));
    let mut other_kind = right.clone();
    other_kind[0]["apiVersion"] = json!("v1");
    let mut both = right.clone();
    both.as_array_mut()
        .context("no list")?
        .push(gone[0].clone());
    // The API server itself refuses two owners that are both controllers.
    both[1]["controller"] = json!(false);
    let owner = "metadata.ownerReferences";
    let finalizer = json!(["example.com/stays"]);
    let number = "metadata.annotations[leafhost.dev/generation]";
    let mut large = with("cams-aaaaa4", "annotations", generation("4"));
    large["spec"]["capacity"] = json!(1000);
    for (what, done, by) in [
        (
            "an owner that does not exist",
            change(json!({"ownerReferences": gone})),
            owner,
        ),
        (
            "a second owner that does not exist",
            change(json!({"ownerReferences": both})),
            owner,
        ),
        (
            "an owner with a uid without bound",
            change(json!({"ownerReferences": long})),
            owner,
        ),
        ("no owner", change(json!({"ownerReferences": null})), owner),
        (
            "an owner of another kind",
            change(json!({"ownerReferences": other_kind})),
            owner,
        ),
        (
            "an Instance whose owner does not exist",
            a.create(&with("cams-aaaaa0", "ownerReferences", gone.clone())),
            owner,
        ),
        (
            "an Instance with a finalizer",
            a.create(&with("cams-aaaaa1", "finalizers", finalizer.clone())),
            "metadata.finalizers",
        ),
        (
            "a finalizer",
            change(json!({"finalizers": finalizer})),
            "metadata.finalizers",
        ),
        (
            "an Instance of no generation",
            a.create(&with("cams-aaaaa2", "annotations", generation("newest"))),
            "leafhost.dev/generation",
        ),
        (
            "an Instance of a generation to come",
            a.create(&with("cams-aaaaa3", "annotations", generation("5"))),
            number,
        ),
        (
            "a generation to come",
            change(json!({"annotations": generation("5")})),
            number,
        ),
        (
            "no number",
            change(json!({"annotations": generation("-1")})),
            number,
        ),
        (
            "a number without bound",
            change(json!({"annotations": generation(&"9".repeat(16))})),
            number,
        ),
        (
            "the generation removed",
            change(json!({"annotations": null})),
            "leafhost.dev/generation",
        ),
        (
            "an Instance with another capacity",
            a.create(&large),
            "spec.capacity",
        ),
        (
            "an Instance with the capacity of a generation before",
            a.create(&instance("cams-bbbbbb", "node-a", false)),
            "spec.capacity",
        ),
    ] {
        refused(what, done, by)?;
    }

    // The generation written by a user is no number. The agents correct it, and use slots until then.
    let path = instance_path(a.space, "cams-0e0e0d");
    let nonsense = json!({"metadata": {"annotations": generation("nonsense")}});
    a.cluster.api().merge(&path, &nonsense)?;
    a.patch(
        "cams-0e0e0d",
        &json!({"spec": {"deviceUsage": {"cams-0e0e0d-0": "node-a"}}}),
    )?;
    change(json!({"annotations": generation("4")}))?;

    // A Configuration that is created again begins with its first generation. A garbage collector that has just learned of the CRDs may not remove
    // the owner reference of an orphan.
    let free = json!({"metadata": {"ownerReferences": null}});
    a.cluster.api().merge(&path, &free)?;
    let delete = [
        "delete",
        "configurations.akri.sh",
        "cams",
        "--cascade=orphan",
        "--wait",
    ];
    let space = ["--namespace", a.space.name()];
    a.cluster.kubectl(&[&delete[..], &space].concat())?;
    configure(a.cluster, a.space, 2)?;
    let mut again = json!({"metadata": {
        "ownerReferences": list_of(&uid_of(&configuration)?), "annotations": generation("1"),
    }, "spec": {"capacity": 2}});
    eventually("the API server knows the Configuration", || {
        a.edit("cams-0e0e0d", &again)
    })?;
    again["metadata"]["ownerReferences"] = right;
    refused(
        "the owner that was there before",
        a.edit("cams-0e0e0d", &again),
        owner,
    )?;

    reports(a)
}

/// Tries owners and finalizers of the reports of handlers.
fn reports(a: &Agent<'_>) -> Result<()> {
    let own = |node: &str| -> Result<Value> {
        let path = format!("/api/v1/nodes/{node}");
        let uid = a.cluster.get(&path)?["metadata"]["uid"].clone();
        Ok(json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]))
    };
    let with = |field: &str, value: Value| {
        let mut object = report("node-a.attacks", "node-a");
        object["metadata"][field] = value;
        object
    };
    let delete = ["delete", "dh", "node-a.attacks"];
    a.kubectl(&delete, "")?;
    let name = "metadata.name";
    let owner = "metadata.ownerReferences";
    let gone = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "gone"}]);
    for (what, object, by) in [
        (
            "the name of another node's report",
            report("node-b.attacks-too", "node-a"),
            name,
        ),
        (
            "the name of another handler's report",
            report("node-a.other", "node-a"),
            name,
        ),
        ("a name without a node", report("attacks", "node-a"), name),
        (
            "a report of another Node",
            with("ownerReferences", own("node-b")?),
            owner,
        ),
        (
            "a report of a Node that does not exist",
            with("ownerReferences", gone),
            owner,
        ),
        (
            "a report with another node's label",
            with("labels", json!({"leafhost.dev/node": "node-b"})),
            "metadata.labels",
        ),
        (
            "a report with a finalizer",
            with("finalizers", json!(["example.com/stays"])),
            "metadata.finalizers",
        ),
    ] {
        refused(what, a.create(&object), by)?;
    }
    a.create(&with("ownerReferences", own("node-a")?))?;
    let hashed = "node-a.attacks-0123456789abcdef";
    a.create(&report(hashed, "node-a"))?;
    a.delete("dh", hashed)?;
    Ok(())
}
