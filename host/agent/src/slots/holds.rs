//! The slots this node has: what the store says of them, and who was seen to hold them. Pure; time is an argument.
//!
//! A holder is only ever observed. A slot comes back when the kubelet, which was seen to have it, has given it back; or when
//! nobody was seen to have it for the grace. An error says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::Instance;
use leafhost_core::ports::InstanceSet;
use leafhost_core::slot::{DeviceUsage, slot_number};
use leafhost_kubelet::Incarnation;
use tokio::time::Instant;

use super::look::{Look, Pod, Sight};
use super::unit::{Unit, resource_name, unit_of};
use super::view::Owners;

/// So long after an allocation a look may still miss it: the kubelet books an answer after it has received it.
const BOOKED: Duration = Duration::from_secs(5);

/// A slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The name of the Instance.
    pub instance: String,
    /// The id of the slot.
    pub slot: String,
    /// The value of `deviceUsage` that says so.
    pub usage: DeviceUsage,
    /// Whether the store says so. It does not where the Instance is gone, or made anew.
    pub stored: bool,
    /// How often it was allocated: a decision about an earlier allocation is void.
    pub epoch: u64,
    /// When it was last allocated by this agent.
    pub allocated: Option<Instant>,
    /// Who has it.
    pub holder: Holder,
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
        incarnation: Option<Incarnation>,
        /// That kubelet's successor knows nothing of it, while the pod is still there.
        lost: bool,
        /// Since when it is not seen.
        absence: Absence,
    },
}

/// How long a slot has not been seen by looks that could have seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Absence {
    since: Option<Instant>,
    looks: u32,
}

impl Absence {
    /// Counts a look; says whether it is enough. One look never is.
    fn is_long(&mut self, at: Instant, grace: Duration) -> bool {
        let since = *self.since.get_or_insert(at);
        self.looks = self.looks.saturating_add(1);
        self.looks >= 2 && at.saturating_duration_since(since) >= grace
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
            Self::Refused => "refused",
        }
    }
}

/// All slots of this node.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    /// By what the kubelet calls them.
    pub by_unit: BTreeMap<Unit, Hold>,
    incarnation: Option<Incarnation>,
    /// Grows with every change that may alter what is listed.
    pub revision: u64,
}

impl Holds {
    /// Takes over what the store says. A slot that it says of another or of nobody stays only while the kubelet is seen to
    /// have it.
    pub fn meet(&mut self, node: &str, instances: &InstanceSet) {
        let mut stored: BTreeMap<Unit, (String, String, DeviceUsage)> = BTreeMap::new();
        for instance in instances.instances.values() {
            for (unit, slot, usage) in claims(node, instance) {
                let name = instance.metadata.name.clone();
                let unit = if stored.contains_key(&unit) {
                    // Two slots with one virtual device: the kubelet can mean but one, and nobody is ever seen with the other.
                    Unit {
                        resource: String::new(),
                        id: slot.to_owned(),
                    }
                } else {
                    unit
                };
                stored.insert(unit, (name, slot.to_owned(), usage));
            }
        }
        let before = self.by_unit.len();
        self.by_unit.retain(|unit, hold| {
            stored.contains_key(unit) || matches!(hold.holder, Holder::Seen { .. })
        });
        let mut changed = before != self.by_unit.len();
        for (unit, hold) in &mut self.by_unit {
            let is_stored = stored.contains_key(unit);
            changed |= hold.stored != is_stored;
            hold.stored = is_stored;
        }
        for (unit, (instance, slot, usage)) in stored {
            let hold = self.by_unit.entry(unit).or_insert_with(|| {
                changed = true;
                Hold {
                    instance: instance.clone(),
                    slot: slot.clone(),
                    usage: usage.clone(),
                    stored: true,
                    epoch: 0,
                    allocated: None,
                    holder: Holder::Unseen(Absence::default()),
                }
            });
            changed |= hold.slot != slot || hold.usage != usage;
            (hold.instance, hold.slot, hold.usage) = (instance, slot, usage);
        }
        if changed {
            self.revision += 1;
        }
    }

    /// An allocation of these units was answered.
    pub fn allocated(&mut self, units: &BTreeSet<Unit>, at: Instant) {
        for unit in units {
            if let Some(hold) = self.by_unit.get_mut(unit) {
                hold.epoch += 1;
                hold.allocated = Some(at);
                hold.holder = Holder::Unseen(Absence::default());
            }
        }
        self.revision += 1;
    }

    /// The slot was released.
    pub fn released(&mut self, unit: &Unit) {
        if self.by_unit.remove(unit).is_some() {
            self.revision += 1;
        }
    }

    /// What a look means for the slots of this node: which of them come back.
    pub fn see(&mut self, look: &Look, grace: Duration) -> Vec<(Unit, Reason)> {
        let restarted = look.incarnation != self.incarnation;
        self.incarnation = look.incarnation;
        let mut back = Vec::new();
        let mut changed = false;
        for (unit, hold) in &mut self.by_unit {
            if restarted {
                // A kubelet that has just started does not know all its pods yet.
                hold.holder.forget_absence();
            }
            let booked = |wait: Duration| {
                hold.allocated
                    .is_none_or(|allocated| allocated + wait <= look.begun)
            };
            match look.sight(unit) {
                Sight::Held(pods) if booked(Duration::ZERO) => {
                    let seen = Holder::Seen {
                        pods: pods.into_iter().collect(),
                        incarnation: look.incarnation,
                        lost: false,
                        absence: Absence::default(),
                    };
                    changed |= hold.holder != seen;
                    hold.holder = seen;
                }
                Sight::Absent { certain } if booked(BOOKED) => {
                    let was_lost = hold.holder.is_lost();
                    if let Some(reason) = hold.holder.miss(look, certain, grace) {
                        back.push((unit.clone(), reason));
                    }
                    changed |= was_lost != hold.holder.is_lost();
                }
                _ => {}
            }
        }
        if changed {
            self.revision += 1;
        }
        back
    }

    /// Takes over what the kubelet has of our resources and this agent knows nothing of: allocations of an earlier run whose
    /// Instance is gone.
    pub fn adopt(&mut self, node: &str, owners: &Owners, look: &Look) {
        for (unit, found) in look.strangers(&self.by_unit) {
            let Some(name) = resource_name(&unit.resource) else {
                continue;
            };
            let slot_of_instance = slot_number(name, &unit.id).is_some();
            let (instance, slot, usage) = if let Some(slot) = found.slot {
                let Some((instance, number)) = slot.rsplit_once('-') else {
                    continue;
                };
                if slot_number(instance, &slot).is_none() || number.is_empty() {
                    continue;
                }
                let usage = DeviceUsage::Configuration {
                    device: unit.id.clone(),
                    node: node.to_owned(),
                };
                (instance.to_owned(), slot.clone(), usage)
            } else if slot_of_instance && !owners.configurations.contains_key(name) {
                let usage = DeviceUsage::Node(node.to_owned());
                (name.to_owned(), unit.id.clone(), usage)
            } else {
                continue;
            };
            self.revision += 1;
            self.by_unit.insert(
                unit,
                Hold {
                    instance,
                    slot,
                    usage,
                    stored: false,
                    epoch: 0,
                    allocated: None,
                    holder: Holder::Seen {
                        pods: found.pods,
                        incarnation: look.incarnation,
                        lost: false,
                        absence: Absence::default(),
                    },
                },
            );
        }
    }

    /// The slots that somebody was seen to have, for an Instance that is made.
    pub fn held(&self) -> BTreeMap<String, DeviceUsage> {
        self.by_unit
            .values()
            .filter(|hold| matches!(hold.holder, Holder::Seen { .. }))
            .map(|hold| (hold.slot.clone(), hold.usage.clone()))
            .collect()
    }

    /// The kubelet that was last looked at.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }
}

/// The slots of an Instance that `node` has.
fn claims<'a>(
    node: &'a str,
    instance: &'a Instance,
) -> impl Iterator<Item = (Unit, &'a str, DeviceUsage)> {
    let usage = instance.spec.device_usage.iter();
    usage
        .filter(|(_, usage)| !usage.is_empty())
        .filter_map(move |(slot, usage)| {
            let usage: DeviceUsage = usage.parse().ok()?;
            let unit = unit_of(node, instance, slot, &usage)?;
            Some((unit, slot.as_str(), usage))
        })
}

impl Holder {
    fn forget_absence(&mut self) {
        match self {
            Self::Unseen(absence) | Self::Seen { absence, .. } => *absence = Absence::default(),
        }
    }

    /// Whether the kubelet has forgotten it while the pod is still there.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Seen { lost: true, .. })
    }

    /// A look did not see it; says whether the slot comes back.
    fn miss(&mut self, look: &Look, certain: bool, grace: Duration) -> Option<Reason> {
        match self {
            Self::Unseen(absence) => absence
                .is_long(look.begun, grace)
                .then_some(Reason::Unclaimed),
            Self::Seen { incarnation, .. } if certain && *incarnation == look.incarnation => {
                Some(Reason::GivenBack)
            }
            Self::Seen {
                pods,
                lost,
                absence,
                ..
            } => {
                let alive: Vec<Option<bool>> = pods.iter().map(|pod| look.is_alive(pod)).collect();
                *lost = alive.contains(&Some(true));
                if *lost {
                    *absence = Absence::default();
                    return None;
                }
                if certain && !alive.is_empty() && alive.iter().all(|alive| *alive == Some(false)) {
                    return Some(Reason::PodGone);
                }
                absence
                    .is_long(look.begun, grace)
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
}

#[cfg(test)]
mod tests;
