//! The driver's side of Dynamic Resource Allocation: registers a driver with the kubelet, passes on the kubelet's calls for claims, and
//! reports the health of devices to it.
//!
//! Knows no claim objects, devices or slices: a claim is a name with a uid, a device is a name in a pool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod health;
mod registration;
mod service;
mod sockets;

use registration::RegistrationState;
use sockets::Serving;

/// Pause between two attempts to serve the sockets.
const AGAIN: Duration = Duration::from_secs(5);

/// Settings of a driver.
#[derive(Debug, Clone)]
pub struct DraConfig {
    /// Name of the driver: a DNS subdomain of at most 63 bytes.
    pub driver: String,
    /// Folder of the kubelet, usually `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Time limit for running calls when the driver stops.
    pub drain: Duration,
}

impl DraConfig {
    /// Returns the path of the socket by which the kubelet discovers the driver.
    pub fn registration_socket(&self) -> PathBuf {
        let name = format!("{}-reg.sock", self.driver);
        self.kubelet_dir.join("plugins_registry").join(name)
    }

    /// Returns the path of the socket on which the kubelet calls the driver.
    pub fn plugin_socket(&self) -> PathBuf {
        self.kubelet_dir
            .join("plugins")
            .join(&self.driver)
            .join("dra.sock")
    }
}

/// Reference to a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimRef {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// Uid of the object. Another claim may have the name later.
    pub uid: String,
}

/// Prepared device of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparedDevice {
    /// Requests of the claim that it is for, without the part after a slash; empty for all.
    pub requests: Vec<String>,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// Names of the CDI devices that containers get.
    pub cdi: Vec<String>,
    /// Id of the share of the device, if the claim has only a share.
    pub share: Option<String>,
}

/// Makes devices of claims usable on this node. Calls may overlap, even for the same claim.
#[async_trait]
pub trait ClaimPreparer: Send + Sync {
    /// Prepares a claim that a pod of this node is about to use. Returns the same devices again if it is prepared already. The kubelet
    /// gives up after 45 seconds. After an error, which users see, it asks again some 30 to 90 seconds later.
    async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String>;

    /// Releases the devices of a claim that no pod of this node uses any more. A claim that is not prepared is not an error. After an error
    /// the kubelet asks again; it deletes the pod only after a success.
    async fn unprepare(&self, claim: ClaimRef) -> Result<(), String>;
}

/// Pool and name of a device.
pub type DeviceName = (String, String);

/// Health of a device. Devices of unknown health are not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// True if the device works.
    pub is_healthy: bool,
    /// Reason, for users.
    pub message: String,
}

/// Health of devices by name.
pub type HealthList = BTreeMap<DeviceName, DeviceHealth>;

/// State of the driver at the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraReport {
    /// Progress of the registration.
    pub registration: Registration,
    /// Problem that keeps the sockets from being served, with the remedy.
    pub problem: Option<String>,
}

/// Progress of the registration with the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Registration {
    /// No kubelet has called.
    #[default]
    Awaited,
    /// The kubelet has refused the driver, with this reason.
    Refused(String),
    /// The kubelet has accepted the driver.
    Registered,
    /// The kubelet had accepted the driver, and its connections have ended.
    Lost,
}

/// Task that serves a driver.
pub struct DraTask {
    config: DraConfig,
    preparer: Arc<dyn ClaimPreparer>,
    health: watch::Receiver<Arc<HealthList>>,
    state: Arc<RegistrationState>,
    calls: TaskTracker,
}

impl DraTask {
    /// Creates the task; returns it with the receiver of its reports. Nothing is served before the task runs.
    pub fn new(
        config: DraConfig,
        preparer: Arc<dyn ClaimPreparer>,
        health: watch::Receiver<Arc<HealthList>>,
    ) -> (Self, watch::Receiver<DraReport>) {
        let (state, report) = RegistrationState::new();
        let task = Self {
            config,
            preparer,
            health,
            state: Arc::new(state),
            calls: TaskTracker::new(),
        };
        (task, report)
    }

    /// Serves until `stop`, then answers running calls and removes the sockets. If the sockets cannot be served, reports it and tries
    /// again.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            match Serving::start(&self).await {
                Ok(serving) => {
                    self.state.problem(None);
                    serving.until(&stop, self.config.drain).await;
                }
                Err(error) => {
                    self.state.problem(Some(error));
                    stop.run_until_cancelled(tokio::time::sleep(AGAIN)).await;
                }
            }
        }
        self.calls.close();
        // A call that continues belongs to the preparer, whose owner decides when it ends.
        let _ = tokio::time::timeout(self.config.drain, self.calls.wait()).await;
    }
}
