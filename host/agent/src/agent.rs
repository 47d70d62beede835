//! The agent: its parts put together, started, and joined.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_cdi::SpecDir;
use leafhost_core::names::GROUP;
use leafhost_core::ports::{
    ConfigurationSource, HandlerSource, InstanceStore, Loader, ResourceLedger,
};
use leafhost_core::problem::Problem;
use leafhost_core::timeouts;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin, Listener};
use crate::clock::Clock;
use crate::discovery::{self, DiscoveryConfig, DiscoveryTask};
use crate::document::{Board, Identity};
use crate::loader::LoaderTask;
use crate::metrics::Metrics;
use crate::offer::OfferTask;
use crate::problems;
use crate::reconcile::ReconcileTask;

mod kubelet;
mod tasks;

pub use kubelet::KubeletConfig;

use kubelet::KubeletSide;
use tasks::Tasks;

/// How the agent runs.
#[derive(Debug)]
pub struct AgentConfig {
    /// The node's name.
    pub node: String,
    /// The agent's version, for the status document.
    pub version: String,
    /// `standalone` or `kubernetes`.
    pub mode: String,
    /// Where CDI specs are written; nothing for none. The folder need not exist.
    pub cdi_dir: Option<PathBuf>,
    /// The kubelet of this machine; nothing to offer it nothing. It need not be there.
    pub kubelet: Option<KubeletConfig>,
    /// How long a handler may be Offline before it is removed; by default [`timeouts::HANDLER_EVICTION`].
    pub handler_eviction: Duration,
    /// What is known to be missing on this machine; shown in the status document.
    pub problems: Vec<Problem>,
    /// Where the admin endpoint listens, already bound.
    pub listener: Option<TcpListener>,
    /// Where it listens besides for those who may open a file, already bound.
    pub socket: Option<UnixListener>,
    /// Where `/metrics` is served alone, already bound.
    pub metrics_listener: Option<TcpListener>,
    /// How many lines of the log have been dropped.
    pub lost_log_lines: fn() -> u64,
}

impl AgentConfig {
    /// A node in standalone mode with the default times, no CDI specs and no endpoint.
    pub fn new(node: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            version: version.into(),
            mode: "standalone".to_owned(),
            cdi_dir: None,
            kubelet: None,
            handler_eviction: timeouts::HANDLER_EVICTION,
            problems: Vec::new(),
            listener: None,
            socket: None,
            metrics_listener: None,
            lost_log_lines: || 0,
        }
    }
}

/// How the agent reaches the world.
#[derive(Clone)]
pub struct Ports {
    /// Where Configurations come from.
    pub configurations: Arc<dyn ConfigurationSource>,
    /// Where handlers come from.
    pub handlers: Arc<dyn HandlerSource>,
    /// What makes handlers of files.
    pub loader: Arc<dyn Loader>,
    /// Where Instances are kept. Those of an earlier run are in it when the agent is built.
    pub instances: Arc<dyn InstanceStore>,
    /// The names of resources that were ever offered.
    pub ledger: Arc<dyn ResourceLedger>,
}

/// Why the agent cannot be built, or ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CDI folder cannot be used under its name.
    #[error("cannot offer devices to container runtimes")]
    Cdi(#[source] leafhost_cdi::InvalidSpec),
    /// A task ended by itself.
    #[error("task {task} has ended")]
    Ended {
        /// Which.
        task: &'static str,
        /// Why, if it said so.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A task panicked.
    #[error("task {task} panicked; this is a bug, see the log")]
    Panicked {
        /// Which.
        task: &'static str,
    },
    /// Not everything ended in time.
    #[error("still running {} seconds after the signal: {}", timeouts::DRAIN.as_secs(), tasks.join(", "))]
    StillRunning {
        /// What.
        tasks: Vec<&'static str>,
    },
}

/// All tasks, ready to run.
pub struct Agent {
    /// Held, because a source may end with its last owner.
    configurations: Arc<dyn ConfigurationSource>,
    loader: LoaderTask,
    discovery: DiscoveryTask,
    reconcile: ReconcileTask,
    offer: Option<OfferTask>,
    kubelet: Option<KubeletSide>,
    board: Board,
    metrics: Arc<Metrics>,
    listener: Option<TcpListener>,
    socket: Option<UnixListener>,
    metrics_listener: Option<TcpListener>,
    lost_log_lines: fn() -> u64,
}

impl Agent {
    /// Puts the parts together. Nothing runs, and nothing is read or written yet.
    pub fn build(config: AgentConfig, ports: Ports) -> Result<Self, Error> {
        let AgentConfig {
            node,
            version,
            mode,
            cdi_dir,
            kubelet,
            handler_eviction,
            problems,
            listener,
            socket,
            metrics_listener,
            lost_log_lines,
        } = config;
        let clock = Clock::system();
        let metrics = Arc::new(Metrics::default());
        let (loader, handlers) = LoaderTask::new(ports.handlers, ports.loader);
        let instances = ports.instances.instances();
        let (discovery, devices, report) = DiscoveryTask::new(
            DiscoveryConfig {
                node: node.clone(),
                eviction: handler_eviction,
                clock,
            },
            Arc::clone(&metrics),
            ports.configurations.configurations(),
            handlers.clone(),
            instances.clone(),
        );
        let (held, held_slots) = watch::channel(Arc::default());
        let (reconcile, reconciled) = ReconcileTask::new(
            node.clone(),
            Arc::clone(&ports.instances),
            devices.clone(),
            held_slots,
            Arc::clone(&metrics),
        );
        let kubelet = kubelet.map(|config| {
            let slots = kubelet::Slots {
                store: ports.instances,
                ledger: ports.ledger,
                devices: devices.clone(),
                held,
            };
            KubeletSide::new(&node, config, slots, &metrics)
        });
        let (kubelet, kubelet_board) = kubelet.unzip();
        let cdi_text = cdi_dir.as_ref().map(|dir| dir.display().to_string());
        let (offer, offers) = match cdi_dir {
            Some(dir) => {
                let folder = SpecDir::new(dir, GROUP, "leafhost").map_err(Error::Cdi)?;
                let (devices, instances) = (devices.clone(), instances.clone());
                let (task, offers) = OfferTask::new(node.clone(), folder, devices, instances);
                (Some(task), Some(offers))
            }
            None => (None, None),
        };
        let identity = Identity {
            node,
            version,
            mode,
            cdi_dir: cdi_text,
            problems,
        };
        Ok(Self {
            configurations: ports.configurations,
            loader,
            discovery,
            reconcile,
            offer,
            kubelet,
            board: Board {
                identity: Arc::new(identity),
                handlers,
                devices,
                report,
                reconcile: reconciled,
                offers,
                kubelet: kubelet_board,
                instances,
            },
            metrics,
            listener,
            socket,
            metrics_listener,
            lost_log_lines,
        })
    }

    /// What the agent publishes, for those in the same process.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// Runs until `shutdown`; then everything has five seconds to finish. Returns earlier only with an error.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let stop = shutdown.child_token();
        let mut tasks = Tasks::new(stop.clone());
        let first_version = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let (version, versions) = watch::channel(first_version);
        let admin = Admin::new(
            self.board.clone(),
            versions,
            self.metrics,
            self.lost_log_lines,
            stop.clone(),
        );
        // Before the others take files, which they can wait for.
        let serve = |listener, routes| admin::serve(listener, routes, stop.clone());
        let addressed = self.listener.map(Listener::Tcp);
        let endpoints: Vec<_> = addressed
            .into_iter()
            .chain(self.socket.map(Listener::Unix))
            .map(|listener| serve(listener, admin.clone().routes()))
            .collect();
        let metrics_endpoint = self
            .metrics_listener
            .map(|listener| serve(Listener::Tcp(listener), admin.metrics_route()));
        tasks.spawn("loader", done(self.loader.run(stop.clone())));
        tasks.spawn("discovery", {
            let task = self.discovery.run(stop.clone());
            async move { task.await.map_err(|error: discovery::Error| error.into()) }
        });
        tasks.spawn("reconcile", {
            let task = self.reconcile.run(stop.clone());
            async move { task.await.map_err(Into::into) }
        });
        if let Some(offer) = self.offer {
            let task = offer.run(stop.clone());
            tasks.spawn("offer", async move { task.await.map_err(Into::into) });
        }
        if let Some(kubelet) = self.kubelet {
            kubelet.spawn(&mut tasks, &stop);
        }
        let teller = problems::tell(self.board.clone(), stop.clone());
        tasks.spawn("problems", done(teller));
        let counter = admin::count_versions(self.board, version, stop.clone());
        tasks.spawn("status versions", done(counter));
        for endpoint in endpoints {
            tasks.spawn("admin endpoint", done(endpoint));
        }
        if let Some(endpoint) = metrics_endpoint {
            tasks.spawn("metrics endpoint", done(endpoint));
        }
        let ended = tasks.join().await;
        drop(self.configurations);
        ended
    }
}

async fn done(task: impl Future<Output = ()>) -> Result<(), tasks::Cause> {
    task.await;
    Ok(())
}

#[cfg(test)]
mod tests;
