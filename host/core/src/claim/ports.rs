//! Ports of claims: reading allocations, writing container specs, keeping records, and publishing slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::AllocatedClaim;
use super::record::Record;
use crate::edits::Edits;
use crate::slices::Devices;

/// Error of a read from the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// Description of the error and its remedy.
    pub message: String,
    /// True if another attempt may succeed soon.
    pub is_transient: bool,
}

/// Reader of claims from the API server.
#[async_trait]
pub trait ClaimReader: Send + Sync {
    /// Returns a claim, or `None` if it does not exist or is not allocated. Ends in bounded time.
    async fn read(&self, namespace: &str, name: &str) -> Result<Option<AllocatedClaim>, ReadError>;
}

/// Store of the container specs of claims, read by container runtimes.
#[async_trait]
pub trait ClaimSpecs: Send + Sync {
    /// Writes the edits for each device of a claim, by device name, and replaces earlier ones. Returns the names by
    /// which a runtime knows the devices, by the same keys.
    async fn write(
        &self,
        uid: &str,
        devices: &BTreeMap<String, Edits>,
    ) -> Result<BTreeMap<String, String>, String>;
    /// Removes all specs of a claim.
    async fn remove(&self, uid: &str) -> Result<(), String>;
    /// Returns the uids of the claims that have specs.
    async fn all(&self) -> Result<Vec<String>, String>;
}

/// Readable records by the uid of the claim, and the errors of the unreadable ones.
pub type Records = (BTreeMap<String, Record>, BTreeMap<String, String>);

/// Durable store of the records of claims.
#[async_trait]
pub trait ClaimRecords: Send + Sync {
    /// Returns the readable records by the uid of the claim, and the errors of the others.
    ///
    /// # Errors
    /// Fails if the records cannot be listed.
    async fn all(&self) -> Result<Records, String>;
    /// Saves the record of a claim; it is durable on return.
    async fn save(&self, uid: &str, record: &Record) -> Result<(), String>;
    /// Removes the record of a claim, readable or not.
    async fn remove(&self, uid: &str) -> Result<(), String>;
}

/// Fields of ResourceSlices that the API server keeps. Older servers drop unknown fields silently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SliceFeatures {
    /// True if several claims may share a device.
    pub shares: bool,
    /// True if devices may have taints.
    pub taints: bool,
}

/// Local devices that a node offers to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Offered {
    /// Not known, or not usable by the kubelet: existing slices stay unchanged.
    #[default]
    Unknown,
    /// Not wanted by any Configuration: existing slices become empty.
    Unwanted,
    /// Devices to publish; the list may be empty, to show that the node has the driver.
    Devices(Arc<Devices>),
}

/// State of the slices of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SliceReport {
    /// Reason why the slices are not up to date.
    pub problem: Option<String>,
    /// Number of slices that exist.
    pub slices: usize,
    /// Number of writes made because the offered devices changed.
    pub changed: u64,
    /// Number of writes made because another process had deleted a slice, as kubelets do when they start.
    pub restored: u64,
}

/// Publisher of ResourceSlices, which offer devices to the scheduler.
#[async_trait]
pub trait SliceStore: Send + Sync {
    /// Asks the API server which fields of slices it keeps.
    async fn features(&self) -> Result<SliceFeatures, ReadError>;

    /// Updates the slices of this node to the newest offer and reports their state; returns when the sender of offers
    /// is dropped.
    async fn keep(&self, offered: watch::Receiver<Offered>, report: watch::Sender<SliceReport>);
}
