//! The kubelet's side of the agent: device-plugin sockets, its records, and the slot task between them.

use std::path::PathBuf;
use std::sync::Arc;

use leafhost_core::tasks::Tasks;
use leafhost_kubelet::records::PodsFolder;
use leafhost_kubelet::{DevicePluginsTask, PluginConfig, Report};
use leafhost_slots::holders::HoldersTask;
use leafhost_slots::records::KubeletRecords;
use leafhost_slots::{AllocateQueue, SlotConfig, SlotPorts, SlotTask};
use tokio::sync::watch;

use crate::document::KubeletBoard;
use crate::metrics::Metrics;

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

/// Adds the tasks of the kubelet's side; returns what they publish.
pub(super) fn add(
    tasks: &mut Tasks,
    node: &str,
    config: KubeletConfig,
    ports: SlotPorts,
    metrics: &Arc<Metrics>,
) -> KubeletBoard {
    let KubeletConfig { root, slots } = config;
    let stop = tasks.stop.clone();
    let queue = AllocateQueue::new(node, ports.store.instances());
    let folder = PluginConfig::new(root.join("device-plugins"), SOCKET_PREFIX);
    let (plugins, handle) =
        DevicePluginsTask::new(folder, queue.offers(), Arc::new(queue.handle()));
    let (events, changes) = watch::channel(0);
    let report = handle.report();
    let store = Arc::clone(&ports.store);
    let records = Arc::new(KubeletRecords::new(root.clone(), handle, changes));
    let (slots, slots_report) =
        SlotTask::new(queue, slots, ports, records, Arc::clone(&metrics.slots));
    // On a machine of its own `leafhost status slots` says it.
    if store.has_other_nodes() {
        let holders = HoldersTask::new(node.into(), store, slots_report.clone());
        tasks.add_loop("holders", holders.run());
    }
    let pods = PodsFolder::new(&root);
    let events = tell(pods.changes(), report.clone(), events, Arc::clone(metrics));
    tasks.add_loop("kubelet events", events);
    tasks.add("pods folder", pods.run(stop.clone()));
    tasks.add("slots", slots.run(stop.clone()));
    tasks.add("device plugins", plugins.run(stop));
    KubeletBoard {
        root,
        plugins: report,
        slots: slots_report,
    }
}

/// Says when a look at the kubelet's records is worth while: pods came or went, or another kubelet runs.
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
