//! Webhook of the chart: the Configurations it refuses, and what works while it does not run.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::away::Own;
use crate::installed::Release;

const NAME: &str = "leafhost-webhook";
const SECRET: &str = "/api/v1/namespaces/leafhost/secrets/leafhost-webhook-certificate";
const WEBHOOK: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/leafhost-webhook";
const CONFIGURATIONS: &str = "/apis/akri.sh/v0/namespaces/default/configurations";

fn configuration(name: &str, spec: &Value) -> String {
    let mut object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name, "namespace": "default"},
        "spec": {"discoveryHandler": {"name": "udev", "discoveryDetails": "udevRules: ['KERNEL==\"leafhost-none\"']"}, "capacity": 1},
    });
    json_merge(&mut object["spec"], spec);
    object.to_string()
}

/// Merges the fields of `from` into `into`.
fn json_merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

fn refused(cluster: &Cluster, what: &str, spec: &Value, by: &str) -> Result<()> {
    match cluster.apply(&configuration("wrong", spec)) {
        Ok(_) => {
            // The webhook does not review a stored object again.
            cluster.kubectl(&["delete", "configurations.akri.sh", "wrong"])?;
            bail!("{what} is stored")
        }
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(
                text.contains("denied the request") && text.contains(by),
                "{what}: {text}"
            );
            Ok(())
        }
    }
}

#[test]
fn a_configuration_with_a_wrong_broker_or_wrong_details_is_refused_and_without_a_webhook_it_can_be_deleted()
-> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(1)?;
    let cluster = own.0;
    // `helm install` has waited for the webhook.
    let release = Release::whole(cluster)?;
    check(cluster, &release).with_context(|| release.state())
}

/// Tries the objects that a stolen token of the controller could create.
fn attacks(cluster: &'static Cluster) -> Result<()> {
    let token = cluster.kubectl(&[
        "--namespace",
        "leafhost",
        "create",
        "token",
        "leafhost-controller",
    ])?;
    let create = |object: &Value| {
        let create = [
            "--token",
            token.trim(),
            "create",
            "--dry-run=server",
            "--filename",
            "-",
        ];
        cluster.kubectl_with(&create, &object.to_string())
    };
    let apply = |object: &Value| {
        cluster.apply(&object.to_string())?;
        let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
        let plural = if kind == "Instance" {
            "instances"
        } else {
            "configurations"
        };
        let found = cluster.get(&format!(
            "/apis/akri.sh/v0/namespaces/default/{plural}/{name}"
        ))?;
        anyhow::Ok(text(&found["metadata"]["uid"]).to_owned())
    };
    let broker = json!({"containers": [{"name": "c", "image": "i"}]});
    let service = json!({"ports": [{"port": 80}]});
    let of = |name: &str, spec: &Value| -> Result<Value> {
        Ok(serde_json::from_str(&configuration(name, spec))?)
    };
    let with = of(
        "with-broker",
        &json!({"brokerSpec": {"brokerPodSpec": broker}, "configurationServiceSpec": service}),
    )?;
    let with = apply(&with)?;
    let without = apply(&of("without", &json!({}))?)?;
    let instance = |name: &str, configuration: &str, uid: &str| {
        apply(
            &json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "default", "ownerReferences": [
            {"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": configuration, "uid": uid, "controller": true}]},
            "spec": {"configurationName": configuration, "capacity": 1, "shared": true, "nodes": ["node-a"]}}),
        )
    };
    let (of_broker, of_none) = (
        instance("with-broker-a1a1a1", "with-broker", &with)?,
        instance("without-a1a1a1", "without", &without)?,
    );
    let owned = |kind: &str, spec: &Value, owner: (&str, &str, &str)| {
        json!({"apiVersion": if kind == "Job" { "batch/v1" } else { "v1" }, "kind": kind,
            "metadata": {"name": "evil", "namespace": "default", "labels": {"controller": "akri.sh"}, "ownerReferences": [
                {"apiVersion": "akri.sh/v0", "kind": owner.0, "name": owner.1, "uid": owner.2, "controller": true}]}, "spec": spec})
    };
    // The API server of the tests itself refuses privileged containers.
    let privileged = json!({"hostPID": true, "containers": [{"name": "c", "image": "i"}]});
    let job = json!({"template": {"spec": {"restartPolicy": "Never", "hostPID": true, "containers": privileged["containers"]}}});
    let open = json!({"ports": [{"port": 80}], "type": "NodePort"});
    let (broker_owner, none_owner) = (
        ("Instance", "with-broker-a1a1a1", &*of_broker),
        ("Instance", "without-a1a1a1", &*of_none),
    );
    for (what, object, by) in [
        (
            "a privileged pod of an Instance without a broker",
            owned("Pod", &privileged, none_owner),
            "asks for no Pod",
        ),
        (
            "a privileged pod of an Instance with one",
            owned("Pod", &privileged, broker_owner),
            "metadata.name",
        ),
        (
            "a pod of no Instance",
            owned("Pod", &privileged, ("Instance", "none", "u")),
            "there is no such Configuration",
        ),
        (
            "a pod of another Instance's uid",
            owned("Pod", &broker, ("Instance", "with-broker-a1a1a1", &of_none)),
            "there is no such Instance",
        ),
        (
            "a job of an Instance with a pod",
            owned("Job", &job, broker_owner),
            "asks for no Job",
        ),
        (
            "a service of another name",
            owned("Service", &open, ("Configuration", "with-broker", &with)),
            "metadata.name",
        ),
        (
            "a service that nobody asked for",
            owned("Service", &open, ("Configuration", "without", &without)),
            "asks for no such service",
        ),
    ] {
        let error = match create(&object) {
            Ok(_) => bail!("{what} is allowed"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(
            error.contains("brokers.leafhost.dev") && error.contains(by),
            "{what}: {error}"
        );
    }
    let reserved = |name: &str, namespace: &str| {
        create(
            &json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "ResourceName", "metadata": {"name": name}, "spec": {"namespace": namespace}}),
        )
    };
    for (name, namespace) in [("none", "default"), ("none", "kube-system")] {
        let error = match reserved(name, namespace) {
            Ok(_) => bail!("{name} is reserved for {namespace}"),
            Err(error) => format!("{error:#}"),
        };
        let by = format!("there is no Configuration {namespace}/{name}");
        ensure!(
            error.contains("names.leafhost.dev") && error.contains(&by),
            "{error}"
        );
    }
    for name in ["with-broker", "without"] {
        cluster.kubectl(&["delete", "configurations.akri.sh", name])?;
    }
    Ok(())
}

/// Tries parameters of claims and classes for our devices, and for others.
fn parameters(cluster: &Cluster) -> Result<()> {
    let config = |driver: &str, kind: &str| {
        let parameters = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": kind});
        json!([{"opaque": {"driver": driver, "parameters": parameters}}])
    };
    let claim = |driver: &str, kind: &str| {
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.akri.sh"}});
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "reviewed", "namespace": "default"},
            "spec": {"devices": {"requests": [request], "config": config(driver, kind)}}})
    };
    let class = |kind: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "reviewed"},
            "spec": {"config": config("leafhost.dev", kind)}})
    };
    let create = |object: Value| {
        let create = ["create", "--dry-run=server", "--filename", "-"];
        cluster.kubectl_with(&create, &object.to_string())
    };
    create(claim("leafhost.dev", "DeviceParameters"))?;
    create(claim("gpu.example.com", "GpuConfig"))?;
    create(class("DeviceParameters"))?;
    for (object, field) in [
        (
            claim("leafhost.dev", "GpuConfig"),
            "spec.devices.config[0].opaque.parameters",
        ),
        (class("GpuConfig"), "spec.config[0].opaque.parameters"),
    ] {
        let Err(error) = create(object) else {
            bail!("{field} of another kind is stored");
        };
        let text = format!("{error:#}");
        ensure!(
            text.contains("denied the request") && text.contains(field),
            "{text}"
        );
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn check(cluster: &'static Cluster, release: &Release) -> Result<()> {
    let broker = json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"{{PLACEHOLDER}}": "1"}}}]});
    let mut misspelt = broker.clone();
    misspelt["containers"][0]["imagee"] = json!("i");
    let pod = |pod: &Value| json!({"brokerSpec": {"brokerPodSpec": pod}});
    let details =
        |details: &str| json!({"discoveryHandler": {"name": "udev", "discoveryDetails": details}});
    refused(
        cluster,
        "a misspelt field",
        &pod(&misspelt),
        "spec.brokerSpec.brokerPodSpec.containers[0].imagee: Kubernetes has no such field",
    )?;
    refused(
        cluster,
        "a port that is none",
        &json!({"instanceServiceSpec": {"ports": [{"port": "http"}]}}),
        "spec.instanceServiceSpec.ports[0].port",
    )?;
    eventually("the handler of the image is loaded", || {
        refused(
            cluster,
            "a rule that is none",
            &details("udevRules: ['KERNEL=']"),
            "spec.discoveryHandler.discoveryDetails: udevRules[0]",
        )
    })?;
    cluster.apply(&configuration("right", &pod(&broker)))?;
    cluster.apply(&configuration("right", &json!({"capacity": 2})))?;
    refused(
        cluster,
        "a variable that starts programs",
        &json!({"brokerProperties": {"LD_PRELOAD": "/dev/shm/x.so"}}),
        "spec.brokerProperties.LD_PRELOAD: is never set",
    )?;
    crate::names::check_webhook(cluster, "right")?;

    refused(
        cluster,
        "deep brackets",
        &details(&"[".repeat(100_000)),
        "spec.discoveryHandler.discoveryDetails: has brackets nested more than 64 deep",
    )?;
    attacks(cluster)?;
    parameters(cluster)?;

    // A removed or damaged certificate is restored, but not a deleted Secret.
    let before = cluster.get(SECRET)?;
    release.upgrade()?;
    let kept = cluster.get(SECRET)?;
    ensure!(
        kept["data"] == before["data"],
        "an upgrade changes the Secret"
    );
    ensure!(kept["metadata"]["uid"] == before["metadata"]["uid"]);
    cluster
        .api()
        .merge(SECRET, &json!({"data": {"tls.crt": null}}))?;
    let other = |before: &Value| {
        let now = cluster.get(SECRET)?;
        let certificate = &now["data"]["tls.crt"];
        ensure!(certificate.is_string() && *certificate != before["data"]["tls.crt"]);
        Ok(now)
    };
    let before = eventually("another certificate is made", || other(&before))?;
    cluster.api().delete(SECRET)?;
    eventually("the webhook says what is missing", || {
        let logs = cluster.kubectl(&[
            "--namespace",
            "leafhost",
            "logs",
            "deployment/leafhost-webhook",
        ])?;
        ensure!(logs.contains(
            "there is no Secret leafhost/leafhost-webhook-certificate; helm upgrade creates it"
        ));
        Ok(())
    })?;
    refused(cluster, "a misspelt field", &pod(&misspelt), "imagee")?;
    release.upgrade()?;
    eventually("another certificate is made", || other(&before))?;
    let no_trust = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    cluster.kubectl(&[
        "patch",
        "validatingwebhookconfiguration",
        NAME,
        "--type=json",
        "--patch",
        &no_trust.to_string(),
    ])?;
    eventually("the API server is told of the certificate", || {
        let (secret, webhook) = (cluster.get(SECRET)?, cluster.get(WEBHOOK)?);
        ensure!(webhook["webhooks"][0]["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]);
        Ok(())
    })?;
    within(
        Duration::from_mins(1),
        "it answers by its new certificate",
        || refused(cluster, "a misspelt field", &pod(&misspelt), "imagee"),
    )?;

    let scale = |replicas: &str| {
        cluster.kubectl(&[
            "--namespace",
            "leafhost",
            "scale",
            "deployment",
            NAME,
            replicas,
        ])
    };
    scale("--replicas=0")?;
    within(Duration::from_mins(1), "no webhook runs", || match cluster
        .apply(&configuration("late", &json!({})))
    {
        Ok(_) => {
            // The webhook does not review a stored object again.
            cluster.kubectl(&["delete", "configurations.akri.sh", "late"])?;
            bail!("a new Configuration is stored")
        }
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains("failed calling webhook"), "{text}");
            Ok(())
        }
    })?;
    let right = format!("{CONFIGURATIONS}/right");
    cluster
        .api()
        .merge(&right, &json!({"metadata": {"labels": {"site": "a"}}}))?;
    cluster.kubectl(&[
        "delete",
        "configurations.akri.sh",
        "right",
        "--wait",
        "--timeout=30s",
    ])?;
    scale("--replicas=1")?;
    within(Duration::from_mins(1), "it answers again", || {
        cluster.apply(&configuration("late", &json!({})))
    })?;
    Ok(())
}
