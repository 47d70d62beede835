//! Builds the tasks for the kubelet: device-plugin sockets, its records, and the slot task between them.

use std::path::PathBuf;
use std::sync::Arc;

use leafhost_core::scheduling::LockPort;
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::changed;
use leafhost_kubelet::records::PodsFolder;
use leafhost_kubelet::{DevicePluginsTask, Offers, PluginConfig, Report};
use leafhost_slots::holders::HoldersTask;
use leafhost_slots::records::{KubeletRecords, is_of_slots, is_of_tickets};
use leafhost_slots::tickets::{self, TicketConfig, TicketPorts, TicketReport, TicketTask};
use leafhost_slots::{AllocateQueue, SlotConfig, SlotPorts, SlotTask};
use tokio::sync::watch;

use crate::document::KubeletBoard;
use crate::metrics::Metrics;

/// Prefix of the names of the agent's sockets.
const SOCKET_PREFIX: &str = "leafhost";

/// Settings for the kubelet of this machine.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// Folder of the kubelet, usually `/var/lib/kubelet`.
    pub root: PathBuf,
    /// Settings of slots.
    pub slots: SlotConfig,
    /// Number of tickets to offer, by which containers get devices that a scheduler has reserved for them.
    pub tickets: u32,
    /// Lock of the node, if schedulers lock it.
    pub lock: Option<LockPort>,
}

/// Adds the tasks for the kubelet; returns their published state.
pub(super) fn add(
    tasks: &mut Tasks,
    node: &str,
    config: KubeletConfig,
    ports: SlotPorts,
    metrics: &Arc<Metrics>,
) -> KubeletBoard {
    let KubeletConfig {
        root,
        slots,
        tickets,
        lock,
    } = config;
    let stop = tasks.stop.clone();
    let (queue, ticket_queue) = AllocateQueue::new(node, ports.store.instances());
    let folder = PluginConfig::new(root.join("device-plugins"), SOCKET_PREFIX);
    let (events, changes) = watch::channel(0);
    let store = Arc::clone(&ports.store);
    let (offers, offered) = watch::channel(Arc::default());
    let (plugins, handle) = DevicePluginsTask::new(folder, offered, Arc::new(queue.handle.clone()));
    let report = handle.report();
    let ticket_records = {
        let (plugins, changes) = (handle.clone(), changes.clone());
        let records = KubeletRecords::new(is_of_tickets, root.clone(), plugins, changes);
        Arc::new(records)
    };
    let ticket_ports = TicketPorts {
        store: Arc::clone(&store),
        devices: ports.devices.clone(),
        records: Arc::clone(&ticket_records) as _,
        admissions: ticket_records,
        lock,
    };
    // Added even without tickets: pods may still have slots from an earlier configuration.
    let slots_metrics = Arc::clone(&metrics.slots);
    let ticket_config = TicketConfig {
        grace: slots.grace,
        is_offered: tickets > 0,
    };
    let (task, ticket_report) = TicketTask::new(
        node,
        ticket_config,
        ticket_ports,
        ticket_queue,
        slots_metrics,
    );
    tasks.add("tickets", task.run(stop.clone()));
    let own = queue.offers.subscribe();
    let joining = join_offers(own, ticket_report.clone(), tickets, offers);
    tasks.add_loop("offers", joining);
    let records = KubeletRecords::new(is_of_slots, root.clone(), handle, changes);
    let records = Arc::new(records);
    let (slots, slots_report) =
        SlotTask::new(queue, slots, ports, records, Arc::clone(&metrics.slots));
    // Without other nodes `leafhost status slots` shows the holders.
    if store.has_other_nodes() {
        let holders = HoldersTask::new(node.into(), store, slots_report.clone(), ticket_report);
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

/// Publishes the offers of the slot task, with tickets once the kubelet's records can be read.
async fn join_offers(
    mut slots: watch::Receiver<Arc<Offers>>,
    mut report: watch::Receiver<Arc<TicketReport>>,
    tickets: u32,
    joined: watch::Sender<Arc<Offers>>,
) {
    let tickets = tickets::offers(tickets);
    loop {
        let own = Arc::clone(&slots.borrow_and_update());
        let is_readable = report.borrow_and_update().is_readable;
        let all = if is_readable && !tickets.is_empty() {
            let mut all = Offers::clone(&own);
            all.extend(tickets.clone());
            Arc::new(all)
        } else {
            own
        };
        joined.send_replace(all);
        tokio::select! {
            () = changed(&mut slots) => {}
            () = changed(&mut report) => {}
        }
    }
}

/// Sends an event when the kubelet's records are worth reading: pods came or went, or another kubelet runs.
async fn tell(
    mut pods: watch::Receiver<u64>,
    mut report: watch::Receiver<Arc<Report>>,
    events: watch::Sender<u64>,
    metrics: Arc<Metrics>,
) {
    let mut kubelet = None;
    loop {
        tokio::select! {
            () = changed(&mut pods) => {}
            () = changed(&mut report) => {
                let report = Arc::clone(&report.borrow_and_update());
                metrics.count_resources(&report);
                if report.kubelet == kubelet {
                    continue;
                }
                kubelet = report.kubelet;
            }
        }
        events.send_modify(|count| *count += 1);
    }
}
