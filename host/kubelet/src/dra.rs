//! The driver's side of Dynamic Resource Allocation: registers a driver with the kubelet, passes on the kubelet's calls for claims, and tells it
//! the health of devices.
//!
//! Knows no claim object, device or slice: a claim is a name with a uid, a device is a name in a pool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod connection;
mod health;
mod registration;
mod service;
mod sockets;

use registration::Book;
use sockets::Serving;

/// Separates two attempts to serve the sockets.
const AGAIN: Duration = Duration::from_secs(5);

/// Says where a driver is served, and for how long its end waits.
#[derive(Debug, Clone)]
pub struct DraConfig {
    /// Names the driver: a DNS subdomain of at most 63 bytes.
    pub driver: String,
    /// Is the kubelet's folder, usually `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Limits how long calls under way are waited for at the end.
    pub drain: Duration,
}

impl DraConfig {
    /// Returns the path of the socket where the kubelet learns of the driver.
    pub fn registration_socket(&self) -> PathBuf {
        let name = format!("{}-reg.sock", self.driver);
        self.kubelet_dir.join("plugins_registry").join(name)
    }

    /// Returns the path of the socket where the kubelet calls the driver.
    pub fn plugin_socket(&self) -> PathBuf {
        self.kubelet_dir
            .join("plugins")
            .join(&self.driver)
            .join("dra.sock")
    }
}

/// Names a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// The uid of the object. Another claim may have the name later.
    pub uid: String,
}

/// Says what containers get of a device of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The requests of the claim that it is for, without what follows a slash; none means all.
    pub requests: Vec<String>,
    /// The pool of the device.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// The names of the CDI devices that containers get.
    pub cdi: Vec<String>,
    /// Names the share of the device.
    pub share: Option<String>,
}

/// Makes devices of claims usable on this node. Calls overlap, also for one claim.
#[async_trait]
pub trait ClaimPreparer: Send + Sync {
    /// Prepares a claim that a pod of this node is about to use. Prepared already, it returns the same again. The kubelet gives up after 45
    /// seconds and asks again some 30 to 90 seconds after an error, which is told to people.
    async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String>;

    /// Gives back what a claim has that no pod of this node uses any more. A claim that is not prepared is no error. The kubelet asks again
    /// after an error, and the pod is not deleted before.
    async fn unprepare(&self, claim: ClaimRef) -> Result<(), String>;
}

/// Names a device: its pool and its name there.
pub type DeviceName = (String, String);

/// Says how a device is. One that is not known is not in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// True if it works.
    pub is_healthy: bool,
    /// Says why, for people.
    pub message: String,
}

/// Maps devices to their health.
pub type HealthList = BTreeMap<DeviceName, DeviceHealth>;

/// Says whether the kubelet uses the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraReport {
    /// Says how far the registration is.
    pub registration: Registration,
    /// Says what keeps the sockets from being served, with the remedy.
    pub problem: Option<String>,
}

/// Says how far the registration with the kubelet is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Registration {
    /// No kubelet has said anything.
    #[default]
    Awaited,
    /// The kubelet has said that it does not take the driver, and why.
    Refused(String),
    /// The kubelet has taken the driver.
    Registered,
    /// The kubelet had taken the driver, and its connections have ended.
    Lost,
}

/// Serves a driver.
pub struct DraTask {
    config: DraConfig,
    preparer: Arc<dyn ClaimPreparer>,
    health: watch::Receiver<Arc<HealthList>>,
    book: Arc<Book>,
    calls: TaskTracker,
}

impl DraTask {
    /// Makes a task, and what it reports. Nothing is served before it runs.
    pub fn new(
        config: DraConfig,
        preparer: Arc<dyn ClaimPreparer>,
        health: watch::Receiver<Arc<HealthList>>,
    ) -> (Self, watch::Receiver<DraReport>) {
        let (book, report) = Book::new();
        let task = Self {
            config,
            preparer,
            health,
            book: Arc::new(book),
            calls: TaskTracker::new(),
        };
        (task, report)
    }

    /// Serves until `stop`; then calls under way are answered, and the sockets are removed. While the sockets cannot be served, that is reported,
    /// and tried again.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            match Serving::start(&self).await {
                Ok(serving) => {
                    self.book.problem(None);
                    serving.until(&stop, self.config.drain).await;
                }
                Err(error) => {
                    self.book.problem(Some(error.to_string()));
                    stop.run_until_cancelled(tokio::time::sleep(AGAIN)).await;
                }
            }
        }
        self.calls.close();
        // A call that goes on is the preparer's; whoever runs it decides when that ends.
        let _ = tokio::time::timeout(self.config.drain, self.calls.wait()).await;
    }
}
