//! Pods whose device is gone: the controller evicts them if it may, and their Deployment creates them again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::brokers::Controller;
use crate::pair::Pair;

const NAME: &str = "restarted";
/// Upper bound for the next attempt of an eviction.
const RETRIED: Duration = Duration::from_mins(3);
const ANNOTATION: &str = "leafhost.dev/restart-pods: \"true\"";

/// Returns the pods of the Deployment that are not being deleted, as (name, uid).
fn pods(pair: &Pair) -> Result<Vec<(String, String)>> {
    let path = format!("{}?labelSelector=app={NAME}", pair.space.collection("pods"));
    let list = pair.cluster.get(&path)?;
    let all = list["items"].as_array().context("no items")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let stays = all
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(stays
        .map(|pod| {
            (
                text(&pod["metadata"]["name"]),
                text(&pod["metadata"]["uid"]),
            )
        })
        .collect())
}

/// Returns the device that the Instances say a pod has.
fn device_of(pair: &Pair, pod: &str) -> Result<String> {
    let holder = Value::from(format!("{}/{pod}", pair.space.name()));
    let all = pair.instances()?;
    let has = |instance: &Value| {
        let nodes = instance["status"]["nodes"].as_object();
        let entries = nodes.into_iter().flat_map(|nodes| nodes.values());
        let mut holders = entries.filter_map(|entry| entry["holders"].as_object());
        holders.any(|holders| holders.values().any(|one| *one == holder))
    };
    let found = all.iter().find(|(_, instance)| has(instance));
    let (device, _) = found.with_context(|| format!("{pod} has no device: {all:#?}"))?;
    Ok(device.clone())
}

/// Returns the message of the condition on restarts. Controllers of other tests, which may not evict pods, write it, too.
fn condition(pair: &Pair) -> Result<String> {
    let path = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations/{}",
        pair.space.name(),
        pair.name()
    );
    let configuration = pair.cluster.get(&path)?;
    let conditions = configuration["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|one| one["type"] == "PodsRestarted");
    let found = found.context("no condition")?;
    ensure!(found["status"] == "False", "{found:#}");
    Ok(found["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_pod_whose_device_is_gone_is_created_again_with_another_one_as_soon_as_its_budget_allows()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, NAME, &[])?;
    let space = &pair.space;
    let controller = Controller::start_with(cluster, space, &["--no-brokers", "--restart-pods"])?;
    let shown = || format!("{}\n{}", space.state(), controller.log());
    let devices = ["one", "two"];
    pair.configure_with(2, &devices, "{}", ANNOTATION)?;
    let found = pair.until("both nodes see both devices", &devices, |_| true)?;
    let main = Container::new("main").device(&format!("akri.sh/{NAME}"), 1);
    let template = Pod::new(NAME, &[main]).with("restartPolicy", "Always".into());
    let labels = json!({"app": NAME});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template.spec()}},
    });
    let apps = format!("/apis/apps/v1/namespaces/{}/deployments", space.name());
    cluster.api().create(&apps, &deployment)?;
    let (name, uid) = eventually("the Deployment has its pod", || {
        pods(&pair)?.pop().context("no pod")
    })
    .with_context(shown)?;
    space.wait_running(&name)?;
    let lost = eventually("its device is known", || device_of(&pair, &name)).with_context(shown)?;
    let left: Vec<&str> = devices.into_iter().filter(|one| *one != lost).collect();
    // A pod that nothing would create again.
    space.run(&pair.pod("alone", 0, &found[&lost])?)?;
    eventually("its device is known, too", || device_of(&pair, "alone")).with_context(shown)?;
    let budgets = format!(
        "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        space.name()
    );
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": NAME},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    });
    cluster.api().create(&budgets, &budget)?;

    pair.configure_with(2, &left, "{}", ANNOTATION)?;
    eventually("the missing right is a condition", || {
        let message = condition(&pair)?;
        ensure!(message.contains("pods/eviction"), "{message}");
        Ok(())
    })
    .with_context(shown)?;
    Controller::grant(cluster, space, &["controller.restartPods=true"])?;
    within(RETRIED, "the budget forbids the eviction", || {
        ensure!(controller.log().contains("disruption budget"));
        Ok(())
    })
    .with_context(shown)?;
    ensure!(pods(&pair)? == [(name.clone(), uid.clone())], "{}", shown());

    cluster.api().delete(&format!("{budgets}/{NAME}"))?;
    within(RETRIED, "another pod has the other device", || {
        let all = pods(&pair)?;
        let [(next, next_uid)] = all.as_slice() else {
            anyhow::bail!("not one pod: {all:?}");
        };
        ensure!(*next_uid != uid, "it is the same pod");
        let device = device_of(&pair, next)?;
        ensure!(left == [device.as_str()], "it has {device}");
        Ok(())
    })
    .with_context(shown)?;
    let alone = space.pod("alone")?;
    ensure!(
        alone["metadata"]["deletionTimestamp"].is_null(),
        "{}",
        shown()
    );
    let events = cluster.get(&format!(
        "{}?fieldSelector=reason=DeviceGone",
        space.collection("events")
    ))?;
    let events = events["items"].as_array().context("no items")?;
    let regarding: Vec<&str> = events
        .iter()
        .filter_map(|event| event["involvedObject"]["name"].as_str())
        .collect();
    ensure!(regarding == [name.as_str()], "{events:#?}");
    let counted = format!("leafhost_controller_pods_evicted_total{{configuration=\"{NAME}\"}} 1\n");
    // The controller pauses after an eviction, and counts it then.
    eventually("the eviction is counted", || {
        let metrics = controller.metrics()?;
        ensure!(metrics.contains(&counted), "{metrics}");
        Ok(())
    })?;
    cluster.api().delete(&format!("{apps}/{NAME}"))?;
    Ok(())
}
