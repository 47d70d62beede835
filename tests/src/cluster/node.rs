//! A node: a kubelet and a containerd in network, mount and UTS namespaces of their own.
//!
//! `/run`, `/var/lib`, `/var/log` and `/etc/cdi` belong to the node, everything else to the machine.

mod settings;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Setup;
use super::api::{Api, items};
use super::control_plane::kubeconfig;
use super::programs::{Running, older_kubelet, tail};
use super::reservation::ClusterId;
use crate::program;

/// Node of a cluster.
pub struct Node {
    name: String,
    letter: char,
    id: ClusterId,
    address: String,
    folder: PathBuf,
    programs: PathBuf,
    kubelet_program: PathBuf,
    api: Api,
    holder: Running,
    proxy: Mutex<Option<Running>>,
    containerd: Mutex<Option<Running>>,
    kubelet: Mutex<Option<Kubelet>>,
}

struct Kubelet {
    running: Running,
    /// Last heartbeat of the kubelet before this one; as long as the API has it, the node's status is from that kubelet.
    before: Option<String>,
}

/// Returns the name of the node with this number, from 0.
pub(super) fn name(index: u8) -> String {
    format!("node-{}", letter(index))
}

fn letter(index: u8) -> char {
    char::from(b'a'.saturating_add(index))
}

impl Node {
    /// Creates the namespaces and starts containerd and the kubelet; does not wait until the node is ready.
    pub(super) fn start(
        id: ClusterId,
        index: u8,
        programs: &Path,
        setup: &Setup,
        api: &Api,
    ) -> Result<Self> {
        let (name, letter) = (name(index), letter(index));
        let folder = id.folder().join(letter.to_string());
        for part in ["lib/kubelet", "lib/leafhost", "log", "cdi", "cni"] {
            fs::create_dir_all(folder.join(part))?;
        }
        // Mount point for the node's own folder.
        fs::create_dir_all("/etc/cdi").context("cannot create /etc/cdi")?;
        let mut holder = Running::start(
            "namespaces",
            &folder,
            id.group(&format!("{letter}/holder"))?
                .command("unshare")
                .args(["--net", "--mount", "--uts", "--propagation", "slave"])
                .args(["sh", "-c", settings::NAMESPACES, "sh", &name])
                .arg(&folder),
        )?;
        let log = folder.join("namespaces.log");
        holder.until("the namespaces are there", || {
            ensure!(fs::read_to_string(&log)?.ends_with("ready\n"), "not yet");
            Ok(())
        })?;
        let address = id.node_address(index);
        let pods = id.pods_group(&letter.to_string())?;
        let cni = folder.join("cni");
        let imported = folder.join("imported.toml");
        for (path, text) in [
            (
                folder.join("containerd.toml"),
                settings::containerd(&cni, &imported),
            ),
            (imported, setup.containerd.clone()),
            (
                cni.join("pods.conflist"),
                settings::network(&id.pod_range(index)),
            ),
            (
                folder.join("kubelet.json"),
                settings::kubelet(&address, &pods, &setup.gates),
            ),
        ] {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let node = Self {
            name,
            letter,
            id,
            address,
            folder,
            programs: programs.to_owned(),
            kubelet_program: if setup.older_kubelets {
                older_kubelet()?
            } else {
                programs.join("kubelet")
            },
            api: api.clone(),
            holder,
            proxy: Mutex::default(),
            containerd: Mutex::default(),
            kubelet: Mutex::default(),
        };
        node.join_network(&id.pod_range(index))?;
        node.start_containerd()?;
        node.start_proxy()?;
        node.import_image(&id.folder().join("image/image.tar"))?;
        node.start_kubelet()?;
        Ok(node)
    }

    fn join_network(&self, pods: &str) -> Result<()> {
        let link = format!("{}{}", self.id.name(), self.letter);
        let (bridge, holder) = (self.id.name(), self.holder.pid().to_string());
        let outside = [
            "link add NAME type veth peer name eth0 netns HOLDER",
            "link set NAME master BRIDGE up",
            "route replace PODS via NODE dev BRIDGE",
        ];
        let inside = [
            "address add NODE/24 dev eth0",
            "link set eth0 up",
            "route add default via GATEWAY",
        ];
        let fill = |text: &str| {
            [
                ("NAME", &*link),
                ("BRIDGE", &bridge),
                ("HOLDER", &holder),
                ("PODS", pods),
                ("NODE", &self.address),
                ("GATEWAY", &self.id.gateway()),
            ]
            .iter()
            .fold(text.to_owned(), |text, (word, value)| {
                text.replace(word, value)
            })
        };
        for text in outside {
            program::run("ip", fill(text).split(' '))?
                .good()
                .context("cannot join the node to the bridge")?;
        }
        for text in inside {
            let arguments = fill(text);
            self.run("ip", &arguments.split(' ').collect::<Vec<_>>())
                .context("cannot give the node its address")?;
        }
        Ok(())
    }

    /// Sets the node's link to the network up or down; the node itself keeps running.
    pub fn connect(&self, is_connected: bool) -> Result<()> {
        let link = format!("{}{}", self.id.name(), self.letter);
        let state = if is_connected { "up" } else { "down" };
        program::run("ip", ["link", "set", &link, state])?
            .good()
            .map(drop)
            .context("cannot set the node's port of the bridge")
    }

    /// Returns the name: `node-a`, `node-b`, …
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the node's IPv4 address, which the machine and the other nodes reach.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the process that holds the node's namespaces, for `nsenter --target`.
    pub fn holder(&self) -> u32 {
        self.holder.pid()
    }

    /// Returns a command that runs `program` in the node. The child's PID is that of the program, its working directory is `/`.
    ///
    /// The program ends with the cluster, but not with the node's containers.
    pub fn enter(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        self.command("entered", program)
    }

    /// Runs `program` in the node to its end and returns its output.
    pub fn run(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<String> {
        let output = self.enter(&program)?.args(arguments).output()?;
        ensure!(
            output.status.success(),
            "{} {arguments:?} in {}: {}\n{}",
            program.as_ref().to_string_lossy(),
            self.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self, group: &str, program: impl AsRef<OsStr>) -> Result<Command> {
        let group = self.id.group(&format!("{}/{group}", self.letter))?;
        let mut command = group.command("nsenter");
        command
            .args(["--target", &self.holder.pid().to_string()])
            .args(["--net", "--mount", "--uts", "--"])
            .arg(program);
        Ok(command)
    }

    /// Returns the path at which this process finds the node's `path`, such as `/run/udev`.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.pid()))
    }

    /// Returns `/var/lib/kubelet/device-plugins` of the node as a short path of the machine.
    pub fn device_plugins(&self) -> PathBuf {
        self.folder.join("lib/kubelet/device-plugins")
    }

    /// Returns `/var/lib/kubelet/pod-resources` of the node as a short path of the machine.
    pub fn pod_resources(&self) -> PathBuf {
        self.folder.join("lib/kubelet/pod-resources")
    }

    /// Returns `/etc/cdi` of the node as a path of the machine.
    pub fn cdi(&self) -> PathBuf {
        self.folder.join("cdi")
    }

    /// Returns the path of a kubeconfig with the kubelet's own rights.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(self.id, &self.name)
    }

    /// Returns the PID of the kubelet; fails if it does not run.
    pub fn kubelet_pid(&self) -> Result<u32> {
        let mut kubelet = lock(&self.kubelet);
        let running = &mut kubelet.as_mut().context("no kubelet runs")?.running;
        ensure!(!running.has_ended(), "the kubelet has ended");
        Ok(running.pid())
    }

    /// Ends the kubelet by a signal and waits for its end; pods keep running.
    pub fn stop_kubelet(&self, signal: Signal) -> Result<()> {
        lock(&self.kubelet)
            .take()
            .context("no kubelet runs")?
            .running
            .end(signal)
    }

    /// Starts the kubelet, and containerd if it does not run.
    pub fn start_kubelet(&self) -> Result<()> {
        self.start_kubelet_after(self.heartbeat()?)
    }

    /// Returns the time of the kubelet's last heartbeat, as the API server has it.
    pub fn heartbeat(&self) -> Result<Option<String>> {
        let all = self.api.get("/api/v1/nodes")?;
        let this =
            items(&all).find(|node| node.pointer("/metadata/name") == Some(&(&*self.name).into()));
        Ok(this.and_then(heartbeat))
    }

    /// Starts the kubelet while the API server is down, which then cannot report the last heartbeat of the kubelet before this one.
    pub fn start_kubelet_after(&self, before: Option<String>) -> Result<()> {
        self.start_containerd()?;
        let mut kubelet = lock(&self.kubelet);
        if let Some(kubelet) = kubelet.as_mut()
            && !kubelet.running.has_ended()
        {
            bail!("the kubelet runs already");
        }
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command = self.command("kubelet", &self.kubelet_program)?;
        command
            .arg(flag("config", &self.folder.join("kubelet.json")))
            .arg(flag("kubeconfig", &self.kubeconfig()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={}", self.address));
        let running = Running::start("kubelet", &self.folder, &mut command)?;
        *kubelet = Some(Kubelet { running, before });
        Ok(())
    }

    /// Ends the kubelet by SIGTERM, starts it again and waits until the node is ready.
    pub fn restart_kubelet(&self) -> Result<()> {
        self.stop_kubelet(Signal::SIGTERM)?;
        self.start_kubelet()?;
        self.wait_ready()
    }

    fn start_containerd(&self) -> Result<()> {
        let mut containerd = lock(&self.containerd);
        if let Some(running) = containerd.as_mut()
            && !running.has_ended()
        {
            return Ok(());
        }
        let mut command = self.command("run", self.programs.join("containerd"))?;
        // containerd looks for its shim in PATH.
        let path = format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.programs.display()
        );
        command
            .env("PATH", path)
            .arg("--config")
            .arg(self.folder.join("containerd.toml"));
        let mut running = Running::start("containerd", &self.folder, &mut command)?;
        let answers = running.until("containerd answers", || {
            self.run(self.programs.join("ctr"), &["version"])
        });
        *containerd = Some(running);
        answers.map(drop)
    }

    /// Starts kube-proxy, which makes the addresses of services work in the node and its pods.
    fn start_proxy(&self) -> Result<()> {
        let mut command = self.command("proxy", "sh")?;
        let kubeconfig = kubeconfig(self.id, "kube-proxy");
        command
            .args(["-c", settings::KEPT_RUNNING, "sh"])
            .arg(self.programs.join("kube-proxy"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--healthz-bind-address={}:10256", self.address))
            .arg("--proxy-mode=iptables")
            // kube-proxy must not change settings of the machine.
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ]);
        *lock(&self.proxy) = Some(Running::start("kube-proxy", &self.folder, &mut command)?);
        Ok(())
    }

    /// Imports the images of an OCI archive into the node, as if it had pulled them.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        let path = archive.to_string_lossy();
        self.run(
            self.programs.join("ctr"),
            &["-n", "k8s.io", "images", "import", &path],
        )
        .map(drop)
        .with_context(|| format!("cannot import {path}"))
    }

    /// Gives the image of the tests an additional name.
    pub fn tag_image(&self, name: &str) -> Result<()> {
        let tag = ["-n", "k8s.io", "images", "tag", super::image::NAME, name];
        self.run(self.programs.join("ctr"), &tag).map(drop)
    }

    /// Fills the node's udev database, by the machine's rules and one that names the paths of PCI devices and of their children.
    pub fn settle_udev(&self) -> Result<()> {
        self.run("sh", &["-c", settings::UDEV]).map(drop)
    }

    /// Kills all containers and containerd at once, as a power cut does. Requires that no kubelet runs.
    pub fn stop_containers(&self) -> Result<()> {
        ensure!(
            lock(&self.kubelet).is_none(),
            "stop the kubelet first: it would start the containers again"
        );
        for group in ["run", "kubepods"] {
            self.id.group(&format!("{}/{group}", self.letter))?.kill()?;
        }
        lock(&self.containerd).take();
        self.id.remove_pods(&self.letter.to_string())
    }

    /// Empties `/run` and unmounts the mounts of pods, as a restart of the machine does. Requires [`Self::stop_containers`] first.
    pub fn empty_run(&self) -> Result<()> {
        ensure!(
            lock(&self.containerd).is_none(),
            "stop the containers first: they live in /run"
        );
        self.run("sh", &["-c", settings::EMPTY_RUN])
            .map(drop)
            .context("cannot empty /run")
    }

    /// Waits until the kubelet answers and pods can be scheduled on this node.
    pub fn wait_ready(&self) -> Result<()> {
        let health = Api::new(&format!("{}:10248", self.address));
        let mut kubelet = lock(&self.kubelet);
        let Kubelet { running, before } = kubelet.as_mut().context("no kubelet runs")?;
        running.until("the kubelet is well", || health.text("/healthz"))?;
        let before = before.clone();
        drop(kubelet);
        let services = Api::new(&format!("{}:10256", self.address));
        let mut proxy = lock(&self.proxy);
        let proxy = proxy.as_mut().context("no kube-proxy runs")?;
        proxy.until("the services are reached", || services.text("/healthz"))?;
        self.until("it is ready", |node| {
            let ready = ready(node);
            ensure!(
                ready.and_then(|ready| ready.get("status")) == Some(&"True".into())
                    && heartbeat(node) != before,
                "{ready:?}, the kubelet before spoke at {before:?}"
            );
            let taints = node.pointer("/spec/taints");
            ensure!(taints.is_none(), "taints: {taints:?}");
            Ok(())
        })
    }

    /// Waits until the node has this number of a resource allocatable.
    pub fn wait_allocatable(&self, resource: &str, count: u64) -> Result<()> {
        self.until(&format!("it has {count} of {resource}"), |node| {
            let all = node.pointer("/status/allocatable");
            let now = all.and_then(|all| all.get(resource)?.as_str());
            ensure!(
                now.unwrap_or("0") == count.to_string(),
                "allocatable: {all:?}"
            );
            Ok(())
        })
    }

    /// Waits until a kubelet with a heartbeat other than `before` reports this number of a resource as allocatable.
    pub fn wait_allocatable_after(
        &self,
        before: Option<&str>,
        resource: &str,
        count: u64,
    ) -> Result<()> {
        self.until("the kubelet speaks again", |node| {
            let now = heartbeat(node);
            ensure!(now.as_deref() != before, "it spoke last at {now:?}");
            Ok(())
        })?;
        self.wait_allocatable(resource, count)
    }

    /// Calls `look` at every change of the Node object until it returns `Ok`.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&Value) -> Result<T>) -> Result<T> {
        self.api
            .watch("/api/v1/nodes", &self.name, |kind, node| {
                ensure!(kind != "DELETED", "it is deleted");
                look(node)
            })
            .with_context(|| format!("{}: {what}", self.name))
            .with_context(|| self.kubelet_log_tail())
    }

    /// Returns the path of the kubelet's log.
    pub fn kubelet_log(&self) -> PathBuf {
        self.folder.join("kubelet.log")
    }

    /// Returns the last lines of the kubelet's log.
    pub fn kubelet_log_tail(&self) -> String {
        format!(
            "kubelet of {}:\n{}",
            self.name,
            tail(&self.kubelet_log(), 25)
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ready(node: &Value) -> Option<&Value> {
    node.pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| condition.get("type") == Some(&"Ready".into()))
}

fn heartbeat(node: &Value) -> Option<String> {
    let time = ready(node)?.get("lastHeartbeatTime")?;
    Some(time.as_str()?.to_owned())
}
