//! Scheduler that chooses devices: a kube-scheduler with its extender, as the chart runs them, and pods with requirements for their devices.
#![expect(
    clippy::indexing_slicing,
    reason = "what the chart renders is known, and a test may panic"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::accounts;
use crate::cluster::{Cluster, Container, Node, Pod};
use crate::program::{leafhost, run_in, source_tree};
use crate::wait::eventually;

/// Name of both the resource of tickets and the annotation of pods.
pub const DEVICES: &str = "leafhost.dev/devices";
/// Annotation with the devices that a pod was given.
pub const ALLOCATED: &str = "leafhost.dev/allocated-devices";
/// Arguments of agents that offer tickets.
pub const AGENT: [&str; 2] = ["--tickets", "64"];
/// Arguments of agents that also obey the lock of their node.
pub const LOCKED: [&str; 3] = ["--tickets", "64", LOCK];
/// Flag of agents and extenders for the lock of a node.
const LOCK: &str = "--node-lock";
/// Name of the kube-scheduler's configuration file.
const CONFIG: &str = "scheduler.yaml";

/// A kube-scheduler with its extender, with the rights that the chart gives them. Dropping this ends both.
pub struct Scheduling {
    extender: Child,
    scheduler: Child,
    folder: tempfile::TempDir,
    /// Address at which the extender listens.
    address: String,
    cluster: &'static Cluster,
    /// `spec.schedulerName` of the scheduler's pods, and the namespace of its account.
    name: String,
    /// Additional arguments of the extender.
    more: Vec<String>,
}

/// Returns the values with which the chart starts agents with these arguments.
pub fn values(agent: &[&str]) -> &'static [&'static str] {
    if agent.contains(&LOCK) {
        &["scheduler.enabled=true", "scheduler.nodeLock=true"]
    } else {
        &[]
    }
}

impl Scheduling {
    /// Starts both as a release of the chart in the namespace `space`, which is also `spec.schedulerName` of its pods. The release's agents have the
    /// arguments `agent`.
    pub fn start(cluster: &'static Cluster, space: &str, agent: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = folder.path().join("kubeconfig");
        let config = release(cluster, space, agent, "", &own)?;
        let config = config.context("no configuration")?;
        let mut config: Value = serde_saphyr::from_str(&config)?;
        let more = lock(agent);
        let (extender, address) = extender(folder.path(), "127.0.0.1:0", &more)?;
        // As in the chart, except for what only a pod has: the address of the extender and the credentials.
        config["extenders"][0]["urlPrefix"] = json!(format!("http://{address}"));
        prepare(folder.path(), config, &own)?;
        Ok(Self {
            extender,
            scheduler: kube_scheduler(cluster, folder.path())?,
            folder,
            address,
            cluster,
            name: space.to_owned(),
            more,
        })
    }

    /// Starts both for a release without a kube-scheduler: a kube-scheduler with other rights asks the extender by TLS, as `leafhost scheduler
    /// config` configures it.
    pub fn start_by_tls(cluster: &'static Cluster, space: &str, agent: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = folder.path().join("kubeconfig");
        let alone = ",scheduler.kubeScheduler.enabled=false";
        let config = release(cluster, space, agent, alone, &own)?;
        ensure!(config.is_none(), "{config:?}");
        let (secret, service) = Self::secret_and_service(space);
        let mut more = lock(agent);
        more.push(format!("--tls-secret={secret}"));
        more.push(format!("--tls-service={service}"));
        let (mut extender, address) = extender(folder.path(), "127.0.0.1:0", &more)?;
        let mut config = eventually("the entry is printed", || Self::entry(cluster, space))
            .inspect_err(|_| drop(extender.kill()))?;
        // This machine has no route to the Service's address.
        config["extenders"][0]["urlPrefix"] = json!(format!("https://{address}"));
        config["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
        config["kind"] = json!("KubeSchedulerConfiguration");
        config["percentageOfNodesToScore"] = json!(100);
        config["profiles"] = json!([{"schedulerName": space}]);
        prepare(folder.path(), config, cluster.kubeconfig())?;
        Ok(Self {
            extender,
            scheduler: kube_scheduler(cluster, folder.path())?,
            folder,
            address,
            cluster,
            name: space.to_owned(),
            more,
        })
    }

    /// Returns the entry for an extender that serves by TLS in that namespace, with a new client certificate.
    pub fn entry(cluster: &Cluster, space: &str) -> Result<Value> {
        let (secret, service) = Self::secret_and_service(space);
        let arguments = [
            "scheduler",
            "config",
            "--secret",
            &secret,
            "--service",
            &service,
        ];
        let kubeconfig = [("KUBECONFIG", cluster.kubeconfig().as_os_str())];
        let printed = run_in(leafhost()?, arguments, Path::new("."), &kubeconfig)?;
        Ok(serde_saphyr::from_str(&printed.good()?)?)
    }

    /// Returns the Secret, with its namespace, and the Service of a release.
    fn secret_and_service(space: &str) -> (String, String) {
        let service = format!("{space}-leafhost-scheduler");
        (format!("{space}/{service}-certificate"), service)
    }

    /// Kills the extender and starts another one in its place after `pause`.
    pub fn replace_extender(&mut self, pause: Duration) -> Result<()> {
        self.extender.kill()?;
        self.extender.wait()?;
        wait(pause);
        let (folder, more) = (self.folder.path(), &self.more);
        (self.extender, _) = extender(folder, &self.address, more)?;
        Ok(())
    }

    /// Kills the kube-scheduler, starts another one in its place and waits until that one has listed the pods. Starts it again, as a kubelet does, if
    /// it ends because the API server has not read yet what its account may do.
    pub fn replace_kube_scheduler(&mut self) -> Result<()> {
        self.scheduler.kill()?;
        self.scheduler.wait()?;
        let path = self.folder.path().join("scheduler.log");
        let mut before = fs::read(&path)?.len();
        self.scheduler = kube_scheduler(self.cluster, self.folder.path())?;
        eventually("the kube-scheduler has listed the pods", || {
            if let Some(status) = self.scheduler.try_wait()? {
                before = fs::read(&path)?.len();
                self.scheduler = kube_scheduler(self.cluster, self.folder.path())?;
                bail!("it has ended: {status}");
            }
            let log = fs::read(&path)?;
            let log = String::from_utf8_lossy(log.get(before..).unwrap_or_default());
            let mut lines = log.lines();
            let is_listed =
                lines.any(|line| line.contains("Caches populated") && line.contains("\"*v1.Pod\""));
            ensure!(is_listed, "it has not");
            Ok(())
        })
        .with_context(|| self.log())
    }

    /// Kills extender and kube-scheduler, and starts them again with a changed configuration of the kube-scheduler.
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

    /// Stops the kube-scheduler by SIGSTOP while `meanwhile` runs.
    pub fn still<T>(&self, meanwhile: impl FnOnce() -> Result<T>) -> Result<T> {
        let scheduler = Pid::from_raw(i32::try_from(self.scheduler.id())?);
        kill(scheduler, Signal::SIGSTOP).context("cannot stop kube-scheduler")?;
        let done = meanwhile();
        kill(scheduler, Signal::SIGCONT).context("cannot have kube-scheduler go on")?;
        done
    }

    /// Returns `spec.schedulerName` of the scheduler's pods.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which the extender listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the process ID of the extender.
    pub fn extender_pid(&self) -> u32 {
        self.extender.id()
    }

    /// Returns the path of the kubeconfig for the account of both.
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

    /// Returns the ends of both logs.
    pub fn log(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read(self.folder.path().join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!(
            "extender:\n{}\nscheduler:\n{}",
            tail("extender.log"),
            tail("scheduler.log")
        )
    }

    /// Returns a pod whose container `main` requests these devices, on `node` if there is one.
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

/// Applies the policies of a release with a scheduler, with these agent arguments and values, and the scheduler's rights; writes a kubeconfig for
/// them.
///
/// Returns the configuration of the release's kube-scheduler, if it has one.
fn release(
    cluster: &Cluster,
    space: &str,
    agent: &[&str],
    values: &str,
    kubeconfig: &Path,
) -> Result<Option<String>> {
    let chart = source_tree().join("deploy/chart");
    let chart = chart.to_string_lossy();
    let template = ["template", space, &chart, "--namespace", space];
    let has_lock = agent.contains(&LOCK);
    let values = format!(
        "scheduler.enabled=true,scheduler.name={space},scheduler.nodeLock={has_lock}{values}"
    );
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
    // Policies for the writes of its account and of the agents' account.
    for part in ["policies", "policies-scheduler"] {
        cluster.apply(&render(part)?)?;
    }
    if has_lock {
        cluster.apply(&render("policies-node-lock")?)?;
    }
    let rendered = render("scheduler")?;
    let mut config = None;
    for object in serde_saphyr::from_multiple::<Value>(&rendered)? {
        if let Some(text) = object["data"]["config.yaml"].as_str() {
            config = Some(text.to_owned());
        }
        if object["kind"] != "Deployment" {
            cluster.apply(&object.to_string())?;
        }
    }
    let account = format!("{space}-leafhost-scheduler");
    let create = ["create", "token", &account, "--namespace", space];
    fs::write(kubeconfig, accounts::kubeconfig(cluster, &create)?)?;
    Ok(config)
}

/// Writes the configuration of a kube-scheduler with a kubeconfig.
fn prepare(folder: &Path, mut config: Value, kubeconfig: &Path) -> Result<()> {
    config["leaderElection"] = json!({"leaderElect": false});
    config["clientConnection"] = json!({"kubeconfig": kubeconfig});
    Ok(fs::write(folder.join(CONFIG), config.to_string())?)
}

/// Returns the extender's arguments that match these agent arguments.
fn lock(agent: &[&str]) -> Vec<String> {
    let flags = agent.iter().filter(|flag| **flag == LOCK);
    flags.map(|flag| (*flag).to_owned()).collect()
}

/// Starts an extender with the kubeconfig in the folder; also returns the address at which it listens.
fn extender(folder: &Path, listen: &str, more: &[String]) -> Result<(Child, String)> {
    let path = folder.join("extender.log");
    let log = File::options().create(true).append(true).open(&path)?;
    let before = fs::read_to_string(&path)?.len();
    let child = Command::new(leafhost()?)
        .args(["scheduler", "--listen", listen])
        .args(["--log-format", "text", "--log-level"])
        // More logs of its libraries would take longer than the measured operations.
        .arg("info,leafhost_scheduler=debug,leafhost_k8s=debug")
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

/// Returns a request for `count` GPUs of a Configuration with one of these indices.
pub fn of(name: &str, configuration: &str, count: usize, indices: &[usize]) -> Value {
    let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
    let expression = format!(
        "device.attributes[\"leafhost.dev\"].index in [{}]",
        indices.join(", ")
    );
    json!({"name": name, "deviceClassName": format!("{configuration}.akri.sh"), "count": count,
        "selectors": [{"cel": {"expression": expression}}]})
}

/// Returns a request with this name and only one alternative.
pub fn exactly(name: &str, mut way: Value) -> Value {
    if let Some(fields) = way.as_object_mut() {
        fields.remove("name");
    }
    json!({"name": name, "exactly": way})
}

/// Returns the indices of the GPUs that a container has, from the variables in its log.
pub fn indices(log: &str) -> BTreeSet<usize> {
    let lines = log.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| name.starts_with("MOCK_GPU_INDEX_"))
        .filter_map(|(_, value)| value.trim_matches('\'').parse().ok())
        .collect()
}

/// Sleeps for this time.
#[expect(
    clippy::disallowed_methods,
    reason = "pods and what kills them take their time"
)]
pub fn wait(duration: Duration) {
    std::thread::sleep(duration);
}
