//! The webhook of the chart: which Configurations it refuses, and what is possible while none runs.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::away::Own;
use crate::installed::Release;

const NAME: &str = "leafhost-webhook";
const SECRET: &str = "/api/v1/namespaces/leafhost/secrets/leafhost-webhook";
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

/// Puts the fields of `from` into `into`.
fn json_merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

fn refused(cluster: &Cluster, what: &str, spec: &Value, by: &str) -> Result<()> {
    match cluster.apply(&configuration("wrong", spec)) {
        Ok(_) => {
            // What is stored already is not reviewed again.
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
    // `helm install` has waited for it.
    let release = Release::whole(cluster)?;
    check(cluster).with_context(|| release.state())
}

fn check(cluster: &'static Cluster) -> Result<()> {
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

    // What is removed or damaged comes back.
    let before = cluster.get(SECRET)?;
    cluster.api().delete(SECRET)?;
    eventually("another certificate is made", || {
        let now = cluster.get(SECRET)?;
        ensure!(now["data"]["tls.crt"] != before["data"]["tls.crt"]);
        Ok(())
    })?;
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
            // What is stored already is not reviewed again.
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
