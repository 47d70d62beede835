//! The ports of claims: what the scheduler has allocated, what containers find, what is remembered, and what is offered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::AllocatedClaim;
use super::record::Record;
use crate::edits::Edits;
use crate::slices::Devices;

/// Says why a claim was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// Tells what, and the remedy.
    pub message: String,
    /// True if another attempt may succeed soon.
    pub is_transient: bool,
}

/// Reads claims.
#[async_trait]
pub trait ClaimReader: Send + Sync {
    /// Returns a claim; nothing if there is none, or one that is not allocated. It ends in bounded time.
    async fn read(&self, namespace: &str, name: &str) -> Result<Option<AllocatedClaim>, ReadError>;
}

/// Says which claims are used.
#[async_trait]
pub trait ClaimUsers: Send + Sync {
    /// Returns the claims that containers of this node use, as (namespace, name); nothing while that is not known.
    async fn used(&self) -> Option<BTreeSet<(String, String)>>;
}

/// Is where container runtimes find what the devices of claims are.
#[async_trait]
pub trait ClaimSpecs: Send + Sync {
    /// Writes what containers get with each device of a claim, by the name of the device, in place of what was there. Returns the names under which
    /// a runtime knows them, by the same.
    async fn write(
        &self,
        uid: &str,
        devices: &BTreeMap<String, Edits>,
    ) -> Result<BTreeMap<String, String>, String>;
    /// Removes what was written of a claim.
    async fn remove(&self, uid: &str) -> Result<(), String>;
    /// Returns the uids of the claims of which something is there.
    async fn all(&self) -> Result<Vec<String>, String>;
}

/// Maps the uids of claims to records, and to the reason where one cannot be read.
pub type Records = (BTreeMap<String, Record>, BTreeMap<String, String>);

/// Remembers claims.
#[async_trait]
pub trait ClaimRecords: Send + Sync {
    /// Returns all that can be read by the uid of the claim, and for the others what is wrong.
    ///
    /// # Errors
    /// It is not known which there are.
    async fn all(&self) -> Result<Records, String>;
    /// Writes one down, durable when it returns.
    async fn save(&self, uid: &str, record: &Record) -> Result<(), String>;
    /// Removes one, or what cannot be read.
    async fn remove(&self, uid: &str) -> Result<(), String>;
}

/// Says what the API server keeps of slices: an older one drops fields without a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SliceFeatures {
    /// True if several claims may have shares of a device.
    pub shares: bool,
    /// True if devices may have taints.
    pub taints: bool,
}

/// Says what a node offers to the scheduler of its local devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Offered {
    /// It is not known, or the kubelet could not use it: what there is stays as it is.
    #[default]
    Unknown,
    /// No Configuration wants it: what there is gets empty.
    Unwanted,
    /// These, if only to show that the node has the driver.
    Devices(Arc<Devices>),
}

/// Says how the slices of a node are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SliceReport {
    /// Says why they are not as they should be.
    pub problem: Option<String>,
    /// Counts those that are there.
    pub slices: usize,
    /// Counts writes that were made because other devices were to be offered.
    pub changed: u64,
    /// Counts writes that were made because somebody had deleted a slice; kubelets do when they start.
    pub restored: u64,
}

/// Offers devices to the scheduler.
#[async_trait]
pub trait SliceStore: Send + Sync {
    /// Asks the API server what it keeps of slices.
    async fn features(&self) -> Result<SliceFeatures, ReadError>;

    /// Keeps the slices of this node as they should be for the newest offer, until the sender is gone, and reports how they are.
    async fn keep(&self, offered: watch::Receiver<Offered>, report: watch::Sender<SliceReport>);
}
