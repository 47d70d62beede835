//! A scheduler that chooses devices: a kube-scheduler with its extender, as the chart runs them, and pods that say what their devices must be like.
#![expect(
    clippy::indexing_slicing,
    reason = "what the chart renders is known, and a test may panic"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::accounts::kubeconfig;
use crate::cluster::{Cluster, Container, Node, Pod};
use crate::program::{leafhost, source_tree};
use crate::wait::eventually;

/// The resource of tickets, and the annotation of pods.
pub const DEVICES: &str = "leafhost.dev/devices";
/// The annotation with the devices that a pod was given.
pub const ALLOCATED: &str = "leafhost.dev/allocated-devices";
/// The arguments of agents that offer tickets.
pub const AGENT: [&str; 2] = ["--tickets", "64"];
/// The arguments of agents that also obey the lock of their node.
pub const LOCKED: [&str; 3] = ["--tickets", "64", LOCK];
/// The flag of agents and extenders for the lock of a node.
const LOCK: &str = "--node-lock";
/// The file with the configuration of the kube-scheduler.
const CONFIG: &str = "scheduler.yaml";

/// A kube-scheduler with its extender, which has the rights that the chart gives it. Both end when this is dropped.
pub struct Scheduling {
    extender: Child,
    scheduler: Child,
    folder: tempfile::TempDir,
    /// Where the extender listens.
    address: String,
    cluster: &'static Cluster,
    /// What `spec.schedulerName` of its pods says, and the namespace of its account.
    name: String,
    /// More arguments of the extender.
    arguments: &'static [&'static str],
}

/// The values of the chart with which agents have these arguments.
pub fn values(agent: &[&str]) -> &'static [&'static str] {
    if agent.contains(&LOCK) {
        &["scheduler.enabled=true", "scheduler.nodeLock=true"]
    } else {
        &[]
    }
}

impl Scheduling {
    /// Starts both as a release of the chart in that namespace, whose name pods have as `spec.schedulerName`; its agents have these arguments.
    pub fn start(cluster: &'static Cluster, space: &str, agent: &[&str]) -> Result<Self> {
        let (values, arguments): (_, &[_]) = if agent.contains(&LOCK) {
            (",scheduler.nodeLock=true", &[LOCK])
        } else {
            ("", &[])
        };
        let values = format!("scheduler.enabled=true,scheduler.name={space}{values}");
        let chart = source_tree().join("deploy/chart");
        let chart = chart.to_string_lossy();
        let template = ["template", space, &chart, "--namespace", space];
        let render = |part: &str| {
            let part = format!("templates/{part}.yaml");
            let only = [
                "--set",
                &values,
                "--kube-version",
                "1.37.0",
                "--show-only",
                &part,
            ];
            cluster.helm(&[&template[..], &only].concat())
        };
        // What its account and those of the agents may write, too.
        for part in ["policies", "policies-scheduler"] {
            cluster.apply(&render(part)?)?;
        }
        if !arguments.is_empty() {
            cluster.apply(&render("policies-node-lock")?)?;
        }
        let rendered = render("scheduler")?;
        let mut config = None;
        for document in serde_yaml_ng::Deserializer::from_str(&rendered) {
            let object = Value::deserialize(document)?;
            if let Some(text) = object["data"]["config.yaml"].as_str() {
                config = Some(text.to_owned());
            }
            if !object.is_null() && object["kind"] != "Deployment" {
                cluster.apply(&object.to_string())?;
            }
        }
        let folder = tempfile::tempdir()?;
        let own = folder.path().join("kubeconfig");
        let account = format!("{space}-leafhost-scheduler");
        let create = ["create", "token", &account, "--namespace", space];
        fs::write(&own, kubeconfig(cluster, &create)?)?;
        let (extender, address) = extender(folder.path(), space, "127.0.0.1:0", arguments)?;
        // As in the chart, but for what is of a pod there.
        let config: Value = serde_yaml_ng::from_str(&config.context("no configuration")?)?;
        let mut config = config;
        config["extenders"][0]["urlPrefix"] = json!(format!("http://{address}"));
        config["leaderElection"] = json!({"leaderElect": false});
        config["clientConnection"] = json!({"kubeconfig": own});
        fs::write(folder.path().join(CONFIG), config.to_string())?;
        let scheduler = kube_scheduler(cluster, folder.path())?;
        Ok(Self {
            extender,
            scheduler,
            folder,
            address,
            cluster,
            name: space.to_owned(),
            arguments,
        })
    }

    /// Kills the extender, and starts another one in its place after a while.
    pub fn replace_extender(&mut self, pause: Duration) -> Result<()> {
        self.extender.kill()?;
        self.extender.wait()?;
        wait(pause);
        let (folder, more) = (self.folder.path(), self.arguments);
        (self.extender, _) = extender(folder, &self.name, &self.address, more)?;
        Ok(())
    }

    /// Kills extender and kube-scheduler, and has the pods scheduled by a kube-scheduler with another configuration.
    pub fn replace_scheduler(&mut self, change: impl FnOnce(&mut Value)) -> Result<()> {
        for child in [&mut self.scheduler, &mut self.extender] {
            child.kill()?;
            child.wait()?;
        }
        let path = self.folder.path().join(CONFIG);
        let mut config = serde_json::from_str(&fs::read_to_string(&path)?)?;
        change(&mut config);
        fs::write(&path, config.to_string())?;
        self.scheduler = kube_scheduler(self.cluster, self.folder.path())?;
        Ok(())
    }

    /// Returns what `spec.schedulerName` of its pods says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where the extender listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the process of the extender.
    pub fn extender_pid(&self) -> u32 {
        self.extender.id()
    }

    /// Returns the kubeconfig of the account of both.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Returns the user name of that account.
    pub fn user(&self) -> String {
        format!(
            "system:serviceaccount:{0}:{0}-leafhost-scheduler",
            self.name
        )
    }

    /// The ends of both logs.
    pub fn log(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!(
            "extender:\n{}\nscheduler:\n{}",
            tail("extender.log"),
            tail("scheduler.log")
        )
    }

    /// A pod whose container `main` asks for these devices, on one of the nodes if one is named.
    pub fn pod(&self, name: &str, node: Option<&Node>, requests: &Value) -> Pod {
        let main = Container::new("main").device(DEVICES, 1);
        let text = json!({"main": {"requests": requests}}).to_string();
        let pod = Pod::new(name, &[main]).annotated(DEVICES, &text);
        let pod = pod.with("schedulerName", json!(self.name));
        match node {
            Some(node) => pod.on(node),
            None => pod,
        }
    }
}

/// Starts an extender with the kubeconfig in the folder; returns where it listens, too.
fn extender(
    folder: &Path,
    scheduler: &str,
    listen: &str,
    more: &[&str],
) -> Result<(Child, String)> {
    let path = folder.join("extender.log");
    let log = File::options().create(true).append(true).open(&path)?;
    let before = fs::read_to_string(&path)?.len();
    let child = Command::new(leafhost()?)
        .args([
            "scheduler",
            "--listen",
            listen,
            "--scheduler-name",
            scheduler,
        ])
        .args(["--log-format", "text", "--log-level"])
        .arg("info,leafhost=debug,leafhost_scheduler=debug,leafhost_k8s=debug")
        .args(more)
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the extender")?;
    let address = eventually("the extender says where it listens", || {
        let log = fs::read_to_string(&path)?;
        let log = log.get(before..).unwrap_or_default();
        let (_, address) = log.split_once("address=").context("it says nothing")?;
        let address = address.split_whitespace().next().context("no address")?;
        Ok(address.to_owned())
    })?;
    Ok((child, address))
}

/// Starts a kube-scheduler with the configuration in the folder.
fn kube_scheduler(cluster: &Cluster, folder: &Path) -> Result<Child> {
    let path = folder.join(CONFIG);
    let log = folder.join("scheduler.log");
    let log = File::options().create(true).append(true).open(log)?;
    Command::new(cluster.programs().join("kube-scheduler"))
        .arg(format!("--config={}", path.display()))
        .args(["--secure-port=0", "--v=2"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start kube-scheduler")
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        for child in [&mut self.scheduler, &mut self.extender] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let name = format!("{}-leafhost-scheduler", self.name);
        let more = [
            format!("{name}-kube-scheduler"),
            format!("{name}-volume-scheduler"),
        ];
        let delete = [
            "delete",
            "clusterrole,clusterrolebinding",
            "--ignore-not-found",
        ];
        let _ = self.cluster.kubectl(&[&delete[..], &[&*name]].concat());
        for name in &more {
            let delete = ["delete", "clusterrolebinding", "--ignore-not-found", name];
            let _ = self.cluster.kubectl(&delete);
        }
        let kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding";
        let release = format!("app.kubernetes.io/instance={}", self.name);
        let delete = ["delete", kinds, "--selector", &release];
        let _ = self.cluster.kubectl(&delete);
    }
}

/// Asks for GPUs of a Configuration with one of these indices.
pub fn of(name: &str, configuration: &str, count: usize, indices: &[usize]) -> Value {
    let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
    let expression = format!(
        "device.attributes[\"leafhost.dev\"].index in [{}]",
        indices.join(", ")
    );
    json!({"name": name, "deviceClassName": format!("{configuration}.akri.sh"), "count": count,
        "selectors": [{"cel": {"expression": expression}}]})
}

/// Makes a request of that name with only one way.
pub fn exactly(name: &str, mut way: Value) -> Value {
    if let Some(fields) = way.as_object_mut() {
        fields.remove("name");
    }
    json!({"name": name, "exactly": way})
}

/// Returns the numbers of the GPUs that a container has, as its variables say.
pub fn indices(log: &str) -> BTreeSet<usize> {
    let lines = log.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| name.starts_with("MOCK_GPU_INDEX_"))
        .filter_map(|(_, value)| value.trim_matches('\'').parse().ok())
        .collect()
}

/// Waits so long.
#[expect(
    clippy::disallowed_methods,
    reason = "pods and what kills them take their time"
)]
pub fn wait(duration: Duration) {
    std::thread::sleep(duration);
}
