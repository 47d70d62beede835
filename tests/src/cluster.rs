//! A real Kubernetes on this machine: a control plane and nodes, each in its own namespaces.
//!
//! It ends with the process that started it, however that ends, unless it is [kept](Cluster::keep).
//! Knows nothing of Leafhost.

mod api;
mod audit;
mod control_plane;
mod image;
mod node;
mod pods;
mod programs;
mod reservation;
mod stored;

use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

pub use self::api::{Api, TIMEOUT};
pub use self::audit::{Audit, Request, Timed};
use self::control_plane::ControlPlane;
pub use self::image::APPLETS;
pub use self::image::NAME as IMAGE;
pub use self::node::Node;
pub use self::pods::{Container, Namespace, Pod};
pub use self::programs::Program;
use self::reservation::{ClusterId, Reservation, Watchdog};
pub use self::stored::Stored;
use crate::lan::Host;
use crate::program::source_tree;
use crate::requirement::{self, Missing};
use crate::wait::eventually;

/// Options of a cluster.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Number of nodes: 1 to 8.
    pub nodes: u8,
    /// Feature gates of the API server and the kubelets, each as `Name=true`.
    pub gates: Vec<String>,
    /// Earlier version, such as `1.35`, that API server, controller manager and scheduler emulate: they have its gates and serve its fields. Kubelets
    /// cannot emulate a version.
    pub emulated: Option<&'static str>,
    /// True if the nodes run the kubelet of 1.35.
    pub older_kubelets: bool,
    /// Text of a file that containerd's configuration imports.
    pub containerd: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 1,
            gates: vec!["ResourceHealthStatus=true".to_owned()],
            emulated: None,
            older_kubelets: false,
            containerd: String::new(),
        }
    }
}

/// Running cluster.
pub struct Cluster {
    // Dropped first, because it ends the processes of the other fields.
    watchdog: Mutex<Option<Watchdog>>,
    id: ClusterId,
    programs: std::path::PathBuf,
    control: ControlPlane,
    nodes: Vec<Node>,
    free: Mutex<Vec<bool>>,
    freed: Condvar,
    namespaces: AtomicUsize,
}

/// Environment variable that makes the kubelets of the [shared] cluster those of 1.35.
pub const OLDER_KUBELETS: &str = "LEAFHOST_OLDER_KUBELETS";

/// Returns the cluster of this test binary with two nodes, which the first caller starts.
///
/// Returns `None` if the machine lacks something and that is no error, see [`requirement::lacks`].
pub fn shared() -> Result<Option<&'static Cluster>> {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    if requirement::lacks(Cluster::missing())? {
        return Ok(None);
    }
    let start = || {
        Cluster::start_with(&Setup {
            nodes: 2,
            older_kubelets: std::env::var_os(OLDER_KUBELETS).is_some(),
            ..Setup::default()
        })
    };
    SHARED
        .get_or_init(|| start().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map(Some)
        .map_err(|error| anyhow!("no cluster: {error}"))
}

impl Cluster {
    /// Returns what this machine lacks to run a cluster.
    pub fn missing() -> Option<Missing> {
        programs::missing()
    }

    /// Returns what this machine lacks for [`Setup::older_kubelets`].
    pub fn missing_older_kubelet() -> Option<Missing> {
        Self::missing().or_else(programs::missing_older_kubelet)
    }

    /// Starts a cluster and waits until its nodes are ready.
    pub fn start(nodes: u8) -> Result<Self> {
        Self::start_with(&Setup {
            nodes,
            ..Setup::default()
        })
    }

    /// Starts a cluster with this setup and waits until its nodes are ready.
    pub fn start_with(setup: &Setup) -> Result<Self> {
        let taken = Reservation::first()?;
        let id = taken.id;
        let watchdog = taken.watch()?;
        let cluster = Self::build(id, setup)?;
        *cluster.watchdog() = Some(watchdog);
        Ok(cluster)
    }

    /// Starts a cluster that outlives this process and saves how to use it. The text that `prepare` returns comes first.
    pub fn keep(setup: &Setup, prepare: impl FnOnce(&Self) -> Result<String>) -> Result<String> {
        let taken = Reservation::first()?;
        let id = taken.id;
        let kept = Self::build(id, setup).and_then(|cluster| {
            let text = prepare(&cluster)? + &cluster.summary();
            taken.keep(&text)?;
            Ok(text)
        });
        if kept.is_err() {
            id.end()?;
        }
        kept
    }

    /// Returns how to use each kept cluster that still runs. Removes the rest of those that do not run.
    pub fn kept() -> Result<Vec<String>> {
        let mut found = Vec::new();
        for id in reservation::kept() {
            if id.is_alive()? {
                found.push(std::fs::read_to_string(id.kept())?);
            } else {
                id.end()?;
            }
        }
        Ok(found)
    }

    /// Ends all kept clusters and returns their number.
    pub fn end_kept() -> Result<usize> {
        let all = reservation::kept();
        for id in &all {
            id.end()?;
        }
        Ok(all.len())
    }

    fn build(id: ClusterId, setup: &Setup) -> Result<Self> {
        ensure!(
            (1..=8).contains(&setup.nodes),
            "a cluster has 1 to 8 nodes, not {}",
            setup.nodes
        );
        let programs = programs::folder()?;
        let folder = id.folder().join("image");
        image::write(&folder).context("cannot write the image")?;
        let names: Vec<String> = (0..setup.nodes).map(node::name).collect();
        let control = control_plane::start(id, &programs, setup, &names)?;
        let nodes = (0..setup.nodes)
            .map(|index| Node::start(id, index, &programs, setup, &control.api))
            .collect::<Result<Vec<_>>>()?;
        for node in &nodes {
            node.wait_ready()?;
        }
        Ok(Self {
            watchdog: Mutex::default(),
            id,
            programs,
            control,
            free: Mutex::new(vec![true; nodes.len()]),
            nodes,
            freed: Condvar::new(),
            namespaces: AtomicUsize::new(0),
        })
    }

    /// Ends the cluster and removes everything it has made. Dropping the cluster does the same, but reports no error.
    pub fn stop(&self) -> Result<()> {
        let watchdog = self.watchdog().take();
        watchdog.map_or(Ok(()), |mut dog| dog.end())
    }

    fn watchdog(&self) -> MutexGuard<'_, Option<Watchdog>> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process of the API server. Only for a cluster that no other test uses.
    pub fn server(&self) -> &Program {
        &self.control.server
    }

    /// Returns the process of the scheduler.
    pub fn scheduler(&self) -> &Program {
        &self.control.scheduler
    }

    /// Returns the process of etcd. Only for a cluster that no other test uses.
    pub fn etcd(&self) -> &Program {
        &self.control.etcd
    }

    /// Returns a reader of the object versions in etcd.
    pub fn stored(&self) -> Stored {
        Stored::new(&format!("{}:2379", self.id.loopback()))
    }

    /// Waits until the API server is ready.
    pub fn wait_served(&self) -> Result<()> {
        let api = self.api();
        let ready = self
            .control
            .server
            .until("the API server is ready", || api.text("/readyz"));
        ready.map(drop)
    }

    /// Returns a client of the API server with all rights.
    pub fn api(&self) -> &Api {
        &self.control.api
    }

    /// Returns the audit log of the API server.
    pub fn audit(&self) -> &Audit {
        &self.control.audit
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.control.kubeconfig
    }

    /// Runs kubectl to its end and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, "")
    }

    /// Applies manifests in YAML or JSON.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        self.kubectl_with(&["apply", "--filename", "-"], manifests)
    }

    /// Applies the definitions of the chart. Several tests may call it at once.
    pub fn define(&self) -> Result<()> {
        let definitions = include_str!("../../deploy/chart/crds/crds.yaml");
        eventually("the definitions are there", || self.apply(definitions)).map(drop)
    }

    /// Returns the folder with kubectl, helm and the cluster's other programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Runs kubectl with this input and returns its output.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        self.client("kubectl", arguments, input)
    }

    /// Runs helm to its end and returns its output.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        self.client("helm", arguments, "")
    }

    /// Runs Helm 3 to its end and returns its output.
    pub fn helm3(&self, arguments: &[&str]) -> Result<String> {
        self.client("helm3", arguments, "")
    }

    /// Runs shell commands of the documentation in the source tree, up to the first that fails, and returns their output.
    pub fn shell(&self, commands: &str) -> Result<String> {
        self.client("/bin/sh", &["-eu", "-c", commands], "")
    }

    fn client(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        let folder = self.id.folder();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.programs.clone()]
            .into_iter()
            .chain(std::env::split_paths(&path));
        let mut child = Command::new(self.programs.join(program))
            .env("PATH", std::env::join_paths(path)?)
            .current_dir(source_tree())
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", folder.join("kubectl"))
            .env("HELM_CACHE_HOME", folder.join("helm/cache"))
            .env("HELM_CONFIG_HOME", folder.join("helm/config"))
            .env("HELM_DATA_HOME", folder.join("helm/data"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        child
            .stdin
            .take()
            .with_context(|| format!("{program} has no input"))?
            .write_all(input.as_bytes())
            .with_context(|| format!("{program} does not read"))?;
        let output = child
            .wait_with_output()
            .with_context(|| format!("cannot run {program}"))?;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the object or list that the API server has at `path`.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.api().get(path)
    }

    /// Connects a host without an interface to the network of the nodes and returns its address there.
    pub fn connect(&self, host: &Host) -> Result<String> {
        let address = self.id.host_address();
        host.join(&self.id.name(), &format!("{address}/24"))?;
        Ok(address)
    }

    /// Returns all nodes, including those that another test has taken.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Takes a node for one test alone; waits until one is free and ready.
    pub fn take_node(&self) -> Result<TakenNode<'_>> {
        self.take_nodes(1)?.pop().context("no node was taken")
    }

    /// Takes `count` nodes; waits until that many are free and ready.
    pub fn take_nodes(&self, count: usize) -> Result<Vec<TakenNode<'_>>> {
        ensure!(
            count <= self.nodes.len(),
            "there are {} nodes, not {count}",
            self.nodes.len()
        );
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self
            .freed
            .wait_while(free, |free| {
                free.iter().filter(|free| **free).count() < count
            })
            .unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        for (index, (free, node)) in free.iter_mut().zip(&self.nodes).enumerate() {
            if *free && taken.len() < count {
                *free = false;
                taken.push(TakenNode {
                    cluster: self,
                    node,
                    index,
                });
            }
        }
        drop(free);
        for node in &taken {
            node.wait_ready()?;
        }
        Ok(taken)
    }

    /// Creates a namespace whose name begins with `name`.
    pub fn namespace(&self, name: &str) -> Result<Namespace<'_>> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        Namespace::new(self, format!("{name}-{number}"))
    }

    fn summary(&self) -> String {
        let nodes = self.nodes.iter().map(|node| {
            let (name, address, holder) = (node.name(), node.address(), node.holder());
            format!(
                "Enter {name}, {address}: nsenter --net --mount --uts --target {holder} --wd=/ sh\n"
            )
        });
        format!(
            "export KUBECONFIG={}\nexport PATH=$PATH:{}\n{}It ends with: make cluster-stop",
            self.kubeconfig().display(),
            self.programs.display(),
            nodes.collect::<String>()
        )
    }
}

/// Node that one test has for itself until this is dropped.
pub struct TakenNode<'c> {
    cluster: &'c Cluster,
    node: &'c Node,
    index: usize,
}

impl Deref for TakenNode<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node
    }
}

impl Drop for TakenNode<'_> {
    fn drop(&mut self) {
        // The test may have stopped the kubelet; the next one waits until the node is ready.
        if self.node.kubelet_pid().is_err()
            && let Err(error) = self.node.start_kubelet()
        {
            eprintln!("{}: {error:#}", self.node.name());
        }
        let mut free = self
            .cluster
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.get_mut(self.index) {
            *free = true;
        }
        self.cluster.freed.notify_all();
    }
}
