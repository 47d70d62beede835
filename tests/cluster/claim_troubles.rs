//! Pods with claims during failures: the API server takes no writes, CDI files are missing, devices fail, kubelets are down.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod};
use leafhost_tests::wait::{eventually, within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::brokers::Controller;
use crate::claims::PATIENCE;
use crate::device::{Site, variable};
use crate::gate::{Gate, Writes};

/// Upper bound for a device failure to be reported.
const SEEN: Duration = Duration::from_secs(30);

/// Node with two GPUs that the scheduler allocates. The agent's requests to the API server go through the gate.
struct Bench {
    /// Namespace whose pods are deleted while the agent still runs.
    space: Namespace<'static>,
    site: Site,
    gate: Gate,
    _controller: Controller,
    cluster: &'static Cluster,
    configuration: &'static str,
}

impl Bench {
    fn start(cluster: &'static Cluster, configuration: &'static str) -> Result<Self> {
        cluster.define()?;
        let mut site = Site::on(cluster, cluster.take_node()?)?;
        let space = site.namespace(configuration)?;
        let gate = Gate::start(cluster)?;
        site.home.write("kubeconfig", &gate.kubeconfig)?;
        site.home.add_handler("mock-gpu")?;
        site.home.join(&site.home.path().join("kubeconfig"));
        let folder = site.node.cdi();
        site.home.publish_in(&folder);
        site.home.start(&[])?;
        let bench = Self {
            _controller: Controller::start(cluster, &space)?,
            space,
            site,
            gate,
            cluster,
            configuration,
        };
        bench.configure("count: 2", false)?;
        let template = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one", "namespace": bench.space.name()},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": format!("{configuration}.akri.sh")}}]}}},
        });
        cluster.apply(&template.to_string())?;
        eventually("both GPUs are offered", || {
            let devices = bench.devices()?;
            ensure!(devices.len() == 2, "{devices:#?}");
            Ok(())
        })
        .with_context(|| bench.space.state())?;
        Ok(bench)
    }

    fn configure(&self, details: &str, evicts: bool) -> Result<()> {
        let annotations =
            json!({"leafhost.dev/allocation": "dra", "leafhost.dev/evict": evicts.to_string()});
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": self.configuration, "namespace": self.space.name(), "annotations": annotations},
            "spec": {"discoveryHandler": {"name": "mock-gpu", "discoveryDetails": details}, "capacity": 1},
        });
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// Returns the Configuration's devices that the node offers.
    fn devices(&self) -> Result<Vec<Value>> {
        let path = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName=";
        let list = self
            .cluster
            .get(&format!("{path}{}", self.site.node.name()))?;
        let slices = list["items"].as_array().context("no items")?.iter();
        let devices = slices.filter_map(|one| one["spec"]["devices"].as_array());
        let is_own = |one: &&Value| one["attributes"]["namespace"]["string"] == self.space.name();
        Ok(devices.flatten().filter(is_own).cloned().collect())
    }

    /// Returns the names of the claims that hold slots.
    fn held(&self) -> Result<BTreeSet<String>> {
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/instances",
            self.space.name()
        );
        let list = self.cluster.get(&path)?;
        let all = list["items"].as_array().context("no items")?;
        let usage = all
            .iter()
            .filter_map(|one| one["spec"]["deviceUsage"].as_object());
        let texts = usage.flat_map(|usage| usage.values().filter_map(Value::as_str));
        // `R:<namespace>:<claim>:<uid>:<node>`
        Ok(texts
            .filter_map(|text| Some(text.split(':').nth(2)?.to_owned()))
            .collect())
    }

    /// Waits until the claims of these pods hold the slots, and no others.
    fn until_held_by(&self, pods: &[&str]) -> Result<()> {
        within(PATIENCE, &format!("{pods:?} have the slots"), || {
            let held = self.held()?;
            let is_of = |claim: &String, pod: &&str| claim.starts_with(&format!("{pod}-gpu-"));
            ensure!(
                held.len() == pods.len()
                    && pods
                        .iter()
                        .all(|pod| held.iter().any(|one| is_of(one, pod))),
                "{held:?}"
            );
            Ok(())
        })
        .with_context(|| self.space.state())
    }

    fn create(&self, name: &str) -> Result<()> {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
        let pod = Pod::new(name, &[Container::new("main").claim("gpu")]).on(self.site.node);
        let pod = pod
            .with("resourceClaims", claims)
            .with("restartPolicy", json!("Always"));
        self.space.create(&pod).map(drop)
    }

    /// Waits until a pod runs whose container was restarted `restarts` times; returns the index of its GPU.
    fn until_runs(&self, name: &str, restarts: u64) -> Result<String> {
        within(PATIENCE, &format!("{name} runs"), || {
            let pod = self.space.pod(name)?;
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(
                status["state"]["running"].is_object() && status["restartCount"] == restarts,
                "{:#}",
                pod["status"]
            );
            let log = self.space.logs(name, "main")?;
            variable(&log, "MOCK_GPU_INDEX").with_context(|| format!("it printed {log:?}"))
        })
        .with_context(|| self.space.state())
    }

    /// Waits until the pod's status shows this health of its device.
    fn until_shown(&self, pod: &str, health: &str) -> Result<()> {
        within(SEEN, &format!("the device of {pod} is {health}"), || {
            let status = &self.space.pod(pod)?["status"];
            let all = &status["containerStatuses"][0]["allocatedResourcesStatus"];
            ensure!(all[0]["resources"][0]["health"] == health, "{all:#}");
            Ok(())
        })
        .with_context(|| self.space.state())
    }
}

#[test]
fn claims_survive_an_api_server_that_takes_no_writes_and_files_that_are_lost() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let bench = Bench::start(cluster, "gated-claims")?;
    let space = &bench.space;
    bench.create("first")?;
    bench.until_runs("first", 0)?;

    bench.gate.set(Writes::Silent);
    bench.create("second")?;
    within(
        PATIENCE,
        "an event says that second is not prepared",
        || {
            let path = format!(
                "{}?fieldSelector=involvedObject.name=second",
                space.collection("events")
            );
            let list = cluster.get(&path)?;
            let events = list["items"].as_array().context("no items")?;
            let has_failed = |event: &Value| event["reason"] == "FailedPrepareDynamicResources";
            ensure!(events.iter().any(has_failed), "{events:#?}");
            Ok(())
        },
    )
    .with_context(|| space.state())?;
    // The end of a pod does not wait for the API server; the release of its slot does.
    space.delete("first")?;
    bench.until_held_by(&["first"])?;
    bench.gate.set(Writes::Pass);
    bench.until_held_by(&["second"])?;
    let index = bench.until_runs("second", 0)?;

    let folder = bench.site.node.cdi();
    for file in fs::read_dir(&folder)? {
        fs::remove_file(file?.path())?;
    }
    // The answer may get lost with the container.
    let _ = space.exec("second", "main", "kill 1");
    assert_eq!(bench.until_runs("second", 1)?, index);
    space.delete("second")?;
    bench.until_held_by(&[])
}

#[test]
fn a_device_that_fails_is_shown_and_given_to_nobody_and_its_pod_is_evicted_where_that_is_wanted()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let bench = Bench::start(cluster, "failing-claims")?;
    let space = &bench.space;
    bench.create("first")?;
    let index = bench.until_runs("first", 0)?;
    bench.until_shown("first", "Healthy")?;
    let fails = format!("{{count: 2, unhealthy: [{index}]}}");
    bench.configure(&fails, false)?;
    bench.until_shown("first", "Unhealthy")?;
    let until_tainted = |effect: &str| {
        within(SEEN, "the device has a taint", || {
            let devices = bench.devices()?;
            let mut taints = devices.iter().filter_map(|one| one["taints"].as_array());
            let found = taints.next().context("no taint")?;
            ensure!(
                found.len() == 1
                    && found[0]["key"] == "leafhost.dev/unhealthy"
                    && found[0]["effect"] == effect
                    && taints.next().is_none(),
                "{devices:#?}"
            );
            Ok(())
        })
    };
    until_tainted("NoSchedule")?;
    bench.create("second")?;
    let other = bench.until_runs("second", 0)?;
    ensure!(other != index, "it has the one that fails");
    bench.create("third")?;
    space.wait_unschedulable("third")?;
    bench.until_held_by(&["first", "second"])?;
    bench.configure(&fails, true)?;
    until_tainted("NoExecute")?;
    within(PATIENCE, "first is evicted", || match space.pod("first") {
        Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
        other => bail!("it is there: {:#}", other?["status"]),
    })?;
    bench.until_held_by(&["second"])?;
    bench.configure("count: 2", true)?;
    bench.until_runs("third", 0)?;

    // The kubelet learns of the forced deletion and of the next pod only after its restart.
    bench.site.node.stop_kubelet(Signal::SIGKILL)?;
    space.delete_now("third")?;
    bench.create("fourth")?;
    bench.site.node.start_kubelet()?;
    bench.until_runs("fourth", 0)?;
    bench.until_held_by(&["fourth", "second"])?;
    space.delete("second")?;
    space.delete("fourth")?;
    bench.until_held_by(&[])
}
