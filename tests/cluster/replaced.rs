//! Pods that controllers replace: each new pod has a slot, and the end of the old one does not free it.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::random;
use serde_json::{Value, json};

use crate::device::Site;

/// Returns a controller whose pods request one of `resource`.
pub fn controller(kind: &str, name: &str, node: &Node, resource: &str) -> Value {
    let main = Container::new("main").device(resource, 1);
    let pod = Pod::new(name, &[main]).on(node);
    let pod = pod.with("restartPolicy", "Always".into());
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod.spec()},
        },
    })
}

/// Checks that the kubelet refused no pod.
fn none_was_refused(cluster: &Cluster, space: &Namespace<'_>) -> Result<()> {
    let events = cluster.get(&space.collection("events"))?;
    let refused: Vec<&Value> = events
        .get("items")
        .and_then(Value::as_array)
        .context("no events")?
        .iter()
        .filter(|event| {
            let reason = event.get("reason");
            reason.is_some_and(|reason| reason == "UnexpectedAdmissionError")
        })
        .collect();
    ensure!(refused.is_empty(), "{refused:#?}");
    Ok(())
}

#[test]
fn a_pod_of_a_stateful_set_keeps_its_slot_when_the_one_before_it_ends() -> Result<()> {
    stateful_set(5)
}

/// Replaces the pod `SOAK_ROUNDS` times.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_replaced_pods_of_a_stateful_set() -> Result<()> {
    stateful_set(random::rounds(200))
}

fn stateful_set(rounds: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("set")?;
    site.configure("set", 2, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(2)?;
    let path = format!("/apis/apps/v1/namespaces/{}/statefulsets", space.name());
    cluster.api().create(
        &path,
        &controller("StatefulSet", "set", site.node, &resource),
    )?;
    let uid = |pod: &Value| pod.pointer("/metadata/uid").cloned();
    for round in 0..rounds {
        let pod = space.wait_running("set-0")?;
        if round % 2 == 0 {
            space.delete("set-0")?;
        } else {
            // The next pod starts while this one's containers still run.
            space.delete_now("set-0")?;
        }
        space.until("set-0", "the next one runs", |next| {
            let phase = next.pointer("/status/phase");
            ensure!(
                phase.is_some_and(|phase| phase == "Running") && uid(next) != uid(&pod),
                "{next:#}"
            );
            Ok(())
        })?;
        let held = site.until_held_by(&space, &["set-0"])?;
        ensure!(held.len() == 1, "round {round}: {held:?}");
        none_was_refused(cluster, &space)?;
    }
    // Each slot was released once, and none while its pod had it.
    let freed = site.home.log().matches("slot is free again").count();
    ensure!(
        u64::try_from(freed)? <= rounds,
        "{freed} of {rounds} came back\n{}",
        site.home.log()
    );
    site.until_amounts(&resource, 2, 2)?;
    cluster.api().delete(&format!("{path}/set"))?;
    site.until_held_by(&space, &[])?;
    Ok(())
}

#[test]
fn a_recreated_deployment_always_gets_the_only_slot() -> Result<()> {
    deployment(5)
}

/// Recreates the pods `SOAK_ROUNDS` times.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_recreated_deployments() -> Result<()> {
    deployment(random::rounds(20))
}

fn deployment(rounds: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("recreate")?;
    site.configure("recreate", 1, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(1)?;
    let mut object = controller("Deployment", "only", site.node, &resource);
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    spec.context("no spec")?
        .insert("strategy".to_owned(), json!({"type": "Recreate"}));
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", space.name());
    cluster.api().create(&path, &object)?;
    let rollout = |verb: &str, more: &[&str]| {
        let fixed = [
            "--namespace",
            space.name(),
            "rollout",
            verb,
            "deployment/only",
        ];
        let all: Vec<&str> = fixed.iter().chain(more).copied().collect();
        cluster.kubectl(&all).with_context(|| space.state())
    };
    rollout("status", &["--timeout=60s"])?;
    for round in 0..rounds {
        // As `kubectl rollout restart` does, which refuses to do it twice within a second.
        let annotations = json!({"restarted": round.to_string()});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        let (own, patch) = (space.name(), patch.to_string());
        let target = ["--namespace", own, "patch", "deployment/only", "--patch"];
        cluster.kubectl(&[&target[..], &[&*patch]].concat())?;
        rollout("status", &["--timeout=60s"])?;
        none_was_refused(cluster, &space)?;
    }
    cluster.api().delete(&format!("{path}/only"))?;
    site.until_held_by(&space, &[])?;
    Ok(())
}
