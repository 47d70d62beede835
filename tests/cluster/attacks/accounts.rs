//! Requests that the policies refuse to the tokens of the controller and of the webhook, whatever their rights.

use std::time::Duration;

use anyhow::Result;
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use super::{NAMESPACE, instance, refused};

/// User with all rights and the name of an account.
pub(super) struct Account<'a> {
    cluster: &'a Cluster,
    user: String,
    namespace: &'a str,
}

impl<'a> Account<'a> {
    pub fn new(cluster: &'a Cluster, part: &str, namespace: &'a str) -> Self {
        Self {
            cluster,
            user: format!("system:serviceaccount:{NAMESPACE}:{NAMESPACE}-leafhost-{part}"),
            namespace,
        }
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let own = ["--as", &self.user, "--as-group", "system:masters"];
        let space = ["--namespace", self.namespace];
        let all = [&own[..], &space, arguments].concat();
        self.cluster.kubectl_with(&all, input)
    }

    fn create(&self, object: &Value) -> Result<String> {
        let create = ["create", "--dry-run=server", "--filename", "-"];
        self.kubectl(&create, &object.to_string())
    }

    pub fn patch(&self, what: &[&str], patch: &Value) -> Result<String> {
        let patch = patch.to_string();
        let how = ["--type=merge", "--patch", &patch];
        self.kubectl(&[&["patch"], what, &how].concat(), "")
    }
}

/// Tries the requests, with the Configuration `cams` in the namespace.
pub fn check(cluster: &'static Cluster, space: &Namespace<'_>) -> Result<()> {
    controller(cluster, space.name())?;
    names(cluster, space.name())?;
    pools(cluster, space.name())?;
    classes(cluster, space.name())?;
    webhook(cluster)
}

fn controller(cluster: &Cluster, space: &str) -> Result<()> {
    let admin = |arguments: &[&str], input: &str| {
        cluster.kubectl_with(&[&["--namespace", space], arguments].concat(), input)
    };
    let controller = Account::new(cluster, "controller", space);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "broker"},
        "spec": {"containers": [{"name": "c", "image": "none"}]}});
    let mut broker = pod.clone();
    broker["metadata"]["labels"] = json!({"controller": "akri.sh"});
    broker["metadata"]["ownerReferences"] = json!([{"apiVersion": "akri.sh/v0", "kind": "Instance", "name": "cams-c0c0c0", "uid": "u",
        "controller": true}]);
    let mut unlabelled = broker.clone();
    unlabelled["metadata"]["labels"].take();
    within(Duration::from_mins(1), "the policies are in effect", || {
        refused("any pod", controller.create(&pod), "metadata:")
    })?;
    controller.create(&broker)?;
    let mut others = pod.clone();
    others["metadata"]["name"] = json!("others");
    others["spec"]["nodeName"] = json!("node-that-is-not-there");
    admin(&["create", "--filename", "-"], &others.to_string())?;
    let mut shared = instance("cams-c0c0c0", "node-b", true);
    shared["metadata"]["finalizers"] = json!(["example.com/stays"]);
    admin(&["create", "--filename", "-"], &shared.to_string())?;
    let target = ["instance", "cams-c0c0c0"];
    let service = |spec: Value| {
        let mut service = broker.clone();
        service["kind"] = json!("Service");
        service["spec"] = spec;
        service
    };
    let ports = json!([{"port": 80}]);
    controller.create(&service(json!({"ports": ports})))?;
    let seen = controller.kubectl(&["delete", "instance", "cams-c0c0c0"], "");
    refused("an Instance that a node sees deleted", seen, "spec.nodes")?;
    controller.patch(
        &target,
        &json!({"spec": {"nodes": [], "deviceUsage": {"cams-c0c0c0-1": ""}}, "status": {"nodes": {"node-b": null}}}),
    )?;
    controller.patch(&target, &json!({"metadata": {"finalizers": null}}))?;
    for (what, done, by) in [
        (
            "a pod without the label",
            controller.create(&unlabelled),
            "metadata:",
        ),
        (
            "somebody's pod deleted",
            controller.kubectl(&["delete", "pod", "others", "--wait=false"], ""),
            "metadata:",
        ),
        (
            "a Configuration changed",
            controller.patch(
                &["configurations.akri.sh", "cams"],
                &json!({"spec": {"capacity": 9}}),
            ),
            "spec:",
        ),
        (
            "a Configuration labelled",
            controller.patch(
                &["configurations.akri.sh", "cams"],
                &json!({"metadata": {"labels": {"a": "b"}}}),
            ),
            "metadata:",
        ),
        (
            "a slot given",
            controller.patch(
                &target,
                &json!({"spec": {"deviceUsage": {"cams-c0c0c0-0": "node-a"}}}),
            ),
            "spec:",
        ),
        (
            "a node added",
            controller.patch(&target, &json!({"spec": {"nodes": ["node-a"]}})),
            "spec:",
        ),
        (
            "a node's health",
            controller.patch(
                &target,
                &json!({"status": {"nodes": {"node-b": {"health": "Healthy", "reason": "x"}}}}),
            ),
            "status.nodes",
        ),
        (
            "a service with an address of others",
            controller.create(&service(
                json!({"ports": ports, "externalIPs": ["192.0.2.1"]}),
            )),
            "externalIPs",
        ),
        (
            "a service with a name elsewhere",
            controller.create(&service(
                json!({"type": "ExternalName", "externalName": "example.com"}),
            )),
            "ExternalName",
        ),
        (
            "a Configuration deleted",
            controller.kubectl(&["delete", "configurations.akri.sh", "cams"], ""),
            "no Configuration",
        ),
        (
            "properties changed",
            controller.patch(
                &target,
                &json!({"spec": {"brokerProperties": {"URL": "mine"}}}),
            ),
            "spec:",
        ),
    ] {
        refused(what, done, by)?;
    }
    controller.kubectl(&["delete", "instance", "cams-c0c0c0"], "")?;
    admin(
        &["delete", "pod", "others", "--grace-period=0", "--force"],
        "",
    )?;
    Ok(())
}

/// Tries writes of the controller's ResourceSlices and of the claim templates that it creates.
fn pools(cluster: &Cluster, space: &str) -> Result<()> {
    let controller = Account::new(cluster, "controller", space);
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}]});
    let pool = format!("{space}/cams");
    let slice = |driver: &str, pool: &str, nodes: (&str, &Value)| {
        let mut slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "attacked-pool"},
            "spec": {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "cams-0"}]}});
        slice["spec"][nodes.0] = nodes.1.clone();
        controller.create(&slice)
    };
    let (node, nodes) = (json!("node-a"), ("nodeSelector", &selector));
    slice("leafhost.dev", &pool, nodes)?;
    within(Duration::from_mins(1), "the policy is in effect", || {
        refused("any slice", slice("leafhost.dev", "node-a", nodes), "spec:")
    })?;
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "attacked", "namespace": space},
        "spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}});
    for (what, done, by) in [
        (
            "a slice of a node",
            slice("leafhost.dev", "node-a", ("nodeName", &node)),
            "spec:",
        ),
        (
            "a slice in the pool of a node",
            slice("leafhost.dev", "node-a", nodes),
            "spec:",
        ),
        (
            "a slice of another driver",
            slice("gpu.example.com", &pool, nodes),
            "spec:",
        ),
        (
            "a template of claims that is no broker's",
            controller.create(&template),
            "metadata:",
        ),
    ] {
        refused(what, done, by)?;
    }
    Ok(())
}

/// Tries writes of DeviceClasses: those of others decide which devices their pods get.
fn classes(cluster: &Cluster, space: &str) -> Result<()> {
    const OWN: &str = "device.driver == \"leafhost.dev\" && device.attributes[\"leafhost.dev\"].configuration == \"cams\"";
    let controller = Account::new(cluster, "controller", space);
    let class = |name: &str, spec: Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name,
            "labels": {"leafhost.dev/configuration": "cams"}}, "spec": spec})
    };
    let selecting = |expression: &str| json!({"selectors": [{"cel": {"expression": expression}}]});
    let made = |spec: Value| controller.create(&class("attacked.akri.sh", spec));
    let mut extended = selecting(OWN);
    extended["extendedResourceName"] = json!("akri.sh/cams");
    let create = [
        "create",
        "--dry-run=server",
        "--output=jsonpath={.spec.extendedResourceName}",
        "--filename",
        "-",
    ];
    let own = class("attacked.akri.sh", extended.clone()).to_string();
    // Older API servers drop the field.
    let has_resources = !controller.kubectl(&create, &own)?.is_empty();
    extended["extendedResourceName"] = json!("vendor.example/gpu");
    let mut others = class(
        "attacked.vendor.example",
        selecting("device.driver == \"vendor.example\""),
    );
    others["metadata"]["labels"].take();
    let unlabelled = || controller.create(&others);
    within(Duration::from_mins(1), "the policy is in effect", || {
        refused("a class without the label", unlabelled(), "metadata.labels")
    })?;
    cluster.kubectl_with(&["create", "--filename", "-"], &others.to_string())?;
    let target = ["deviceclass", "attacked.vendor.example"];
    let mut configured = selecting(OWN);
    configured["config"] = json!([{"opaque": {"driver": "vendor.example", "parameters": {}}}]);
    let mut owned = class("attacked.akri.sh", selecting(OWN));
    owned["metadata"]["finalizers"] = json!(["example.com/stays"]);
    let attacks = [
        (
            "a class of others deleted",
            controller.kubectl(&[&["delete"], &target[..]].concat(), ""),
            "metadata.labels",
        ),
        (
            "a class of others changed",
            controller.patch(
                &target,
                &json!({"metadata": {"labels": {"leafhost.dev/configuration": "cams"}}, "spec": selecting(OWN)}),
            ),
            "metadata.labels",
        ),
        (
            "a class of another driver's devices",
            made(selecting("device.driver == \"vendor.example\"")),
            "spec:",
        ),
        (
            "a class of all devices",
            made(json!({"selectors": []})),
            "spec:",
        ),
        (
            "a class that also selects other devices",
            made(selecting(&format!("{OWN} || true"))),
            "spec:",
        ),
        ("a class with a config", made(configured), "spec:"),
        (
            "a class with a finalizer",
            controller.create(&owned),
            "metadata:",
        ),
    ];
    cluster.kubectl(&[&["delete"], &target[..]].concat())?;
    if has_resources {
        let what = "a class with the resource of others";
        refused(what, made(extended), "spec.extendedResourceName")?;
    }
    for (what, done, by) in attacks {
        refused(what, done, by)?;
    }
    Ok(())
}

/// Tries writes of the controller's ResourceNames.
fn names(cluster: &Cluster, space: &str) -> Result<()> {
    const UNUSED: &str = "leafhost.dev/unused-since";
    let controller = Account::new(cluster, "controller", space);
    let name = |name: &str| json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "ResourceName", "metadata": {"name": name}, "spec": {"namespace": space}});
    let made = |field: &str, value: &Value| {
        let mut object = name("attacked-more");
        object["metadata"][field] = value.clone();
        controller.create(&object)
    };
    let target = ["resourcename", "attacked"];
    let edit = |field: &str, value: &Value| {
        controller.patch(&target, &json!({"metadata": {field: value}}))
    };
    let delete = || controller.kubectl(&["delete", "resourcename", "attacked"], "");
    controller.create(&name("attacked"))?;
    let made_by_admin = ["create", "--filename", "-"];
    cluster.kubectl_with(&made_by_admin, &name("attacked").to_string())?;
    let owners = json!([{"apiVersion": "v1", "kind": "Namespace", "name": space, "uid": "u"}]);
    for (what, done, by) in [
        (
            "a name with a finalizer",
            made("finalizers", &json!(["a.example/b"])),
            "metadata:",
        ),
        (
            "a name with an owner",
            made("ownerReferences", &owners),
            "metadata:",
        ),
        (
            "a name with a label",
            made("labels", &json!({"a": "b"})),
            "metadata:",
        ),
        (
            "a name with a note",
            made("annotations", &json!({"a": "b"})),
            "metadata.annotations",
        ),
        (
            "a name kept",
            edit("finalizers", &json!(["a.example/b"])),
            "metadata:",
        ),
        (
            "a name labelled",
            edit("labels", &json!({"a": "b"})),
            "metadata:",
        ),
        (
            "a name annotated",
            edit("annotations", &json!({"a": "b"})),
            "metadata.annotations",
        ),
        (
            "a long note",
            edit("annotations", &json!({UNUSED: "1".repeat(100)})),
            "metadata.annotations",
        ),
        (
            "a name given to others",
            controller.patch(&target, &json!({"spec": {"namespace": "others"}})),
            "cannot be changed",
        ),
        ("a used name freed", delete(), "metadata.annotations"),
    ] {
        refused(what, done, by)?;
    }
    edit("annotations", &json!({UNUSED: "2026-01-01T00:00:00Z"}))?;
    edit("annotations", &json!({UNUSED: null}))?;
    edit("annotations", &json!({UNUSED: "2026-01-01T00:00:00Z"}))?;
    delete()?;
    Ok(())
}

fn webhook(cluster: &Cluster) -> Result<()> {
    let name = format!("{NAMESPACE}-leafhost-webhook");
    // Its rule matches no existing resource.
    let hooks = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [{"name": "a.leafhost.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "clientConfig": {"service": {"namespace": NAMESPACE, "name": name}},
            "rules": [{"apiGroups": ["none.leafhost.dev"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"]}]}]});
    cluster.kubectl_with(&["create", "--filename", "-"], &hooks.to_string())?;
    let webhook = Account::new(cluster, "webhook", NAMESPACE);
    let change = |path: &str, value: Value| {
        let patch = json!([{"op": "add", "path": format!("/webhooks/0/{path}"), "value": value}]);
        let patch = patch.to_string();
        let of = ["patch", "validatingwebhookconfiguration", &name];
        webhook.kubectl(&[&of[..], &["--type=json", "--patch", &patch]].concat(), "")
    };
    let annotate = |patch: &Value| webhook.patch(&["validatingwebhookconfiguration", &name], patch);
    // The chart's Secret, and one of another owner.
    let own = format!("{name}-certificate");
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque"});
    let in_space = ["--namespace", NAMESPACE];
    for name in [&own, "others"] {
        let create = [&in_space[..], &["create", "--filename", "-"]].concat();
        cluster.kubectl_with(&create, &secret(name).to_string())?;
    }
    let edit = |name: &str, patch: &Value| webhook.patch(&["secret", name], patch);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone"}]);
    let mut token = secret("token");
    token["type"] = json!("kubernetes.io/service-account-token");
    token["metadata"]["annotations"] =
        json!({"kubernetes.io/service-account.name": format!("{NAMESPACE}-leafhost-controller")});
    let metadata = |field: &str, value: &Value| json!({"metadata": {field: value}});
    let data = |key: &str, bytes: usize| {
        // Three bytes are four characters of Base64.
        json!({"data": {key: "AAAA".repeat(bytes.div_ceil(3))}})
    };
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]);
    let elsewhere = json!({"url": "https://127.0.0.1:1/"});
    let selector = json!({"matchLabels": {"a": "b"}});
    let result = (|| {
        change("clientConfig/caBundle", json!("Y2VydGlmaWNhdGU="))?;
        for key in ["tls.crt", "tls.key", "ca.crt", "renew-after", "dns-name"] {
            edit(&own, &data(key, 3_000))?;
        }
        for (what, done, by) in [
            (
                "all requests asked for",
                change("rules", everything),
                "caBundle",
            ),
            (
                "requests sent elsewhere",
                change("clientConfig", elsewhere),
                "caBundle",
            ),
            (
                "requests left out",
                change("namespaceSelector", selector),
                "caBundle",
            ),
            (
                "all refused",
                change("failurePolicy", json!("Fail")),
                "caBundle",
            ),
            (
                "other reviews",
                change("admissionReviewVersions", json!(["v1", "v2"])),
                "caBundle",
            ),
            (
                "a huge caBundle",
                change("clientConfig/caBundle", json!("AAAA".repeat(20_000))),
                "caBundle",
            ),
            (
                "the webhook annotated",
                annotate(&metadata("annotations", &json!({"a": "b"}))),
                "metadata",
            ),
            (
                "the token of the controller",
                webhook.create(&token),
                "metadata.name",
            ),
            (
                "a Secret of Helm",
                webhook.create(&secret("sh.helm.release.v1.leafhost.v9")),
                "metadata.name",
            ),
            (
                "its own Secret made again",
                webhook.kubectl(&["delete", "secret", &own, "--dry-run=server"], ""),
                "metadata.name",
            ),
            (
                "another Secret",
                edit("others", &data("tls.crt", 3)),
                "metadata.name",
            ),
            (
                "its own Secret owned",
                edit(&own, &metadata("ownerReferences", &owners)),
                "metadata",
            ),
            (
                "its own Secret kept",
                edit(&own, &metadata("finalizers", &json!(["a.example/b"]))),
                "metadata",
            ),
            (
                "its own Secret labelled",
                edit(&own, &metadata("labels", &json!({"a": "b"}))),
                "metadata",
            ),
            (
                "its own Secret of an account",
                edit(
                    &own,
                    &metadata("annotations", &token["metadata"]["annotations"]),
                ),
                "metadata",
            ),
            (
                "its own Secret frozen",
                edit(&own, &json!({"immutable": true})),
                "data",
            ),
            ("another key", edit(&own, &data("token", 3)), "data"),
            ("a huge key", edit(&own, &data("tls.key", 20_000)), "data"),
        ] {
            refused(what, done, by)?;
        }
        Ok(())
    })();
    cluster.kubectl(&[&in_space[..], &["delete", "secret", &own, "others"]].concat())?;
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", &name])?;
    result
}
