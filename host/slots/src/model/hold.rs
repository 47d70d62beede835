//! One slot of this node, and who has it. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use leafhost_core::instance::InstanceKey;
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use super::snapshot::{Pod, Snapshot};
use super::view::Owners;

/// How long the kubelet may take to record an answer after it has received it.
pub const RECORD_WAIT: Duration = Duration::from_secs(5);

/// A slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The name of the Instance.
    pub instance: String,
    /// The id of the slot.
    pub slot: String,
    /// The value of `deviceUsage` that says so.
    pub usage: DeviceUsage,
    /// The Instance that says so; nothing where it is gone, or was made anew.
    pub stored: Option<InstanceKey>,
    /// The Instance that last said so; nothing where only the kubelet does, which knows no namespace.
    pub origin: Option<InstanceKey>,
    /// Tells that that Instance is gone. The kubelet, which knows no namespace, then means whatever Instance has the name.
    pub is_orphaned: bool,
    /// When it was last allocated by this agent: what was seen before that says nothing of it.
    pub allocated: Option<Instant>,
    /// Who has it.
    pub holder: Holder,
    /// Whether the kubelet is known to have given it to nobody: all its records say so, or it has asked for it in vain.
    pub absent: bool,
    /// The kubelet whose records have it if anybody was given it: the one that was answered. Nothing where that is not known.
    pub kubelet: Option<KubeletRun>,
}

/// Who has a slot, as far as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody was seen to have it since it was allocated, or since the agent started.
    Unseen(Absence),
    /// The kubelet was seen to have it for these pods.
    Seen {
        /// The pods.
        pods: BTreeSet<Pod>,
        /// The kubelet that said so.
        kubelet_run: Option<KubeletRun>,
        /// That kubelet's successor knows nothing of it, while the pod is still there.
        lost: bool,
        /// Since when it is not seen.
        absence: Absence,
    },
}

/// How long a slot has not been seen by snapshots that could have seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Absence {
    since: Option<Instant>,
    snapshots: u32,
}

impl Absence {
    /// Counts a snapshot; says whether it is enough. One snapshot never is.
    fn is_long(&mut self, at: Instant, grace: Duration) -> bool {
        let since = *self.since.get_or_insert(at);
        self.snapshots = self.snapshots.saturating_add(1);
        self.snapshots >= 2 && at.saturating_duration_since(since) >= grace
    }
}

/// Why a slot comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The kubelet had it and has given it back.
    GivenBack,
    /// The pod that had it is gone.
    PodGone,
    /// Nobody has been seen to have it for the grace.
    Unclaimed,
    /// The kubelet that was answered has it in none of its records.
    Undelivered,
    /// The allocation was answered with an error.
    Refused,
}

impl Reason {
    /// The word in metrics and logs.
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

/// A slot of one Instance object.
pub type Place = (InstanceKey, String);

impl Hold {
    /// Whether an answer that gave it, if there was one, never came to its kubelet, whose records a snapshot has just shown without it.
    /// An agent that has ended sends none any more.
    pub fn is_undelivered(&self, first: Option<Instant>, snapshot: &Snapshot) -> bool {
        let answered = self.allocated.or(first);
        matches!(self.holder, Holder::Unseen(_))
            && self.kubelet.is_some()
            && self.kubelet == snapshot.kubelet_run
            && answered.is_some_and(|at| at + RECORD_WAIT <= snapshot.begun)
    }

    /// Whether a kubelet before `current` may have given it to a pod that still runs: nobody was seen to have it since, and
    /// `current` may have lost its records.
    pub fn is_doubtful(&self, current: Option<KubeletRun>) -> bool {
        matches!(self.holder, Holder::Unseen(_)) && current.is_some() && self.kubelet != current
    }

    /// The Instance that last said so, while it is there.
    pub fn sayer(&self) -> Option<&InstanceKey> {
        self.origin.as_ref().filter(|_| !self.is_orphaned)
    }

    /// The Instance that is to say so now: the one that did, or else the one that has the name.
    pub fn owner<'a>(&'a self, owners: &'a Owners) -> Option<&'a InstanceKey> {
        self.sayer().or_else(|| owners.named(&self.instance))
    }

    /// Where the store says so.
    pub fn place(&self) -> Option<Place> {
        Some((self.stored.clone()?, self.slot.clone()))
    }
}

impl Holder {
    /// Looks that did not see it count no more.
    pub fn forget_absence(&mut self) {
        match self {
            Self::Unseen(absence) | Self::Seen { absence, .. } => *absence = Absence::default(),
        }
    }

    /// Whether the kubelet has forgotten it while the pod is still there.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Seen { lost: true, .. })
    }

    /// Whether one of the pods may still use it.
    pub fn is_running(&self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Unseen(_) => false,
            Self::Seen { pods, .. } => pods.iter().any(|pod| snapshot.is_running(pod)),
        }
    }

    /// Whether none of the pods is on this node any more.
    pub fn is_gone(&self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Unseen(_) => false,
            Self::Seen { pods, .. } => {
                !pods.is_empty() && pods.iter().all(|pod| snapshot.is_alive(pod) == Some(false))
            }
        }
    }

    /// The uids of the pods, where they are known.
    pub fn uids(&self) -> impl Iterator<Item = String> {
        let pods = match self {
            Self::Unseen(_) => None,
            Self::Seen { pods, .. } => Some(pods),
        };
        pods.into_iter().flatten().filter_map(|pod| pod.uid.clone())
    }

    /// A snapshot did not see it; says whether the slot comes back.
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

    /// The pods, in words.
    pub fn words(&self) -> Option<String> {
        match self {
            Self::Unseen(_) => None,
            Self::Seen { pods, .. } => {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                Some(pods.join(", "))
            }
        }
    }

    /// Tells that the names of all its pods are known.
    pub fn is_named(&self) -> bool {
        match self {
            Self::Unseen(_) => false,
            Self::Seen { pods, .. } => pods.iter().all(|pod| pod.name.is_some()),
        }
    }
}
