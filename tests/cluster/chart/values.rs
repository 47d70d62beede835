//! Values of the chart: those it refuses, and the objects that the others make.

use anyhow::Result;
use leafhost_tests::cluster;
use serde_json::Value;

use super::{chart, of_kind, render};

#[test]
fn a_cluster_that_is_too_old_for_the_policies_is_refused_with_the_remedy() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let chart = chart();
    let old = ["template", "leafhost", &chart, "--kube-version=1.31.0"];
    let error = format!("{:#}", cluster.helm(&old).unwrap_err());
    assert!(error.contains("set policies.enabled=false"), "{error}");
    cluster.helm(&[&old[..], &["--set", "policies.enabled=false"]].concat())?;
    Ok(())
}

#[test]
fn grants_of_the_images_handlers_are_a_value() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let values = [
        "agent.handlers.grants.opcua=devices: {}",
        "agent.externalHandlers.grants.mine=devices: {}",
    ];
    let objects = render(cluster, &values)?;
    let [map] = *of_kind(&objects, "ConfigMap") else {
        anyhow::bail!("not one ConfigMap: {objects:#?}");
    };
    assert_eq!(map["metadata"]["labels"]["leafhost.dev/handlers"], "true");
    let grants =
        serde_json::json!({"opcua.grants.yaml": "devices: {}", "mine.grants.yaml": "devices: {}"});
    assert_eq!(map["data"], grants);
    Ok(())
}

#[test]
fn a_drain_ends_one_pod_of_a_part_at_a_time_and_each_part_is_asked_whether_it_lives() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let objects = render(cluster, &[])?;
    let selected = |object: &Value| object["spec"]["selector"]["matchLabels"].clone();
    let budgets = of_kind(&objects, "PodDisruptionBudget");
    let budgets: Vec<Value> = budgets.into_iter().map(selected).collect();
    let deployments = of_kind(&objects, "Deployment");
    assert_eq!(
        budgets,
        deployments
            .iter()
            .map(|one| selected(one))
            .collect::<Vec<_>>()
    );
    let [daemonset] = *of_kind(&objects, "DaemonSet") else {
        anyhow::bail!("no DaemonSet: {objects:#?}");
    };
    let pod = |one: &Value| one["spec"]["template"]["spec"].clone();
    for one in deployments.iter().chain([&daemonset]) {
        let probe = pod(one)["containers"][0]["livenessProbe"].clone();
        assert!(probe.is_object(), "{one:#}");
    }
    for one in deployments {
        assert_eq!(pod(one)["topologySpreadConstraints"][0]["maxSkew"], 1);
    }
    assert_eq!(pod(daemonset)["priorityClassName"], "system-node-critical");
    Ok(())
}

#[test]
fn an_extender_for_the_clusters_own_kube_scheduler_is_alone_and_has_no_rights_of_one() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let values = [
        "scheduler.enabled=true",
        "scheduler.kubeScheduler.enabled=false",
        "scheduler.name=default-scheduler",
    ];
    let objects = render(cluster, &values)?;
    let own: Vec<&Value> = objects
        .iter()
        .filter(|one| one["metadata"]["labels"]["app.kubernetes.io/component"] == "scheduler")
        .collect();
    let the = |kind: &str| {
        let found: Vec<&&Value> = own.iter().filter(|one| one["kind"] == kind).collect();
        match found[..] {
            [only] => Ok(*only),
            _ => anyhow::bail!("not one {kind}: {found:#?}"),
        }
    };
    let role = the("Role")?;
    let secret = the("Secret")?["metadata"]["name"].clone();
    assert_eq!(role["rules"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        role["rules"][0]["resourceNames"],
        serde_json::json!([secret])
    );
    let bound = the("ClusterRoleBinding")?;
    assert_eq!(
        bound["roleRef"]["name"],
        the("ClusterRole")?["metadata"]["name"]
    );
    let pod = &the("Deployment")?["spec"]["template"];
    let containers = pod["spec"]["containers"].as_array().map(Vec::len);
    assert_eq!(containers, Some(1));
    let labels = &pod["metadata"]["labels"];
    let service = the("Service")?;
    assert_eq!(service["spec"]["sessionAffinity"], "ClientIP");
    let selector = service["spec"]["selector"].as_object();
    for (label, value) in selector.into_iter().flatten() {
        assert_eq!(labels[label], *value);
    }
    let arguments = pod["spec"]["containers"][0]["args"].to_string();
    let name = &service["metadata"]["name"];
    for (flag, value) in [("secret", &secret), ("service", name)] {
        let said = format!("--tls-{flag}={}", value.as_str().unwrap_or_default());
        assert!(arguments.contains(&said), "{arguments}");
    }
    assert!(own.iter().all(|one| one["kind"] != "ConfigMap"));
    Ok(())
}

#[test]
fn values_that_the_chart_does_not_have_are_refused() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    for (value, named) in [
        ("agent.full=true", "full"),
        ("agent.host.kubelet=var", "kubelet"),
        ("agent.image.pullPolicy=Sometimes", "pullPolicy"),
        (
            "udev.configuration.enabled=true",
            "udev.configuration: this value of Akri's chart",
        ),
        ("onvif.configuration.name=a", "apply a Configuration"),
        (
            "agent.handlers.grants.a=x,agent.externalHandlers.grants.a=x",
            "both have a",
        ),
        (
            "agent.updateStrategy.rollingUpdate.maxSurge=1",
            "maxSurge must be 0",
        ),
    ] {
        let error = format!("{:#}", render(cluster, &[value]).unwrap_err());
        assert!(error.contains(named), "{error}");
    }
    Ok(())
}
