//! The agent: builds, starts and joins its parts.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_cdi::{Readers, SpecDir};
use leafhost_core::names::GROUP;
use leafhost_core::node_report::NodeReport;
use leafhost_core::ports::{
    ConfigurationSet, HandlerSource, InstanceStore, Loader, LoaderStore, ResourceLedger,
};
use leafhost_core::tasks::Tasks;
use leafhost_discovery::loader::LoaderTask;
use leafhost_discovery::{DiscoveryConfig, DiscoveryTask};
use leafhost_endpoint::{Listener, serve};
use leafhost_slots::SlotPorts;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin};
use crate::cdi::CdiTask;
use crate::document::{AgentState, Identity};
use crate::metrics::Metrics;
use crate::node_report;
use crate::problems;
use crate::reconcile::ReconcileTask;
use crate::system_clock;

mod claims;
mod kubelet;

pub use claims::ClaimHome;
pub use kubelet::KubeletConfig;

/// Settings of the agent.
#[derive(Debug)]
pub struct AgentConfig {
    /// Facts that the status document shows.
    pub identity: Identity,
    /// Users who may read the specs.
    pub cdi_readers: Readers,
    /// Kubelet of this machine, which need not run; `None` to offer it nothing.
    pub kubelet: Option<KubeletConfig>,
    /// Time for which a handler may be Offline before it is removed.
    pub handler_eviction: Duration,
    /// Listener of the admin endpoint.
    pub listener: Option<TcpListener>,
    /// Second listener of the admin endpoint, for users who may open its file.
    pub socket: Option<UnixListener>,
    /// Listener of the endpoint that serves only `/metrics`.
    pub metrics_listener: Option<TcpListener>,
    /// Counter of log lines that were dropped.
    pub lost_log_lines: fn() -> u64,
}

/// Ports of the agent.
#[derive(Clone)]
pub struct Ports {
    /// Configurations.
    pub configurations: watch::Receiver<Arc<ConfigurationSet>>,
    /// Source of handlers.
    pub handlers: Arc<dyn HandlerSource>,
    /// State of the loader that survives restarts.
    pub accepted: Arc<dyn LoaderStore>,
    /// Loader that turns files into handlers.
    pub loader: Arc<dyn Loader>,
    /// Store of Instances. When the agent is built it has those of an earlier run.
    pub instances: Arc<dyn InstanceStore>,
    /// Ledger of all resource names that were ever offered.
    pub ledger: Arc<dyn ResourceLedger>,
    /// Ports for the scheduler's claims; `None` without a scheduler.
    pub claims: Option<ClaimHome>,
}

/// Reason why the agent cannot be built, or ended without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The vendor or the owner of the CDI specs has an invalid name.
    #[error("cannot offer devices to container runtimes")]
    Cdi(#[source] leafhost_cdi::InvalidSpec),
    /// Another agent uses the CDI folder.
    #[error(transparent)]
    CdiInUse(leafhost_cdi::Error),
    /// A task ended unexpectedly, or did not end.
    #[error(transparent)]
    Task(#[from] leafhost_core::tasks::Error),
}

/// All tasks, ready to run.
pub struct Agent {
    tasks: Tasks,
    /// Published state, for users in this process.
    pub board: AgentState,
    unreported: watch::Sender<Option<String>>,
}

impl Agent {
    /// Connects the parts, locks the folder of CDI specs, and adds all tasks, which run while [`Self::run`] is awaited.
    pub fn build(config: AgentConfig, ports: Ports) -> Result<Self, Error> {
        let node = config.identity.node.clone();
        let metrics = Arc::new(Metrics::default());
        let mut tasks = Tasks::default();
        let stop = tasks.stop.clone();
        let instances = ports.instances.instances();

        let (loader, handlers) = LoaderTask::new(ports.handlers, ports.accepted, ports.loader);
        tasks.add("loader", loader.run(stop.clone()));
        let (discovery, devices, report) = DiscoveryTask::new(
            DiscoveryConfig {
                node: node.clone(),
                eviction: config.handler_eviction,
                clock: system_clock::system(),
            },
            Arc::clone(&metrics.discovery),
            ports.configurations,
            handlers.clone(),
            instances.clone(),
        );
        tasks.add("discovery", discovery.run(stop.clone()));
        let (held, held_slots) = watch::channel(Arc::default());
        let (reconcile, reconciled) = ReconcileTask::new(
            node.clone(),
            Arc::clone(&ports.instances),
            devices.clone(),
            held_slots,
            Arc::clone(&metrics),
        );
        tasks.add("reconcile", reconcile.run(stop.clone()));
        let spec_dir = |vendor: &str| {
            let dir = config.identity.cdi_dir.as_ref();
            let folder = dir.map(|dir| SpecDir::new(dir, vendor, "leafhost", config.cdi_readers));
            folder.transpose().map_err(Error::Cdi)
        };
        let claim_specs = spec_dir(&crate::claims::specs::vendor())?;
        let offers = match spec_dir(GROUP)? {
            Some(folder) => {
                let lock = match folder.lock() {
                    Ok(lock) => Some(lock),
                    Err(error @ leafhost_cdi::Error::InUse { .. }) => {
                        return Err(Error::CdiInUse(error));
                    }
                    // The task tries again, and reports what it cannot write.
                    Err(_) => None,
                };
                let folder = (folder, lock);
                let (devices, instances) = (devices.clone(), instances.clone());
                let (task, offers) = CdiTask::new(node.clone(), folder, devices, instances);
                tasks.add("offer", task.run(stop.clone()));
                offers
            }
            None => watch::channel(Arc::default()).1,
        };
        let claims = match (ports.claims, &config.kubelet, claim_specs) {
            (Some(home), Some(kubelet), Some(specs)) => {
                let folders = (kubelet.root.clone(), specs);
                let store = Arc::clone(&ports.instances);
                let board =
                    claims::add(&mut tasks, &node, folders, home, store, &devices, &metrics);
                Some(board)
            }
            _ => None,
        };
        let kubelet = config.kubelet.map(|config| {
            let ports = SlotPorts {
                store: ports.instances,
                ledger: ports.ledger,
                devices: devices.clone(),
                held,
            };
            kubelet::add(&mut tasks, &node, config, ports, &metrics)
        });

        let (unreported, unreported_shown) = watch::channel(None);
        let board = AgentState {
            identity: Arc::new(config.identity),
            handlers,
            devices,
            report,
            reconcile: reconciled,
            offers,
            kubelet,
            claims,
            instances,
            unreported: unreported_shown,
        };
        tasks.add_loop("problems", problems::log(board.clone()));
        let first_version = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let (version, versions) = watch::channel(first_version);
        let counter = admin::count_versions(board.clone(), version);
        tasks.add_loop("status versions", counter);
        let admin = Admin {
            board: board.clone(),
            version: versions,
            metrics,
            lost_log_lines: config.lost_log_lines,
            making: Arc::new(Semaphore::new(1)),
            shutdown: stop.clone(),
        };
        let tcp = config.listener.map(Listener::Tcp);
        let unix = config.socket.map(Listener::Unix);
        for listener in tcp.into_iter().chain(unix) {
            let endpoint = serve(listener, admin.clone().routes(), stop.clone());
            tasks.add("admin endpoint", endpoint);
        }
        if let Some(listener) = config.metrics_listener {
            let endpoint = serve(Listener::Tcp(listener), admin.metrics_route(), stop);
            tasks.add("metrics endpoint", endpoint);
        }
        Ok(Self {
            tasks,
            board,
            unreported,
        })
    }

    /// Adds the tasks that report to users who are not on the node. `sink` publishes the newest report until the sender is dropped, and
    /// keeps the reason in the second channel while that fails.
    pub fn report_to<F>(
        &mut self,
        sink: impl FnOnce(watch::Receiver<Arc<NodeReport>>, watch::Sender<Option<String>>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, reports) = watch::channel(Arc::default());
        let report = node_report::publish(self.board.clone(), sender);
        self.tasks.add_loop("node report", report);
        let sink = sink(reports, self.unreported.clone());
        self.tasks.add_loop("report sink", sink);
    }

    /// Runs until `shutdown`; then the tasks have five seconds to finish. Returns earlier only with an error.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let ended = self.tasks.run(shutdown).await;
        drop(self.unreported);
        Ok(ended?)
    }
}

#[cfg(test)]
mod tests;
