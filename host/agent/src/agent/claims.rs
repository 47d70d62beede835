//! The claims of the agent: the driver that the kubelet calls, the claims themselves, and what the scheduler is offered.

use std::path::PathBuf;
use std::sync::Arc;

use leafhost_cdi::SpecDir;
use leafhost_claims::{ClaimPorts, Claims};
use leafhost_core::claim::ports::{ClaimReader, ClaimRecords, SliceReport, SliceStore};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::ports::InstanceStore;
use leafhost_core::slices::DRIVER;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_kubelet::dra::{DraConfig, DraTask};
use tokio::sync::watch;

use crate::claims::offer::OfferTask;
use crate::claims::specs::CdiClaimSpecs;
use crate::document::ClaimBoard;
use crate::metrics::Metrics;

/// What claims need of a cluster.
#[derive(Clone)]
pub struct ClaimHome {
    /// Where the scheduler's decisions are read.
    pub reader: Arc<dyn ClaimReader>,
    /// Where the scheduler is offered devices.
    pub slices: Arc<dyn SliceStore>,
    /// Where claims are remembered.
    pub records: Arc<dyn ClaimRecords>,
}

/// Where this node keeps things.
pub(super) struct Places {
    /// The kubelet's folder.
    pub kubelet_dir: PathBuf,
    /// The folder of CDI specs.
    pub specs: SpecDir,
}

/// Adds the tasks of claims; returns what they publish.
pub(super) fn add(
    tasks: &mut Tasks,
    node: &str,
    places: Places,
    home: ClaimHome,
    store: Arc<dyn InstanceStore>,
    devices: &watch::Receiver<Arc<DeviceSnapshot>>,
    metrics: &Arc<Metrics>,
) -> ClaimBoard {
    let stop = tasks.stop.clone();
    let instances = store.instances();
    let ports = ClaimPorts {
        reader: home.reader,
        store,
        devices: devices.clone(),
        specs: Arc::new(CdiClaimSpecs::new(places.specs)),
        records: home.records,
    };
    let (claims, claims_report) = Claims::new(node, ports, Arc::clone(&metrics.claims));
    // Which device works is said by taints and when a claim is prepared.
    let (health, healths) = watch::channel(Arc::default());
    let config = DraConfig {
        driver: DRIVER.to_owned(),
        kubelet_dir: places.kubelet_dir,
        // It waits twice: for the sockets, and for calls under way.
        drain: timeouts::DRAIN / 4,
    };
    let (driver, registration) = DraTask::new(config, Arc::new(claims.clone()), healths);
    let (offered, offers) = watch::channel(None);
    let (report, offer_report) = watch::channel(Arc::default());
    let offer = OfferTask {
        node: node.to_owned(),
        devices: devices.clone(),
        instances,
        registration: registration.clone(),
        store: Arc::clone(&home.slices),
        offered,
        report,
    };
    let (slices, slice_report) = watch::channel(SliceReport::default());
    let keeping = async move { home.slices.keep(offers, slices).await };
    let running = stop.clone();
    tasks.add("claims", async move { claims.run(running).await });
    tasks.add("DRA driver", async move {
        driver.run(stop).await;
        drop(health);
    });
    tasks.add_loop("offers to the scheduler", offer.run());
    tasks.add_loop("slices", keeping);
    ClaimBoard {
        claims: claims_report,
        registration,
        offer: offer_report,
        slices: slice_report,
    }
}
