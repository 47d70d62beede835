//! Requests that the policies of the chart refuse to the token of an agent, of another component and of a user, and those that they allow.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{self, Cluster, Namespace};
use leafhost_tests::program::source_tree;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

mod accounts;
mod bounds;
mod cost;
mod forms;
mod members;
mod owners;
mod scheduler;
mod users;

const NAMESPACE: &str = "guarded";
mod slices;

/// Message of the CRD of Instances for a field that is immutable.
const FROZEN: &str = "cannot be changed";

/// Account, rights and policies of a chart that is installed without agents.
struct Guarded {
    cluster: &'static Cluster,
    manifests: String,
}

impl Guarded {
    fn install(cluster: &'static Cluster) -> Result<Self> {
        cluster.define()?;
        let chart = source_tree().join("deploy/chart");
        let chart = chart.to_string_lossy();
        let mut manifests =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
        for template in [
            "rbac",
            "policies",
            "policies-controller",
            "policies-node-lock",
            "policies-reports",
            "policies-scheduler",
            "policies-slices",
            "policies-users",
            "policies-webhook",
        ] {
            let template = format!("templates/{template}.yaml");
            let arguments = ["template", NAMESPACE, &chart, "--namespace", NAMESPACE];
            let version = [
                "--kube-version",
                "1.37.0",
                "--set",
                "scheduler.enabled=true,scheduler.nodeLock=true",
                "--show-only",
                &template,
            ];
            manifests += "---\n";
            manifests += &cluster.helm(&[&arguments[..], &version].concat())?;
        }
        cluster.apply(&manifests)?;
        Ok(Self { cluster, manifests })
    }

    /// Returns the token of the agent on a node.
    fn token(&self, node: &str) -> Result<String> {
        let account = format!("{NAMESPACE}-leafhost-agent");
        let path = format!("/api/v1/nodes/{node}");
        let node_uid = self.cluster.get(&path)?["metadata"]["uid"].clone();
        let create = ["create", "token", &account, "--namespace", NAMESPACE];
        let bound = ["--bound-object-kind", "Node", "--bound-object-name", node];
        let uid = ["--bound-object-uid", node_uid.as_str().context("no UID")?];
        let token = self
            .cluster
            .kubectl(&[&create[..], &bound, &uid].concat())?;
        Ok(token.trim().to_owned())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let arguments = ["delete", "--wait=false", "--filename", "-"];
        if let Err(error) = self.cluster.kubectl_with(&arguments, &self.manifests) {
            eprintln!("the policies stay: {error:#}");
        }
    }
}

/// Agent with its token.
struct Agent<'a> {
    cluster: &'static Cluster,
    space: &'a Namespace<'static>,
    token: String,
}

impl Agent<'_> {
    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let own = ["--token", &self.token, "--namespace", self.space.name()];
        let all = [&own[..], arguments].concat();
        self.cluster.kubectl_with(&all, input)
    }

    fn create(&self, object: &Value) -> Result<String> {
        let create = ["create", "--field-manager=leafhost", "--filename", "-"];
        self.kubectl(&create, &object.to_string())
    }

    fn patch(&self, name: &str, patch: &Value) -> Result<String> {
        self.patch_as("leafhost", name, patch)
    }

    fn patch_as(&self, manager: &str, name: &str, patch: &Value) -> Result<String> {
        let (patch, manager) = (patch.to_string(), format!("--field-manager={manager}"));
        let kind = if patch.starts_with('[') {
            "json"
        } else {
            "merge"
        };
        // A large patch does not fit into an argument.
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), patch)?;
        let patch = file.path().to_string_lossy();
        let of = ["patch", "instance", name, &manager, "--type", kind];
        self.kubectl(&[&of[..], &["--patch-file", &patch]].concat(), "")
    }

    /// Patches the capacity, the generation or the owner, and toggles the label that announces it to the policies.
    fn edit(&self, name: &str, patch: &Value) -> Result<String> {
        let object = instance_path(self.space, name);
        let found = self.cluster.get(&object)?;
        let is_odd = found["metadata"]["labels"]["leafhost.dev/odd-edit"] == "true";
        let mut patch = patch.clone();
        patch["metadata"]["labels"]["leafhost.dev/odd-edit"] =
            if is_odd { Value::Null } else { json!("true") };
        self.patch(name, &patch)
    }

    fn patch_report(&self, name: &str) -> Result<String> {
        let patch = r#"{"spec": {"handler": "other"}}"#;
        self.kubectl(
            &["patch", "dh", name, "--type", "merge", "--patch", patch],
            "",
        )
    }

    fn delete(&self, kind: &str, name: &str) -> Result<String> {
        self.kubectl(&["delete", kind, name, "--wait=false"], "")
    }
}

/// Returns an Instance as the agent of this node creates it.
fn instance(name: &str, node: &str, shared: bool) -> Value {
    let label = if shared {
        json!({"leafhost.dev/shared": "true", "leafhost.dev/configuration": "cams"})
    } else {
        json!({"leafhost.dev/node": node})
    };
    let digest = name.strip_prefix("cams-").unwrap_or(name);
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "labels": label, "annotations": {"leafhost.dev/generation": "3"}},
        "spec": {
            "configurationName": "cams", "cdiName": format!("akri.sh/cams={digest}"), "capacity": 2, "shared": shared, "nodes": [node],
            "deviceUsage": {format!("{name}-0"): "", format!("{name}-1"): node},
            "leafhost": {"id": name},
        },
        "status": {"nodes": {node: {"health": "Healthy"}}},
    })
}

/// Applies the Configuration of the Instances.
fn configure(cluster: &Cluster, space: &Namespace<'_>, capacity: u32) -> Result<()> {
    let manifest = format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: cams, namespace: {}}}\nspec: {{discoveryHandler: {{name: none}}, capacity: {capacity}}}\n",
        space.name()
    );
    cluster.apply(&manifest).map(drop)
}

fn instance_path(space: &Namespace<'_>, name: &str) -> String {
    format!(
        "/apis/akri.sh/v0/namespaces/{}/instances/{name}",
        space.name()
    )
}

fn report(name: &str, node: &str) -> Value {
    json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DiscoveryHandler", "metadata": {"name": name},
        "spec": {"node": node, "handler": "attacks"}})
}

fn refused(what: &str, done: Result<String>, by: &str) -> Result<()> {
    match done {
        Ok(_) => bail!("{what} is allowed"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(
                text.contains(by),
                "{what} is refused by another rule: {text}"
            );
            ensure!(
                ["Forbidden", "forbidden", "is invalid"]
                    .iter()
                    .any(|word| text.contains(word)),
                "{what}: {text}"
            );
            Ok(())
        }
    }
}

#[test]
fn the_token_of_an_agent_writes_what_is_of_its_node_and_nothing_else() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    check(cluster)
}

/// Tries all requests in a cluster of two nodes.
pub fn check(cluster: &'static Cluster) -> Result<()> {
    // Agents on these nodes would free the slots below, which no pod has.
    let _taken = cluster.take_nodes(2)?;
    let guarded = Guarded::install(cluster)?;
    let space = cluster.namespace("attacks")?;
    let agent = |node: &str| -> Result<Agent<'_>> {
        let token = guarded.token(node)?;
        Ok(Agent {
            cluster,
            space: &space,
            token,
        })
    };
    let (a, b) = (agent("node-a")?, agent("node-b")?);
    let mut probe = instance("cams-0b0b0b", "node-b", false);
    probe["spec"]["deviceUsage"] = json!({});
    within(Duration::from_mins(1), "the policies are in effect", || {
        let done = a.create(&probe);
        let _ = b.delete("instance", "cams-0b0b0b");
        refused("an Instance of another node", done, "spec.nodes")
    })?;

    slices::check(&a, &b)?;

    // Each edit of the spec increments the generation; Instances are of the third.
    for capacity in [4, 3, 2] {
        configure(cluster, &space, capacity)?;
    }

    // Requests that agents send.
    eventually("the API server knows the generation", || {
        b.create(&instance("cams-00000b", "node-b", false))
    })?;
    b.create(&instance("cams-5ba0ed", "node-b", true))?;
    b.create(&report("node-b.attacks", "node-b"))?;
    a.create(&instance("cams-00000a", "node-a", false))?;
    a.create(&report("node-a.attacks", "node-a"))?;
    a.patch(
        "cams-5ba0ed",
        &json!([
            {"op": "add", "path": "/spec/nodes/-", "value": "node-a"},
            {"op": "test", "path": "/spec/deviceUsage/cams-5ba0ed-0", "value": ""},
            {"op": "add", "path": "/spec/deviceUsage/cams-5ba0ed-0", "value": "C:cams-0:node-a"},
            {"op": "add", "path": "/status/nodes/node-a", "value": {"health": "Healthy"}},
        ]),
    )?;
    a.patch(
        "cams-5ba0ed",
        &json!({"spec": {"deviceUsage": {"cams-5ba0ed-0": ""}}}),
    )?;
    configure(cluster, &space, 3)?;
    let newer = json!({"metadata": {"annotations": {"leafhost.dev/generation": "4"}}, "spec": {"capacity": 3}});
    eventually("the API server knows the generation", || {
        a.edit("cams-5ba0ed", &newer)
    })?;
    // A user has edited it.
    let path = instance_path(&space, "cams-5ba0ed");
    let edited = json!({"spec": {"capacity": 99}});
    cluster.api().merge(&path, &edited)?;
    a.edit("cams-5ba0ed", &json!({"spec": {"capacity": 3}}))?;
    a.patch(
        "cams-5ba0ed",
        &json!({"spec": {"brokerProperties": {"URL": "new"}}}),
    )?;
    // An Instance of Akri's agent has neither an ID nor labels.
    let mut akris = instance("akris", "node-a", false);
    akris["spec"]["leafhost"].take();
    akris["metadata"]["labels"].take();
    let in_space = ["create", "--namespace", space.name(), "--filename", "-"];
    cluster.kubectl_with(&in_space, &akris.to_string())?;
    let taken_over = json!({"metadata": {"labels": {"leafhost.dev/node": "node-a"}}, "spec": {"leafhost": {"id": "akris"}}});
    a.patch("akris", &taken_over)?;
    a.patch("cams-00000a", &json!({"spec": {"nodes": []}}))?;
    a.patch(
        "cams-00000a",
        &json!({"spec": {"nodes": ["node-a"], "deviceUsage": {"cams-00000a-1": ""}}}),
    )?;

    let slots = "spec.deviceUsage";
    let nodes = "spec.nodes";
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]);
    // The API server names only one of the policies that refuse an object, in no order, so exactly one policy refuses each attack.
    let current = |name: &str, node: &str| {
        let mut instance = instance(name, node, false);
        instance["metadata"]["annotations"]["leafhost.dev/generation"] = json!("4");
        instance["spec"]["capacity"] = json!(3);
        instance
    };
    let mut for_b = current("cams-0e0e0e", "node-b");
    for_b["spec"]["deviceUsage"] = json!({});
    let mut with_owner = current("cams-0e0e0d", "node-a");
    with_owner["metadata"]["ownerReferences"] = owner.clone();
    let mut of_b = current("cams-c1a00d", "node-a");
    of_b["spec"]["deviceUsage"]["cams-c1a00d-0"] = json!("node-b");
    let mut labelled = current("cams-1abe1d", "node-a");
    labelled["metadata"]["labels"] = json!({"leafhost.dev/node": "node-b"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "evil", "labels": {"leafhost.dev/handlers": "true"}}});
    let rbac = "forbidden";
    let attacks = [
        ("an Instance for another node", a.create(&for_b), nodes),
        (
            "an Instance with another node's claim",
            a.create(&of_b),
            slots,
        ),
        (
            "an Instance with another owner",
            a.create(&with_owner),
            "metadata.ownerReferences",
        ),
        (
            "an Instance with another node's label",
            a.create(&labelled),
            "metadata.labels",
        ),
        (
            "a claim in another node's name",
            a.patch(
                "cams-5ba0ed",
                &json!({"spec": {"deviceUsage": {"cams-5ba0ed-0": "node-b"}}}),
            ),
            slots,
        ),
        (
            "a claim of a virtual device of another node",
            a.patch(
                "cams-5ba0ed",
                &json!({"spec": {"deviceUsage": {"cams-5ba0ed-0": "C:cams-0:node-b"}}}),
            ),
            slots,
        ),
        (
            "another node's slot freed",
            a.patch(
                "cams-5ba0ed",
                &json!({"spec": {"deviceUsage": {"cams-5ba0ed-1": ""}}}),
            ),
            slots,
        ),
        (
            "another node's slot taken",
            a.patch(
                "cams-5ba0ed",
                &json!({"spec": {"deviceUsage": {"cams-5ba0ed-1": "node-a"}}}),
            ),
            slots,
        ),
        (
            "another node's slot removed",
            a.patch(
                "cams-5ba0ed",
                &json!({"spec": {"deviceUsage": {"cams-5ba0ed-1": null}}}),
            ),
            slots,
        ),
        (
            "another node's local Instance deleted",
            a.delete("instance", "cams-00000b"),
            slots,
        ),
        (
            "a shared Instance that another node sees deleted",
            a.delete("instance", "cams-5ba0ed"),
            slots,
        ),
        (
            "another node added",
            a.patch(
                "cams-00000a",
                &json!({"spec": {"nodes": ["node-a", "node-b"]}}),
            ),
            nodes,
        ),
        (
            "another node removed",
            a.patch("cams-5ba0ed", &json!({"spec": {"nodes": ["node-a"]}})),
            nodes,
        ),
        (
            "another node's local Instance joined",
            a.patch(
                "cams-00000b",
                &json!({"spec": {"nodes": ["node-b", "node-a"]}}),
            ),
            nodes,
        ),
        (
            "another node's local Instance changed",
            a.patch(
                "cams-00000b",
                &json!({"spec": {"brokerProperties": {"URL": "mine"}}}),
            ),
            nodes,
        ),
        (
            "another node's health",
            a.patch(
                "cams-5ba0ed",
                &json!({"status": {"nodes": {"node-b": {"health": "Unhealthy"}}}}),
            ),
            "status.nodes",
        ),
        (
            "another node's health removed",
            a.patch(
                "cams-5ba0ed",
                &json!({"status": {"nodes": {"node-b": null}}}),
            ),
            "status.nodes",
        ),
        (
            "a label changed",
            a.patch(
                "cams-00000a",
                &json!({"metadata": {"labels": {"leafhost.dev/node": "node-b"}}}),
            ),
            "metadata.labels",
        ),
        (
            "a label removed",
            a.patch(
                "cams-5ba0ed",
                &json!({"metadata": {"labels": {"leafhost.dev/shared": null}}}),
            ),
            "metadata.labels",
        ),
        (
            "an owner added",
            a.patch(
                "cams-00000a",
                &json!({"metadata": {"ownerReferences": owner}}),
            ),
            "metadata.ownerReferences",
        ),
        (
            "a finalizer added",
            a.patch("cams-00000a", &json!({"metadata": {"finalizers": ["a/b"]}})),
            "metadata.finalizers",
        ),
        (
            "another Configuration",
            a.patch(
                "cams-00000a",
                &json!({"spec": {"configurationName": "other"}}),
            ),
            FROZEN,
        ),
        (
            "a local Instance shared",
            a.patch("cams-00000a", &json!({"spec": {"shared": true}})),
            "spec:",
        ),
        (
            "another device",
            a.patch(
                "cams-00000a",
                &json!({"spec": {"leafhost": {"id": "other"}}}),
            ),
            "spec:",
        ),
        (
            "another capacity than the Configuration's",
            a.edit("cams-5ba0ed", &json!({"spec": {"capacity": 9}})),
            "spec.capacity",
        ),
        (
            "another capacity that the policies are not told of",
            a.patch("cams-5ba0ed", &json!({"spec": {"capacity": 9}})),
            "odd-edit",
        ),
        (
            "an older generation",
            a.edit(
                "cams-5ba0ed",
                &json!({"metadata": {"annotations": {"leafhost.dev/generation": "3"}},
            "spec": {"brokerProperties": {"URL": "old"}}}),
            ),
            "leafhost.dev/generation",
        ),
        (
            "another node's report",
            a.patch_report("node-b.attacks"),
            "spec.node",
        ),
        (
            "a report for another node",
            a.create(&report("node-b.other", "node-b")),
            "spec.node",
        ),
        (
            "another node's report deleted",
            a.delete("discoveryhandlers.leafhost.dev", "node-b.attacks"),
            "spec.node",
        ),
        (
            "a Configuration deleted",
            a.kubectl(&["delete", "configurations.akri.sh", "cams"], ""),
            rbac,
        ),
        (
            "a Configuration changed",
            a.kubectl(&["label", "configurations.akri.sh", "cams", "a=b"], ""),
            rbac,
        ),
        ("Secrets read", a.kubectl(&["get", "secrets"], ""), rbac),
        (
            "a handler added",
            a.kubectl(
                &["create", "--namespace", NAMESPACE, "--filename", "-"],
                &map.to_string(),
            ),
            rbac,
        ),
    ];
    for (what, done, by) in attacks {
        refused(what, done, by)?;
    }
    let unbound = [
        "create",
        "token",
        "guarded-leafhost-agent",
        "--namespace",
        NAMESPACE,
    ];
    let token = cluster.kubectl(&unbound)?.trim().to_owned();
    let free = Agent {
        cluster,
        space: &space,
        token,
    };
    refused(
        "a token of no node",
        free.create(&current("cams-f0ee00", "node-a")),
        "bound to a node",
    )?;
    let left = cluster.get(&path)?;
    ensure!(
        left["spec"]["deviceUsage"]["cams-5ba0ed-1"] == "node-b",
        "{left:#}"
    );
    members::check(&a, &b)?;
    bounds::check(&a)?;
    forms::check(&a)?;
    accounts::check(cluster, &space)?;
    owners::check(&a)?;
    scheduler::check(&a, &b)?;
    for name in ["node-a.attacks", "node-b.attacks"] {
        cluster.kubectl(&["delete", "dh", name])?;
    }
    users::check(cluster, &space)
}
