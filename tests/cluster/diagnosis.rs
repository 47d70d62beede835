//! Status and Events of Configurations that the controller writes, by `kubectl get akric` and `kubectl describe`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::program::{guest, leafhost, run};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::controller::Controller;

/// Upper bound for an Event to count once more.
const AGAIN: Duration = Duration::from_mins(1);

impl Agents {
    /// Returns the output of `kubectl describe` for an object, with single spaces.
    fn describe(&self, kind: &str, name: &str) -> Result<String> {
        let describe = ["describe", kind, name, "--namespace", self.space.name()];
        let text = self.cluster.kubectl(&describe)?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn until_described(&self, kind: &str, name: &str, words: &[&str]) -> Result<()> {
        let began = Instant::now();
        eventually(
            &format!("{kind} {name} is described with {words:?}"),
            || {
                let text = self.describe(kind, name)?;
                for words in words {
                    ensure!(text.contains(words), "no {words:?} in: {text}");
                }
                Ok(())
            },
        )
        .with_context(|| self.space.state())?;
        println!("{kind} {name} after {:?}", began.elapsed());
        Ok(())
    }

    /// Returns the count of each Event with this reason by that controller. Controllers of other tests write Events, too.
    fn events(&self, name: &str, reason: &str, controller: &Controller) -> Result<Vec<u64>> {
        let process = format!("-{}", controller.pid());
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            self.space.name()
        );
        let all = self.cluster.get(&path)?;
        let all = all["items"].as_array().context("no items")?.iter();
        let own = all.filter(|one| {
            let by = one["reportingInstance"].as_str().unwrap_or_default();
            one["regarding"]["name"] == name && one["reason"] == reason && by.ends_with(&process)
        });
        Ok(own
            .map(|one| one["series"]["count"].as_u64().unwrap_or(1))
            .collect())
    }
}

#[test]
fn kubectl_describe_says_what_is_wrong_with_a_configuration_and_where() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut agents = Agents::start(cluster, "described", &[])?;
    let kubeconfig = agents.controller_kubeconfig()?;
    let space = agents.space.name();
    let log = tempfile::NamedTempFile::new()?;
    agents.space.show_log(log.path());
    let (start, began) = (cluster.audit().now()?, Instant::now());
    let controller = Controller::start_as(&kubeconfig, space, &log)?;

    let columns = ["get", "akric", "steady", "--namespace", space];
    eventually("READY and DEVICES are shown", || {
        let shown = cluster.kubectl(&columns)?;
        let words: Vec<&str> = shown.split_whitespace().collect();
        ensure!(
            words.starts_with(&[
                "NAME",
                "CAPACITY",
                "HANDLER",
                "READY",
                "DEVICES",
                "ALLOCATION",
                "AGE",
                "steady",
                "2",
                "debugEcho",
                "2/2",
                "1"
            ]),
            "{shown}"
        );
        Ok(())
    })
    .with_context(|| agents.space.state())?;
    let everything_works = [
        "Reason: HandlerFound Status: True Type: HandlerAvailable",
        "Reason: DetailsAccepted Status: True Type: DetailsValid",
        "Reason: HandlerAnswers Status: True Type: Discovering",
        "Reason: NameFree Status: False Type: NameTaken",
    ];
    agents.until_described("akric", "steady", &everything_works)?;

    let unknown = "on node-a, node-b: spec.discoveryHandler.name: no handler is named \"nobody\"";
    agents.configure("unknown", "nobody", "{}")?;
    agents.until_described(
        "akric",
        "unknown",
        &[
            &format!("Message: {unknown}"),
            "Reason: HandlerNotFound Status: False Type: HandlerAvailable",
            "Reason: HandlerNotFound Status: Unknown Type: DetailsValid",
            "Reason: HandlerNotFound Status: False Type: Discovering",
            "Ready: 0/2",
            "Warning HandlerNotFound",
            "leafhost-controller",
        ],
    )?;
    agents.configure("details", "debugEcho", "{device: one}")?;
    agents.until_described(
        "akric",
        "details",
        &[
            "descriptions: is missing",
            "Reason: HandlerFound Status: True Type: HandlerAvailable",
            "Reason: InvalidDetails Status: False Type: DetailsValid",
            "Warning InvalidDetails",
        ],
    )?;
    // The details are corrected.
    agents.configure("details", "debugEcho", "{descriptions: [one]}")?;
    agents.until_described("akric", "details", &everything_works)?;

    // A handler that traps causes one Event, whose count grows.
    let folder = tempfile::tempdir()?;
    let hostile = folder.path().join("sandbox.wasm");
    std::fs::copy(guest("sandbox")?, &hostile)?;
    let grants = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";
    std::fs::write(folder.path().join("sandbox.grants.yaml"), grants)?;
    let arguments = ["handler", "configmap", "--name", "hostile"].map(std::ffi::OsString::from);
    let map = run(
        leafhost()?,
        arguments.into_iter().chain([hostile.into_os_string()]),
    )?
    .good()?;
    let apply = [
        "apply",
        "--server-side",
        "--namespace",
        space,
        "--filename",
        "-",
    ];
    cluster.kubectl_with(&apply, &map)?;
    agents.configure("trap", "hostile", "panic")?;
    let trapped = [
        "Reason: DiscoveryFailed Status: False Type: Discovering",
        "Warning DiscoveryFailed",
    ];
    agents.until_described("akric", "trap", &trapped)?;
    agents.configure("trap", "hostile", "good")?;
    agents.until_described("akric", "trap", &[everything_works[2]])?;
    agents.configure("trap", "hostile", "panic")?;
    within(AGAIN, "the Event counts once more", || {
        let counts = agents.events("trap", "DiscoveryFailed", &controller)?;
        ensure!(counts == [2], "{counts:?}");
        Ok(())
    })
    .with_context(|| agents.space.state())?;

    // A refused component is reported on its ConfigMap.
    let bad = json!({
        "metadata": {"name": "garbage", "labels": {"leafhost.dev/handlers": "true"}},
        "binaryData": {"garbage.wasm": "bm8gd2FzbQ=="},
    });
    cluster
        .api()
        .create(&agents.space.collection("configmaps"), &bad)?;
    agents.until_described(
        "configmap",
        "garbage",
        &["Warning HandlerRefused", "garbage.wasm"],
    )?;

    drop(controller);
    let requests = cluster.audit().since(start)?;
    let account = format!("system:serviceaccount:{space}:{space}-leafhost-controller");
    let writes = requests
        .iter()
        .filter(|(one, _)| one.user == account && one.is_write());
    let seconds = usize::try_from(began.elapsed().as_secs())?;
    for (request, count) in writes {
        println!("{count} {request:?}");
        let most = match request.resource.as_str() {
            "configurations/status" => seconds / 5 + 1,
            "events" => seconds / 30 + 2,
            // All tests share them, and a controller of another test may write first.
            "resourcenames" => 40,
            _ => 2,
        };
        ensure!(*count <= most, "{count} in {seconds} s: {request:?}");
        let is_late = request.resource == "resourcenames" && request.code == 409;
        let is_done = request.code < 300 || request.code == 422;
        ensure!(is_done || is_late, "{request:?}");
    }
    Ok(())
}

#[test]
fn what_agents_of_akri_left_keeps_no_object_that_is_deleted() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    cluster.define()?;
    let space = cluster.namespace("finalizers")?;
    let path = format!("/apis/akri.sh/v0/namespaces/{}", space.name());
    let object = |kind: &str, name: &str, finalizers: Value, spec: Value| json!({"apiVersion": "akri.sh/v0", "kind": kind, "metadata": {"name": name, "finalizers": finalizers}, "spec": spec});
    let spec = json!({"configurationName": "cams", "cdiName": "akri.sh/cams=1", "capacity": 1, "nodes": ["node-a"]});
    let configuration = json!({"discoveryHandler": {"name": "onvif", "discoveryDetails": ""}});
    let (instances, configurations) = (
        format!("{path}/instances"),
        format!("{path}/configurations"),
    );
    let api = cluster.api();
    let akris = json!(["node-a", "a-node-that-is-gone"]);
    api.create(
        &instances,
        &object("Instance", "cams-1", akris.clone(), spec.clone()),
    )?;
    api.create(
        &instances,
        &object(
            "Instance",
            "cams-2",
            json!(["node-a", "example.com/x"]),
            spec.clone(),
        ),
    )?;
    api.create(
        &instances,
        &object("Instance", "cams-3", akris.clone(), spec),
    )?;
    api.create(
        &configurations,
        &object("Configuration", "cams", akris.clone(), configuration),
    )?;
    for one in [
        "instances/cams-1",
        "instances/cams-2",
        "configurations/cams",
    ] {
        api.delete(&format!("{path}/{one}"))?;
    }
    let log = tempfile::NamedTempFile::new()?;
    let _controller = Controller::start_as(cluster.kubeconfig(), space.name(), &log)?;
    eventually("what only agents of Akri kept is gone", || {
        for one in ["instances/cams-1", "configurations/cams"] {
            ensure!(
                cluster.get(&format!("{path}/{one}")).is_err(),
                "{one} is there"
            );
        }
        let other = cluster.get(&format!("{instances}/cams-2"))?["metadata"]["finalizers"].clone();
        ensure!(other == json!(["example.com/x"]), "{other}");
        Ok(())
    })
    .with_context(|| std::fs::read_to_string(log.path()).unwrap_or_default())?;
    let kept = cluster.get(&format!("{instances}/cams-3"))?["metadata"]["finalizers"].clone();
    ensure!(kept == akris, "{kept}");
    for name in ["cams-2", "cams-3"] {
        api.merge(
            &format!("{instances}/{name}"),
            &json!({"metadata": {"finalizers": null}}),
        )?;
    }
    Ok(())
}
