//! A slot of this node and its holder. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use leafhost_core::instance::InstanceKey;
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use super::name_index::NameIndex;
use super::snapshot::{Pod, Snapshot};

/// Longest time between the kubelet's receipt of an answer and its record of it.
pub const RECORD_WAIT: Duration = Duration::from_secs(5);

/// Slot of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotState {
    /// Name of the Instance.
    pub instance: String,
    /// Id of the slot.
    pub slot: String,
    /// Value of `deviceUsage` for this slot.
    pub usage: DeviceUsage,
    /// Instance that records the claim; `None` if it is gone or was recreated.
    pub stored: Option<InstanceKey>,
    /// Instance that last recorded the claim; `None` if only the kubelet knows the slot: it knows no namespace.
    pub origin: Option<InstanceKey>,
    /// True if the Instance of `origin` is gone. The kubelet, which knows no namespace, then means any Instance of that name.
    pub is_orphaned: bool,
    /// Time of the last allocation by this agent; earlier observations say nothing about it.
    pub allocated: Option<Instant>,
    /// Holder of the slot, as far as it was observed.
    pub holder: Holder,
    /// True if the kubelet certainly gave the slot to no pod: all its records show this, or the agent refused its Allocate.
    pub absent: bool,
    /// Kubelet that received the answer, so that its records name the holder if there is one; `None` if it is unknown.
    pub kubelet: Option<KubeletRun>,
    /// True if it was claimed before the machine's last boot, so that no container from before the boot still runs.
    pub is_before_boot: bool,
}

/// Holder of a slot, as far as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// No pod was seen to have the slot since the slot was allocated, or since the agent started.
    Unseen(Absence),
    /// The kubelet reported the slot for these pods.
    Seen {
        /// Pods that have it.
        pods: BTreeSet<Pod>,
        /// Kubelet that reported it.
        kubelet_run: Option<KubeletRun>,
        /// True if a later kubelet has no record of it while the pod is still on the node.
        lost: bool,
        /// Absence of the slot from snapshots since then.
        absence: Absence,
    },
}

/// Start of an absence, and the number of snapshots that could have shown the slot and did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Absence {
    since: Option<Instant>,
    snapshots: u32,
}

impl Absence {
    /// Counts a snapshot; returns true if the absence is long enough. One snapshot never suffices.
    pub fn is_long(&mut self, at: Instant, grace: Duration) -> bool {
        let since = *self.since.get_or_insert(at);
        self.snapshots = self.snapshots.saturating_add(1);
        self.snapshots >= 2 && at.saturating_duration_since(since) >= grace
    }
}

/// Reason why a slot is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The kubelet had the slot and has released it.
    GivenBack,
    /// The pod that had the slot is gone.
    PodGone,
    /// No pod was seen to have the slot during the grace.
    Unclaimed,
    /// No record of the kubelet that was answered contains the slot.
    Undelivered,
    /// The allocation was answered with an error.
    Refused,
}

impl Reason {
    /// Returns the label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GivenBack => "given-back",
            Self::PodGone => "pod-gone",
            Self::Unclaimed => "unclaimed",
            Self::Undelivered => "undelivered",
            Self::Refused => "refused",
        }
    }
}

/// Key of a slot: its Instance and its id.
pub type SlotKey = (InstanceKey, String);

impl SlotState {
    /// Returns true if no answer for the slot reached the kubelet: the kubelet's records in a later snapshot do not have it. `first` is the
    /// first snapshot, which stands in for the time of an answer by an earlier run of the agent. After a reboot the records of any kubelet
    /// count.
    pub fn is_undelivered(&self, first: Option<Instant>, snapshot: &Snapshot) -> bool {
        let answered = self.allocated.or(first);
        matches!(self.holder, Holder::Unseen(_))
            && (self.is_before_boot
                || (self.kubelet.is_some() && self.kubelet == snapshot.kubelet_run))
            && answered.is_some_and(|at| at + RECORD_WAIT <= snapshot.begun)
    }

    /// Returns true if a kubelet before `current` may have given the slot to a pod that still runs: no pod was seen to have it since, and
    /// `current` may have lost its records.
    pub fn is_uncertain(&self, current: Option<KubeletRun>) -> bool {
        matches!(self.holder, Holder::Unseen(_))
            && !self.is_before_boot
            && current.is_some()
            && self.kubelet != current
    }

    /// Returns the Instance that last recorded the claim, while it exists.
    pub fn live_origin(&self) -> Option<&InstanceKey> {
        self.origin.as_ref().filter(|_| !self.is_orphaned)
    }

    /// Returns the Instance that is to record the claim: the one that did, or else the one with that name.
    pub fn owner<'a>(&'a self, name_index: &'a NameIndex) -> Option<&'a InstanceKey> {
        self.live_origin()
            .or_else(|| name_index.named(&self.instance))
    }

    /// Returns the Instance and slot in which the store records the claim.
    pub fn slot_key(&self) -> Option<SlotKey> {
        Some((self.stored.clone()?, self.slot.clone()))
    }
}

impl Default for Holder {
    fn default() -> Self {
        Self::Unseen(Absence::default())
    }
}

impl Holder {
    /// Resets the absence: earlier snapshots no longer count.
    pub fn forget_absence(&mut self) {
        match self {
            Self::Unseen(absence) | Self::Seen { absence, .. } => *absence = Absence::default(),
        }
    }

    /// Returns true if the kubelet has lost its record while the pod is still on the node.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Seen { lost: true, .. })
    }

    /// Returns the pods that were seen to have the slot.
    fn pods(&self) -> Option<&BTreeSet<Pod>> {
        match self {
            Self::Unseen(_) => None,
            Self::Seen { pods, .. } => Some(pods),
        }
    }

    /// Returns true if one of the pods may still use the slot.
    pub fn is_running(&self, snapshot: &Snapshot) -> bool {
        let mut pods = self.pods().into_iter().flatten();
        pods.any(|pod| snapshot.is_running(pod))
    }

    /// Returns true if none of the pods is on this node any more.
    pub fn is_gone(&self, snapshot: &Snapshot) -> bool {
        let is_gone = |pod: &Pod| snapshot.is_alive(pod) == Some(false);
        self.pods()
            .is_some_and(|pods| !pods.is_empty() && pods.iter().all(is_gone))
    }

    /// Returns the known uids of the pods.
    pub fn uids(&self) -> impl Iterator<Item = String> {
        let pods = self.pods().into_iter().flatten();
        pods.filter_map(|pod| pod.uid.clone())
    }

    /// Records a snapshot that does not show the holder; returns the reason if the slot must be released.
    pub fn miss(&mut self, snapshot: &Snapshot, certain: bool, grace: Duration) -> Option<Reason> {
        match self {
            Self::Unseen(absence) => absence
                .is_long(snapshot.begun, grace)
                .then_some(Reason::Unclaimed),
            Self::Seen { kubelet_run, .. } if certain && *kubelet_run == snapshot.kubelet_run => {
                Some(Reason::GivenBack)
            }
            Self::Seen { .. } if certain && self.is_gone(snapshot) => Some(Reason::PodGone),
            Self::Seen {
                pods,
                lost,
                absence,
                ..
            } => {
                *lost = pods.iter().any(|pod| snapshot.is_running(pod));
                if *lost {
                    *absence = Absence::default();
                    return None;
                }
                absence
                    .is_long(snapshot.begun, grace)
                    .then_some(Reason::Unclaimed)
            }
        }
    }

    /// Returns the pods as text.
    pub fn describe(&self) -> Option<String> {
        let pods = self.pods()?.iter().map(ToString::to_string);
        Some(pods.collect::<Vec<_>>().join(", "))
    }

    /// Returns true if the names of all its pods are known.
    pub fn is_named(&self) -> bool {
        self.pods()
            .is_some_and(|pods| pods.iter().all(|pod| pod.name.is_some()))
    }
}

#[cfg(test)]
mod tests;
