//! Requests of users whose only right is to write ConfigMaps or Configurations.

use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use super::{NAMESPACE, refused};

/// User with a role of the same name in a namespace.
struct User<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    space: &'a str,
}

impl User<'_> {
    fn admin(&self, arguments: &[&str], input: &str) -> Result<String> {
        let space = ["--namespace", self.space];
        let all = [&space[..], arguments].concat();
        self.cluster.kubectl_with(&all, input)
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        self.admin(&[&["--as", self.name], arguments].concat(), input)
    }

    fn apply(&self, object: &Value) -> Result<String> {
        let apply = ["apply", "--filename", "-"];
        self.kubectl(&apply, &object.to_string())
    }

    fn patch(&self, what: &[&str], patch: &Value) -> Result<String> {
        let patch = patch.to_string();
        let how = ["--type=merge", "--patch", &patch];
        self.kubectl(&[&["patch"], what, &how].concat(), "")
    }

    /// Grants the user these verbs on a resource, which the API server need not serve.
    fn may(&self, role: &str, group: &str, resource: &str, verbs: &[&str]) -> Result<()> {
        let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": role},
            "rules": [{"apiGroups": [group], "resources": [resource], "verbs": verbs}]});
        self.admin(&["create", "--filename", "-"], &object.to_string())?;
        let (of, to) = (format!("--role={role}"), format!("--user={}", self.name));
        self.admin(&["create", "rolebinding", role, &of, &to], "")?;
        Ok(())
    }
}

pub fn check(cluster: &'static Cluster, space: &Namespace<'_>) -> Result<()> {
    config_maps(cluster)?;
    configurations(cluster, space.name())
}

/// Checks that a user who may write ConfigMaps needs one more right to install and remove handlers.
fn config_maps(cluster: &Cluster) -> Result<()> {
    let writer = User {
        cluster,
        name: "writer",
        space: NAMESPACE,
    };
    let labelled = |label: &str, metadata: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        object["metadata"]["name"] = json!("handler");
        object["metadata"]["labels"] = json!({label: "true"});
        object
    };
    let handler = labelled("leafhost.dev/handlers", json!({}));
    let by = "may not install handlers";
    writer.may("writer", "", "configmaps", &["*"])?;
    within(Duration::from_secs(30), "the writer may write", || {
        writer.apply(&labelled("leafhost.dev/other", json!({})))
    })?;
    refused("a handler", writer.apply(&handler), by)?;
    let kept = labelled(
        "leafhost.dev/handlers",
        json!({"finalizers": ["example.com/kept"]}),
    );
    writer.admin(&["apply", "--filename", "-"], &kept.to_string())?;
    let map = ["configmap", "handler"];
    let change = |change: Value| writer.patch(&map, &change);
    // The garbage collector does not have the right to install handlers, so metadata may change without it.
    change(json!({"metadata": {"finalizers": null, "annotations": {"note": "mine"}}}))?;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
    for (what, done) in [
        (
            "a handler in an object of handlers",
            change(json!({"binaryData": {"a.wasm": "AA=="}})),
        ),
        (
            "the label removed",
            change(json!({"metadata": {"labels": null}})),
        ),
        (
            "the label with another value",
            change(json!({"metadata": {"labels": {"leafhost.dev/handlers": "no"}}})),
        ),
        (
            "an object of handlers that nobody can change",
            change(json!({"immutable": true})),
        ),
        (
            "an owner, with which it would be deleted",
            change(json!({"metadata": {"ownerReferences": owner}})),
        ),
        (
            "an object of handlers deleted",
            writer.kubectl(&["delete", "configmap", "handler"], ""),
        ),
        (
            "all objects deleted",
            writer.kubectl(&["delete", "configmaps", "--all"], ""),
        ),
    ] {
        refused(what, done, by)?;
    }
    writer.may("installer", "leafhost.dev", "handlers", &["install"])?;
    within(
        Duration::from_secs(30),
        "the writer may install handlers",
        || writer.apply(&handler),
    )?;
    writer.kubectl(&["delete", "configmap", "handler"], "")?;
    let collected = labelled("leafhost.dev/handlers", json!({"ownerReferences": owner}));
    writer.apply(&collected)?;
    eventually("the garbage collector deletes a handler", || {
        let left = ["get", "configmap", "handler", "--ignore-not-found"];
        let left = writer.kubectl(&left, "")?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
}

/// Checks that a user who may write Configurations can create through them only what the user may create directly.
fn configurations(cluster: &Cluster, space: &str) -> Result<()> {
    let author = User {
        cluster,
        name: "author",
        space,
    };
    author.may("author", "akri.sh", "configurations", &["*"])?;
    let pod = json!({"containers": [{"name": "c", "image": "none", "securityContext": {"privileged": true}}]});
    let job = json!({"template": {"spec": pod}});
    let service = json!({"ports": [{"port": 80}]});
    let made = |name: &str, field: &str, value: &Value| {
        let mut object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name},
            "spec": {"discoveryHandler": {"name": "none"}}});
        object["spec"][field] = value.clone();
        object
    };
    let plain = made("authors", "capacity", &json!(1));
    within(Duration::from_secs(30), "the author may write", || {
        author.apply(&plain)
    })?;
    let admins = made("admins", "brokerSpec", &json!({"brokerPodSpec": pod}));
    author.admin(&["apply", "--filename", "-"], &admins.to_string())?;
    let change = |name: &str, spec: Value| {
        author.patch(&["configurations.akri.sh", name], &json!({"spec": spec}))
    };
    // A user may keep or remove what another user has requested.
    change("admins", json!({"capacity": 2}))?;
    let other = json!({"brokerPodSpec": {"hostPID": true}});
    for (what, done, by) in [
        (
            "a pod",
            author.apply(&made("pods", "brokerSpec", &json!({"brokerPodSpec": pod}))),
            "may not create pods",
        ),
        (
            "a job",
            author.apply(&made("jobs", "brokerSpec", &json!({"brokerJobSpec": job}))),
            "may not create jobs",
        ),
        (
            "a service of Instances",
            author.apply(&made("services", "instanceServiceSpec", &service)),
            "may not create services",
        ),
        (
            "a service of the Configuration",
            author.apply(&made("services", "configurationServiceSpec", &service)),
            "may not create services",
        ),
        (
            "a pod, later",
            change("authors", json!({"brokerSpec": {"brokerPodSpec": pod}})),
            "may not create pods",
        ),
        (
            "another pod",
            change("admins", json!({"brokerSpec": other})),
            "may not create pods",
        ),
        (
            "a job in place of a pod",
            change(
                "admins",
                json!({"brokerSpec": {"brokerPodSpec": null, "brokerJobSpec": job}}),
            ),
            "may not create jobs",
        ),
    ] {
        refused(what, done, by)?;
    }
    change("admins", json!({"brokerSpec": null}))?;
    author.may("pods", "", "pods", &["create"])?;
    within(Duration::from_secs(30), "the author may make pods", || {
        change("authors", json!({"brokerSpec": {"brokerPodSpec": pod}}))
    })?;
    let rest = ["delete", "configurations.akri.sh", "authors", "admins"];
    author.kubectl(&rest, "").map(drop)
}
