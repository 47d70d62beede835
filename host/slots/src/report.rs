//! Report of the slot task for users.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leafhost_core::device_id::DeviceId;
use leafhost_core::instance::InstanceKey;
use leafhost_core::problem::Problem;

/// Report of the slots of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotReport {
    /// True once the holders are known. Until then a missing slot says nothing.
    pub is_known: bool,
    /// Slots that this node has.
    pub slots: Vec<SlotView>,
    /// Problems that keep devices from being offered or slots from being released, with the remedy.
    pub problems: Vec<Problem>,
    /// Refusals by resource since its last granted allocation; they expire after some time.
    pub refusals: BTreeMap<String, RefusalView>,
}

/// Refused allocations of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalView {
    /// Reason of the last refusal.
    pub reason: String,
    /// Number of refusals in a row.
    pub count: u64,
    /// Time of the last refusal.
    pub last: Timestamp,
}

/// Slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// Id of the slot.
    pub slot: String,
    /// Instance of the slot, if it is known.
    pub instance: Option<InstanceKey>,
    /// Resource and id that the kubelet uses.
    pub device_id: DeviceId,
    /// Pods that were seen to have the device id.
    pub holder: Option<String>,
    /// True if `holder` has the names of pods: a kubelet that has not asked the API server since its start knows only their uids.
    pub is_named: bool,
}
