//! The kubelet's side of the agent: device-plugin sockets, its books, and the slot task between them.

use std::path::PathBuf;
use std::sync::Arc;

use leafhost_core::instance::HeldSlots;
use leafhost_core::ports::{InstanceStore, ResourceLedger};
use leafhost_kubelet::books::PodsFolder;
use leafhost_kubelet::{DevicePluginsTask, PluginConfig, Report};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{done, tasks::Tasks};
use crate::discovery::DeviceSnapshot;
use crate::document::KubeletBoard;
use crate::metrics::Metrics;
use crate::slots::books::KubeletBooks;
use crate::slots::{AllocateQueue, SlotConfig, SlotPorts, SlotTask};

/// What the names of our sockets begin with.
const SOCKET_PREFIX: &str = "leafhost";

/// The kubelet of this machine.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// Its folder, `/var/lib/kubelet` as a rule.
    pub root: PathBuf,
    /// How slots are offered and come back.
    pub slots: SlotConfig,
}

/// What the slot task works on.
pub(super) struct Slots {
    pub store: Arc<dyn InstanceStore>,
    pub ledger: Arc<dyn ResourceLedger>,
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    pub held: watch::Sender<Arc<HeldSlots>>,
}

/// The tasks, ready to run.
pub(super) struct KubeletSide {
    plugins: DevicePluginsTask,
    pods: PodsFolder,
    slots: SlotTask,
    events: watch::Sender<u64>,
    report: watch::Receiver<Arc<Report>>,
    metrics: Arc<Metrics>,
}

impl KubeletSide {
    pub fn new(
        node: &str,
        config: KubeletConfig,
        ports: Slots,
        metrics: &Arc<Metrics>,
    ) -> (Self, KubeletBoard) {
        let root = config.root;
        let queue = AllocateQueue::new(node);
        let folder = PluginConfig::new(root.join("device-plugins"), SOCKET_PREFIX);
        let (plugins, handle) =
            DevicePluginsTask::new(folder, queue.offers(), Arc::new(queue.handle()));
        let (events, changes) = watch::channel(0);
        let report = handle.report();
        let books = KubeletBooks::new(root.clone(), handle, changes);
        let ports = SlotPorts {
            store: ports.store,
            ledger: ports.ledger,
            devices: ports.devices,
            held: ports.held,
        };
        let (slots, slots_report) = SlotTask::new(
            queue,
            config.slots,
            ports,
            Arc::new(books),
            Arc::clone(metrics),
        );
        let board = KubeletBoard {
            plugins: report.clone(),
            slots: slots_report,
            root: root.clone(),
        };
        let side = Self {
            plugins,
            pods: PodsFolder::new(&root),
            slots,
            events,
            report,
            metrics: Arc::clone(metrics),
        };
        (side, board)
    }

    pub fn spawn(self, tasks: &mut Tasks, stop: &CancellationToken) {
        let pods = self.pods.changes();
        let events = tell(pods, self.report, self.events, self.metrics);
        let stopped = stop.clone();
        tasks.spawn(
            "kubelet events",
            done(async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = events => {}
                }
            }),
        );
        tasks.spawn("pods folder", done(self.pods.run(stop.clone())));
        tasks.spawn("slots", {
            let task = self.slots.run(stop.clone());
            async move { task.await.map_err(Into::into) }
        });
        tasks.spawn("device plugins", {
            let task = self.plugins.run(stop.clone());
            async move { task.await.map_err(Into::into) }
        });
    }
}

/// Says when a look at the kubelet's books is worth while: pods came or went, or another kubelet runs.
async fn tell(
    mut pods: watch::Receiver<u64>,
    mut report: watch::Receiver<Arc<Report>>,
    events: watch::Sender<u64>,
    metrics: Arc<Metrics>,
) {
    let mut kubelet = None;
    loop {
        let changed = tokio::select! {
            changed = pods.changed() => changed,
            changed = report.changed() => {
                let report = Arc::clone(&report.borrow_and_update());
                metrics.count_resources(&report);
                if report.kubelet == kubelet {
                    continue;
                }
                kubelet = report.kubelet;
                changed
            }
        };
        if changed.is_err() {
            // The others end together with this one.
            std::future::pending::<()>().await;
        }
        events.send_modify(|count| *count += 1);
    }
}
