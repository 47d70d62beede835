//! Agents as helm installs them on two nodes, with the image of this build and a handler from a `ConfigMap`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod, TakenNode};
use leafhost_tests::program::{self, build_folder, handler, leafhost, source_tree};
use leafhost_tests::wait::{eventually, within};
use serde_json::Value;

pub const NAMESPACE: &str = "leafhost";
const ACCOUNT: &str = "system:serviceaccount:leafhost:leafhost-agent";
const TAG: &str = "test";
const UNINSTALL: [&str; 4] = ["uninstall", "leafhost", "--namespace", NAMESPACE];

/// Chart that stays installed until this is dropped, on nodes that no other test uses meanwhile.
pub struct Release {
    cluster: &'static Cluster,
    pub nodes: Vec<TakenNode<'static>>,
}

fn chart() -> PathBuf {
    source_tree().join("deploy/chart")
}

impl Release {
    /// Installs the chart in the cluster of all tests; the udev handler is its only one. It has no webhook, which would refuse objects of other
    /// tests.
    pub fn install(cluster: &'static Cluster) -> Result<Self> {
        let values = ["--set", "webhookConfiguration.enabled=false"];
        Self::with(cluster, &chart(), 2, &values)
    }

    /// Installs the chart with all of its components in a cluster of one node.
    pub fn whole(cluster: &'static Cluster) -> Result<Self> {
        Self::of_chart(cluster, &chart())
    }

    /// Installs the chart with all of its components in a cluster of `nodes` nodes.
    pub fn whole_on(cluster: &'static Cluster, nodes: usize) -> Result<Self> {
        Self::with(cluster, &chart(), nodes, &[])
    }

    /// Installs another chart with all of its components in a cluster of one node.
    pub fn of_chart(cluster: &'static Cluster, chart: &Path) -> Result<Self> {
        Self::with(cluster, chart, 1, &[])
    }

    fn with(
        cluster: &'static Cluster,
        chart: &Path,
        nodes: usize,
        values: &[&str],
    ) -> Result<Self> {
        let nodes = cluster.take_nodes(nodes)?;
        let archive = image(TAG, &["udev"], None)?;
        for node in &nodes {
            node.import_image(&archive.path().join("image.tar"))?;
        }
        let release = Self { cluster, nodes };
        let more = [&["--create-namespace"], values].concat();
        release.helm("install", chart, &more)?;
        Ok(release)
    }

    /// Upgrades to this chart, with new agents.
    pub fn upgrade(&self) -> Result<()> {
        self.helm(
            "upgrade",
            &chart(),
            &["--set", "agent.args={--log-level=debug}"],
        )
    }

    fn helm(&self, verb: &str, chart: &Path, more: &[&str]) -> Result<()> {
        let (chart, tag) = (chart.to_string_lossy(), format!("agent.image.tag={TAG}"));
        let mut arguments = vec![verb, "leafhost", &chart, "--namespace", NAMESPACE];
        arguments.extend(["--set", &tag, "--set", "agent.image.pullPolicy=Never"]);
        arguments.extend(["--wait", "--timeout", "2m"]);
        arguments.extend(more);
        let done = self.cluster.helm(&arguments);
        done.map(drop).with_context(|| self.state())
    }

    /// Uninstalls the chart as a user does.
    pub fn uninstall(&self) -> Result<()> {
        let done = self.cluster.helm(&UNINSTALL);
        done.map(drop).with_context(|| self.state())
    }

    /// Restarts the agents and waits until the new ones are ready.
    pub fn restart_agents(&self) -> Result<()> {
        let daemon_set = ["daemonset/leafhost-agent", "--namespace", NAMESPACE];
        let restart = ["rollout", "restart"];
        self.cluster
            .kubectl(&[&restart[..], &daemon_set].concat())?;
        let wait = ["rollout", "status", "--timeout=2m"];
        self.cluster.kubectl(&[&wait[..], &daemon_set].concat())?;
        Ok(())
    }

    /// Returns the descriptions and logs of the release's pods, the objects they write, and the network of the nodes.
    pub fn state(&self) -> String {
        let show = |arguments: &[&str]| {
            let shown = self.cluster.kubectl(arguments);
            shown.unwrap_or_else(|error| format!("{error:#}"))
        };
        let name = ["--namespace", NAMESPACE];
        let pods = show(&[&["describe", "pods"], &name[..]].concat());
        let selected = ["--selector", "app.kubernetes.io/part-of=leafhost"];
        let logs = show(&[&["logs", "--prefix", "--tail", "30"], &selected[..], &name].concat());
        let reports = show(&[
            "get",
            "dh,akric,akrii",
            "--all-namespaces",
            "--output",
            "yaml",
        ]);
        // The controller is in the pods' network.
        let routes = format!("{:#?}", program::run("ip", ["route"]));
        let nodes = self.nodes.iter().flat_map(|node| {
            let look = |program, arguments: &[&str]| {
                let shown = node.run(program, arguments);
                format!(
                    "{}\n{}",
                    node.name(),
                    shown.unwrap_or_else(|error| format!("{error:#}"))
                )
            };
            [
                look("ip", &["neighbor"]),
                look("ip", &["route"]),
                look("iptables-save", &["-c"]),
            ]
        });
        let network: Vec<String> = std::iter::once(routes).chain(nodes).collect();
        format!("{pods}\n{logs}\n{reports}\n{}", network.join("\n"))
    }

    fn agents(&self) -> Result<Vec<String>> {
        let selector = "labelSelector=app.kubernetes.io/name%3Dleafhost-agent";
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?{selector}");
        let pods = self.cluster.get(&path)?;
        let items = pods["items"].as_array().context("no pods")?;
        let alive = items
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let names = alive.filter_map(|pod| pod["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Adds one of the handlers of this repository as a `ConfigMap`.
    pub fn add_handler(&self, name: &str) -> Result<()> {
        let wasm = handler(name)?;
        let arguments = ["handler".as_ref(), "configmap".as_ref(), wasm.as_os_str()];
        let object = program::run(leafhost()?, arguments)?.good()?;
        let apply = ["apply", "--server-side", "--filename", "-"];
        let arguments = [&apply[..], &["--namespace", NAMESPACE]].concat();
        self.cluster.kubectl_with(&arguments, &object).map(drop)
    }

    /// Returns the nodes on which the handler has this status, by `kubectl get dh`.
    pub fn nodes_where(&self, handler: &str, status: &str) -> Result<BTreeSet<String>> {
        let text = self.cluster.kubectl(&["get", "dh", "--no-headers"])?;
        let rows = text.lines().map(|line| line.split_whitespace().collect());
        let found = rows.filter_map(|row: Vec<&str>| match *row {
            [_, node, its, now, ..] if its == handler && now == status => Some(node.to_owned()),
            _ => None,
        });
        Ok(found.collect())
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.state());
        }
        let end = || {
            let all = ["delete", "namespace", NAMESPACE, "--wait"];
            // Other tests of the cluster may use what the hook removes.
            let quietly = ["--wait", "--no-hooks", "--ignore-not-found"];
            self.cluster.helm(&[&UNINSTALL[..], &quietly].concat())?;
            self.cluster.kubectl(&all)?;
            self.cluster.kubectl(&["delete", "dh", "--all"])
        };
        if let Err(error) = end() {
            eprintln!("the release does not end: {error:#}");
        }
    }
}

/// Builds `image.tar` in a new folder: an image with the programs of this build, these handlers and the files in `extra`.
pub fn image(tag: &str, handlers: &[&str], extra: Option<&Path>) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let (copies, archive) = (
        folder.path().join("handlers"),
        folder.path().join("image.tar"),
    );
    fs::create_dir(&copies)?;
    for name in handlers {
        let component = handler(name)?;
        for file in [component.with_extension("grants.yaml"), component] {
            fs::copy(&file, copies.join(file.file_name().context("no name")?))?;
        }
    }
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let mut arguments = vec![
        build_folder()?.into_os_string(),
        copies.into_os_string(),
        arch.into(),
        format!("docker.io/library/leafhost:{tag}").into(),
        archive.into_os_string(),
    ];
    arguments.extend(extra.map(|folder| folder.as_os_str().to_owned()));
    let made = program::run(source_tree().join("deploy/image.sh"), arguments)?;
    print!("{}", made.good()?);
    Ok(folder)
}

fn instances(cluster: &Cluster, space: &Namespace<'_>) -> Result<Vec<Value>> {
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    let list = cluster.get(&path)?;
    Ok(list["items"].as_array().context("no items")?.clone())
}

fn uids(instances: &[Value]) -> BTreeSet<&str> {
    let uids = instances.iter().map(|one| one["metadata"]["uid"].as_str());
    uids.flatten().collect()
}

#[test]
fn helm_install_a_handler_and_a_configuration_give_pods_on_both_nodes_a_slot_each() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    check(cluster)
}

/// Installs the chart in a cluster of two nodes, uses it and upgrades it.
pub fn check(cluster: &'static Cluster) -> Result<()> {
    let release = Release::install(cluster)?;
    let space = cluster.namespace("installed")?;
    let both: BTreeSet<String> = ["node-a", "node-b"].map(String::from).into();

    release.add_handler("debug-echo")?;
    eventually("the handler waits on both nodes", || {
        let nodes = release.nodes_where("debugEcho", "Waiting")?;
        ensure!(nodes == both, "it waits on {nodes:?}");
        Ok(())
    })
    .with_context(|| release.state())?;

    let applied = Instant::now();
    cluster.apply(&format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: echo, namespace: {}}}\nspec:\n  discoveryHandler:\n    \
         name: debugEcho\n    discoveryDetails: |\n      {{shared: true, descriptions: [only]}}\n  capacity: 2\n  \
         brokerProperties: {{MODE: fast}}\n",
        space.name()
    ))?;
    let get = ["get", "akrii", "--namespace", space.name(), "--no-headers"];
    within(
        Duration::from_secs(5),
        "the device is seen from both nodes",
        || {
            let text = cluster.kubectl(&get)?;
            ensure!(both.iter().all(|node| text.contains(node)), "{text}");
            Ok(())
        },
    )
    .with_context(|| release.state())?;
    println!("seen from both nodes after {:?}", applied.elapsed());
    eventually("the handler is active on both nodes", || {
        let nodes = release.nodes_where("debugEcho", "Active")?;
        ensure!(nodes == both, "it is active on {nodes:?}");
        Ok(())
    })
    .with_context(|| release.state())?;

    for node in &release.nodes {
        node.wait_allocatable("akri.sh/echo", 1)
            .with_context(|| release.state())?;
        let main = Container::new("main").device("akri.sh/echo", 1);
        let name = format!("on-{}", node.name());
        space
            .run(&Pod::new(&name, &[main]).on(node))
            .with_context(|| release.state())?;
        let log = space.wait_logs(&name, "main", "MODE=fast")?;
        assert!(log.contains("DEBUG_ECHO_DESCRIPTION=only"), "{log}");
    }
    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/leafhost-controller");
    eventually("the controller has its Lease", || {
        let lease = cluster.get(&lease)?;
        let holder = lease["spec"]["holderIdentity"].as_str();
        ensure!(
            holder.is_some_and(|holder| holder.starts_with("leafhost-controller-")),
            "{lease:#}"
        );
        Ok(())
    })
    .with_context(|| release.state())?;
    eventually("the Instance names the pods that have its slots", || {
        let all = instances(cluster, &space)?;
        let status = &all.first().context("none")?["status"];
        for node in &both {
            let holders = status["nodes"][node]["holders"].as_object();
            let pods: Vec<_> = holders.into_iter().flat_map(|all| all.values()).collect();
            let pod = format!("{}/on-{node}", space.name());
            ensure!(pods == [&Value::from(pod)], "{status:#}");
        }
        ensure!(status["used"] == 2, "{status:#}");
        Ok(())
    })
    .with_context(|| release.state())?;
    let before = instances(cluster, &space)?;
    let [instance] = before.as_slice() else {
        anyhow::bail!("not one Instance: {before:#?}");
    };
    let usage = instance["spec"]["deviceUsage"].as_object();
    let holders = usage.context("no deviceUsage")?.values();
    let holders: BTreeSet<&str> = holders
        .filter_map(|holder| holder.as_str()?.rsplit(':').next())
        .collect();
    assert_eq!(
        holders,
        BTreeSet::from(["node-a", "node-b"]),
        "{instance:#}"
    );

    // Restarted agents find nothing changed.
    let (start, old) = (cluster.audit().now()?, release.agents()?);
    release.upgrade()?;
    eventually("all agents are new ones and ready", || {
        let agents = release.agents()?;
        ensure!(agents.len() == 2, "{agents:?}");
        ensure!(
            !agents.iter().any(|agent| old.contains(agent)),
            "{agents:?}"
        );
        for agent in &agents {
            let ready = ["leafhost", "status", "--ready"];
            let exec = ["exec", agent, "--namespace", NAMESPACE, "--"];
            cluster.kubectl(&[&exec[..], &ready].concat())?;
        }
        Ok(())
    })?;
    let after = instances(cluster, &space)?;
    assert_eq!(uids(&before), uids(&after));
    assert_eq!(instance["spec"], after[0]["spec"]);
    let requests = cluster.audit().since(start)?;
    let of_agents: Vec<_> = requests
        .keys()
        .filter(|request| request.user == ACCOUNT)
        .collect();
    assert!(!of_agents.is_empty(), "the log names the agents otherwise");
    let denied = of_agents.iter().filter(|request| request.code == 403);
    assert_eq!(denied.count(), 0, "{of_agents:#?}");
    let written: Vec<_> = of_agents
        .iter()
        .filter(|request| request.is_write() && request.resource.starts_with("instances"))
        .collect();
    assert!(written.is_empty(), "{written:#?}");
    Ok(())
}
