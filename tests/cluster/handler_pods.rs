//! Chart with the names of Akri's, and with handlers in pods of their own: the requirements of Akri's end-to-end tests in our own tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{APPLETS, Cluster};
use leafhost_tests::program::source_tree;
use leafhost_tests::requirement;
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use crate::away::Own;
use crate::installed::image;

/// Image tag of a build in the tests of Akri.
pub const TAG: &str = "pr";
/// Upper bound for every wait.
const LIMIT: Duration = Duration::from_mins(2);
const CONFIGURATION: &str = "trial";

/// Cluster of one node with an image that has a shell.
pub struct Prepared {
    pub own: Own,
}

impl Prepared {
    pub fn start() -> Result<Self> {
        let own = Own::start(1)?;
        let extra = tempfile::tempdir()?;
        let programs = extra.path().join("usr/bin");
        fs::create_dir_all(&programs)?;
        symlink("usr/bin", extra.path().join("bin"))?;
        fs::copy("/usr/bin/busybox", programs.join("busybox"))?;
        for applet in APPLETS {
            symlink("busybox", programs.join(applet))?;
        }
        let archive = image(TAG, &["debug-echo", "udev"], Some(extra.path()))?;
        for node in own.0.nodes() {
            node.import_image(&archive.path().join("image.tar"))?;
            node.settle_udev()?;
        }
        Ok(Self { own })
    }
}

/// Returns the names of objects with a label and a phase.
fn names(cluster: &Cluster, kind: &str, label: &str, phase: &str) -> Result<Vec<String>> {
    let field = format!("--field-selector=status.phase={phase}");
    let mut arguments = vec!["get", kind, "--selector", label, "--output", "name"];
    if !phase.is_empty() {
        arguments.push(&field);
    }
    let text = cluster.kubectl(&arguments)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Waits until there are as many Instances, running brokers, services of Instances, and services of the Configuration as expected.
fn wait_counts(cluster: &Cluster, configuration: &str, expected: [usize; 4]) -> Result<()> {
    let label = format!("akri.sh/configuration={configuration}");
    within(LIMIT, "the devices and their workloads are as many", || {
        let instances = cluster.get("/apis/akri.sh/v0/namespaces/default/instances")?;
        let instances = instances["items"].as_array().context("no items")?;
        let own = |one: &&Value| one["spec"]["configurationName"] == configuration;
        let services = names(cluster, "services", "akri.sh/instance", "")?;
        let start = format!("service/{configuration}-");
        let found = [
            instances.iter().filter(own).count(),
            names(cluster, "pods", &label, "Running")?.len(),
            services
                .iter()
                .filter(|name| name.starts_with(&start))
                .count(),
            names(cluster, "services", &label, "")?.len(),
        ];
        ensure!(found == expected, "there are {found:?}, not {expected:?}");
        Ok(())
    })
}

fn configuration(name: &str, handler: &str, details: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": "default", "annotations": {"leafhost.dev/grace": "1s"}},
        "spec": spec,
    });
    object["spec"]["discoveryHandler"] = json!({"name": handler, "discoveryDetails": details});
    object
}

fn with_brokers(name: &str) -> Value {
    let service =
        json!({"type": "ClusterIP", "ports": [{"name": "a", "port": 6052, "targetPort": 6052}]});
    let broker = json!({"name": "broker", "image": "leafhost.test/busybox:1",
        "resources": {"limits": {"{{PLACEHOLDER}}": "1"}}});
    let spec = json!({"capacity": 2, "brokerSpec": {"brokerPodSpec": {"containers": [broker]}},
        "instanceServiceSpec": service, "configurationServiceSpec": service});
    configuration(name, "debugEcho", "descriptions: [bar0, bar1]", &spec)
}

/// Returns the one running pod of a component of the chart.
fn pod(cluster: &Cluster, part: &str) -> Result<String> {
    let label = format!("app.kubernetes.io/name=akri-{part}");
    within(LIMIT, "the part runs", || {
        let running = names(cluster, "pods", &label, "Running")?;
        match &running[..] {
            [one] => Ok(one.clone()),
            _ => bail!("{part}: {running:?}"),
        }
    })
}

fn shell(cluster: &Cluster, part: &str, script: &str) -> Result<String> {
    let pod = pod(cluster, part)?;
    cluster.kubectl(&["exec", &pod, "--", "/bin/sh", "-c", script])
}

#[test]
fn with_handlers_in_pods_and_the_names_of_akri_the_chart_does_what_akri_does() -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let prepared = Prepared::start()?;
    let cluster = prepared.own.0;
    let chart = source_tree().join("deploy/chart");
    let chart = chart.to_string_lossy();
    let values = format!(
        "nameOverride=akri,agent.image.tag={TAG},agent.image.pullPolicy=Never,agent.args={{--log-level=info\\,leafhost_slots=debug}},\
        debugEcho.discovery.enabled=true,udev.discovery.enabled=true"
    );
    let install = ["install", "akri", &chart, "--namespace", "default"];
    cluster.helm(
        &[
            &install[..],
            &["--set", &values, "--wait", "--timeout", "2m"],
        ]
        .concat(),
    )?;
    look(cluster).with_context(|| {
        let show = |arguments: &[&str]| {
            let shown = cluster.kubectl(arguments);
            shown.unwrap_or_else(|error| format!("{error:#}"))
        };
        let selected = ["--selector", "app.kubernetes.io/part-of=akri"];
        [
            show(&["get", "pods,services,akric,akrii,dh", "--output", "wide"]),
            show(&[&["logs", "--prefix", "--tail", "40"], &selected[..]].concat()),
        ]
        .join("\n")
    })
}

fn look(cluster: &Cluster) -> Result<()> {
    let parts = [
        "agent",
        "controller",
        "debug-echo-discovery",
        "udev-discovery",
    ];
    for part in parts {
        pod(cluster, part)?;
    }
    devices_with_brokers(cluster)?;
    devices_of_udev(cluster)?;
    configurations_that_are_checked(cluster)
}

fn devices_with_brokers(cluster: &Cluster) -> Result<()> {
    cluster.apply(&with_brokers(CONFIGURATION).to_string())?;
    wait_counts(cluster, CONFIGURATION, [2, 2, 2, 1])?;
    let label = format!("akri.sh/configuration={CONFIGURATION}");
    let brokers = names(cluster, "pods", &label, "Running")?;
    for broker in &brokers {
        let variables = cluster.kubectl(&["exec", broker, "--", "printenv"])?;
        ensure!(
            variables.contains("DEBUG_ECHO_DESCRIPTION=bar"),
            "{variables}"
        );
    }

    // The devices disappear and come back.
    let say = |word: &str| {
        let script = format!("echo {word} >/tmp/debug-echo-availability.txt");
        shell(cluster, "debug-echo-discovery", &script)
    };
    say("OFFLINE")?;
    wait_counts(cluster, CONFIGURATION, [0, 0, 0, 0])?;
    say("ONLINE")?;
    wait_counts(cluster, CONFIGURATION, [2, 2, 2, 1])?;

    // Deleting a second Configuration of the same devices leaves the first one alone.
    cluster.apply(&with_brokers("second").to_string())?;
    wait_counts(cluster, "second", [2, 2, 2, 1])?;
    cluster.kubectl(&["delete", "akric", "second"])?;
    wait_counts(cluster, "second", [0, 0, 0, 0])?;
    wait_counts(cluster, CONFIGURATION, [2, 2, 2, 1])?;

    let agent = pod(cluster, "agent")?;
    within(LIMIT, "the agent looks for unused slots", || {
        let log = cluster.kubectl(&["logs", &agent, "--since", "20s"])?;
        ensure!(log.contains("reclaiming unused slots - start"), "{log}");
        Ok(())
    })?;

    let before = names(cluster, "pods", &label, "Running")?;
    let uid = |name: &str| cluster.kubectl(&["get", name, "--output", "jsonpath={.metadata.uid}"]);
    let name = before.first().context("no broker")?;
    let deleted = uid(name)?;
    cluster.kubectl(&["delete", name])?;
    wait_counts(cluster, CONFIGURATION, [2, 2, 2, 1])?;
    for name in names(cluster, "pods", &label, "Running")? {
        ensure!(uid(&name)? != deleted, "the deleted broker is still there");
    }
    cluster.kubectl(&["delete", "akric", CONFIGURATION])?;
    wait_counts(cluster, CONFIGURATION, [0, 0, 0, 0])
}

fn devices_of_udev(cluster: &Cluster) -> Result<()> {
    let null = configuration(
        "null",
        "udev",
        "udevRules: ['KERNEL==\"null\"']",
        &json!({"capacity": 1}),
    );
    cluster.apply(&null.to_string())?;
    wait_counts(cluster, "null", [1, 0, 0, 0])?;
    let most =
        "grep -hr ID_PATH= /run/udev/data | sort | uniq -cd | sort -n | tail -1 | cut -d = -f 2";
    let path = shell(cluster, "udev-discovery", most)?;
    ensure!(
        !path.trim().is_empty(),
        "udev knows no two devices of one path"
    );
    let details = format!(
        "groupRecursive: true\npermissions: rwm\nudevRules: ['ENV{{ID_PATH}}==\"{}\"']",
        path.trim()
    );
    let grouped = configuration("grouped", "udev", &details, &json!({"capacity": 1}));
    cluster.apply(&grouped.to_string())?;
    wait_counts(cluster, "grouped", [1, 0, 0, 0])
}

fn configurations_that_are_checked(cluster: &Cluster) -> Result<()> {
    // Fields that only the API server sets are no error of the sender.
    let mut valid = with_brokers("valid");
    valid["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    valid["metadata"]["generation"] = json!(1);
    valid["metadata"]["managedFields"] = json!([]);
    valid["spec"]["instanceServiceSpec"]["ports"][0]["port"] = json!(0);
    cluster.kubectl_with(&["create", "--filename", "-"], &valid.to_string())?;
    cluster.kubectl(&["delete", "akric", "valid"])?;
    let mut invalid = with_brokers("invalid");
    invalid["spec"]["brokerSpec"]["brokerPodSpec"]["unknownField"] = json!("x");
    let refused = cluster.apply(&invalid.to_string());
    let refused = refused.err().context("an unknown field is accepted")?;
    ensure!(
        format!("{refused:#}").contains("unknownField"),
        "{refused:#}"
    );
    Ok(())
}
