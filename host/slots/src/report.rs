//! What the slot task shows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leafhost_core::instance::InstanceKey;
use leafhost_core::problem::Problem;
use leafhost_core::unit::Unit;

/// The slots of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotReport {
    /// Tells that it is known who holds what. Until then an absent slot says nothing.
    pub is_known: bool,
    /// Those this node has.
    pub slots: Vec<SlotView>,
    /// Whether a kubelet runs of which no registration socket is there.
    pub socket_missing: bool,
    /// What keeps devices from being offered or slots from coming back, with the remedy.
    pub problems: Vec<Problem>,
    /// By resource, what was refused since its last allocation that was granted, for a while.
    pub refusals: BTreeMap<String, RefusalView>,
}

/// Allocations of one resource that were refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalView {
    /// Why the last one was.
    pub reason: String,
    /// How many were in a row.
    pub count: u64,
    /// When the last one was.
    pub last: Timestamp,
}

/// A slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// The slot's id.
    pub slot: String,
    /// The Instance that it is of, where that is known.
    pub instance: Option<InstanceKey>,
    /// What the kubelet calls it.
    pub unit: Unit,
    /// Who was seen to have it.
    pub holder: Option<String>,
    /// Tells that `holder` has the names of pods: a kubelet that has not asked the API server since its start knows their uids alone.
    pub is_named: bool,
}
