//! Builds the tasks for claims: the driver that the kubelet calls, the claims themselves, and the offer to the scheduler.

use std::path::PathBuf;
use std::sync::Arc;

use leafhost_cdi::SpecDir;
use leafhost_claims::{ClaimPorts, Claims};
use leafhost_core::claim::ports::{ClaimReader, ClaimRecords, Offered, SliceReport, SliceStore};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::ports::InstanceStore;
use leafhost_core::slices::DRIVER;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_kubelet::dra::{DraConfig, DraTask};
use leafhost_kubelet::records::PodResources;
use tokio::sync::watch;

use crate::claims::board::ClaimBoard;
use crate::claims::offer::OfferTask;
use crate::claims::specs::CdiClaimSpecs;
use crate::metrics::Metrics;

/// Ports to the cluster for claims.
#[derive(Clone)]
pub struct ClaimHome {
    /// Reader of the scheduler's decisions.
    pub reader: Arc<dyn ClaimReader>,
    /// Store of the slices that offer devices to the scheduler.
    pub slices: Arc<dyn SliceStore>,
    /// Store of the records of claims.
    pub records: Arc<dyn ClaimRecords>,
}

/// Adds the tasks of claims; returns their published state.
pub(super) fn add(
    tasks: &mut Tasks,
    node: &str,
    (kubelet_dir, specs): (PathBuf, SpecDir),
    home: ClaimHome,
    store: Arc<dyn InstanceStore>,
    devices: &watch::Receiver<Arc<DeviceSnapshot>>,
    metrics: &Arc<Metrics>,
) -> ClaimBoard {
    let stop = tasks.stop.clone();
    let instances = store.instances();
    let pod_resources = kubelet_dir.join("pod-resources/kubelet.sock");
    let ports = ClaimPorts {
        reader: home.reader,
        store,
        devices: devices.clone(),
        specs: Arc::new(CdiClaimSpecs::new(specs)),
        records: home.records,
        users: Arc::new(PodResources::new(pod_resources)),
    };
    let (claims, claims_report) = Claims::new(node, ports, Arc::clone(&metrics.claims));
    let (health, healths) = watch::channel(Arc::default());
    let config = DraConfig {
        driver: DRIVER.to_owned(),
        kubelet_dir,
        // The driver waits twice: for the sockets, and for running calls.
        drain: timeouts::DRAIN / 4,
    };
    let (driver, registration) = DraTask::new(config, Arc::new(claims.clone()), healths);
    let (offered, offers) = watch::channel(Offered::Unknown);
    let (report, offer_report) = watch::channel(Arc::default());
    let offer = OfferTask {
        node: node.to_owned(),
        devices: devices.clone(),
        instances,
        registration,
        store: Arc::clone(&home.slices),
        offered,
        report,
    };
    let (slices, slices_shown) = watch::channel(SliceReport::default());
    let keeping = async move { home.slices.keep(offers, slices).await };
    let running = stop.clone();
    let telling = claims.clone();
    tasks.add_loop("health of claims", async move {
        telling.tell_health(health).await;
    });
    tasks.add("claims", async move { claims.run(running).await });
    tasks.add("DRA driver", driver.run(stop));
    tasks.add_loop("offers to the scheduler", offer.run());
    tasks.add_loop("slices", keeping);
    ClaimBoard {
        claims: claims_report,
        offer: offer_report,
        slices: slices_shown,
    }
}
