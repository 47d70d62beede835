//! A snapshot of the kubelet's records: which pod has which device. Pure; how it is taken is in [`super::records`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leafhost_core::problem::Problem;
use leafhost_core::unit::{Unit, resource_name};
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

/// The annotation that says which slots are behind virtual devices: `<this>/<configuration>`, with `<virtual>=<slot>` pairs.
/// The kubelet's checkpoint keeps it, so that it outlives the agent and the Instance.
pub const SLOTS_ANNOTATION: &str = "slots.leafhost.dev";

/// A container that has a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// `namespace/name`, where PodResources gave it.
    pub name: Option<String>,
    /// The uid, where the checkpoint gave it.
    pub uid: Option<String>,
    /// The container.
    pub container: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.uid) {
            (Some(name), _) => f.write_str(name),
            (None, Some(uid)) => write!(f, "pod {uid}"),
            (None, None) => f.write_str("a pod"),
        }
    }
}

/// What the kubelet said when it was read.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When the reading began: what happened later it cannot have seen.
    pub begun: Instant,
    /// The kubelet that was read.
    pub kubelet_run: Option<KubeletRun>,
    /// What PodResources lists, by unit; nothing if it could not be had.
    pub listed: Option<BTreeMap<Unit, BTreeSet<Pod>>>,
    /// The pods PodResources lists, `namespace/name`, with devices or without.
    pub active: BTreeSet<String>,
    /// What the checkpoint says; nothing if it could not be had.
    pub checkpoint: Option<Checked>,
    /// By pod uid, whether the pod is still on this node; what cannot be told is not here.
    pub alive: BTreeMap<String, bool>,
    /// Whether one of those pods has no volume, so that no event tells when its containers have ended.
    pub is_silent: bool,
    /// What could not be read, and the remedy.
    pub problems: Vec<Problem>,
}

/// The kubelet's checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// By unit.
    pub entries: BTreeMap<Unit, BTreeSet<Pod>>,
    /// By unit of a Configuration: the slot behind it.
    pub slots: BTreeMap<Unit, String>,
    /// Whether it was written after PodResources had answered, which makes the kubelet sweep its records. Before that it may
    /// still name pods that have ended.
    pub fresh: bool,
    /// Whether it was written in the course of this snapshot.
    pub anew: bool,
}

/// What a snapshot says of one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// These have it.
    Held(BTreeSet<Pod>),
    /// Nobody has it; certain if the checkpoint says so, too, which alone knows init containers.
    Absent {
        /// Whether all records were read.
        certain: bool,
        /// Whether the checkpoint was written in the course of this snapshot, so that it has every answer the kubelet took in before.
        anew: bool,
    },
    /// Cannot be told.
    Unsure,
}

/// A unit that only the kubelet knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Who has it.
    pub pods: BTreeSet<Pod>,
    /// The slot, where it was written down.
    pub slot: Option<String>,
}

impl Snapshot {
    /// Whether it tells how things are: a kubelet answered, or none is there.
    pub fn is_answer(&self) -> bool {
        self.listed.is_some() || self.kubelet_run.is_none()
    }

    /// Whether a kubelet runs of which no socket is there, so that it can be told of no resource.
    pub fn is_socket_missing(&self) -> bool {
        self.listed.is_some() && self.kubelet_run.is_none()
    }

    /// What it says of a unit.
    pub fn presence(&self, unit: &Unit) -> Presence {
        let Some(listed) = &self.listed else {
            return Presence::Unsure;
        };
        let checked = self.checkpoint.as_ref();
        let booked = checked.and_then(|checked| checked.entries.get(unit));
        match (listed.get(unit), booked) {
            (Some(pods), Some(booked)) => Presence::Held(join(pods, booked)),
            (Some(pods), None) => Presence::Held(pods.clone()),
            (None, Some(booked)) if checked.is_some_and(|checked| checked.fresh) => {
                Presence::Held(booked.clone())
            }
            (None, Some(_)) => Presence::Unsure,
            (None, None) => Presence::Absent {
                certain: checked.is_some(),
                anew: checked.is_some_and(|checked| checked.anew),
            },
        }
    }

    /// Whether a pod is still on this node.
    pub fn is_alive(&self, pod: &Pod) -> Option<bool> {
        self.alive.get(pod.uid.as_ref()?).copied()
    }

    /// Whether a pod may still use what it had. One that has ended may keep its folder until it is deleted, and is not
    /// among the active ones; of one whose name or uid is not known, the other decides.
    pub fn is_running(&self, pod: &Pod) -> bool {
        let is_there = self.is_alive(pod) != Some(false);
        let is_active = |name: &String| self.active.contains(name);
        is_there && pod.name.as_ref().is_none_or(is_active)
    }

    /// What the kubelet has of our resources and is not `known`. What the checkpoint alone says counts if the pod is there.
    pub fn strangers(&self, is_known: impl Fn(&Unit) -> bool) -> Vec<(Unit, Found)> {
        let Some(listed) = &self.listed else {
            return Vec::new();
        };
        let checked = self.checkpoint.as_ref();
        let booked = checked.into_iter().flat_map(|checked| {
            checked.entries.iter().filter(|(_, pods)| {
                checked.fresh || pods.iter().any(|pod| self.is_alive(pod) == Some(true))
            })
        });
        let mut found: BTreeMap<Unit, Found> = BTreeMap::new();
        for (unit, pods) in booked.chain(listed) {
            if is_known(unit) || resource_name(&unit.resource).is_none() {
                continue;
            }
            let slot = checked.and_then(|checked| checked.slots.get(unit)).cloned();
            found.entry(unit.clone()).or_insert_with(|| Found {
                pods: pods.clone(),
                slot,
            });
        }
        found.into_iter().collect()
    }
}

/// The names of the one with the uids of the other, container by container.
fn join(listed: &BTreeSet<Pod>, booked: &BTreeSet<Pod>) -> BTreeSet<Pod> {
    let mut joined: BTreeSet<Pod> = BTreeSet::new();
    let mut left: Vec<&Pod> = booked.iter().collect();
    for pod in listed {
        let uid = match left
            .iter()
            .position(|other| other.container == pod.container)
        {
            Some(index) => left.remove(index).uid.clone(),
            None => None,
        };
        joined.insert(Pod { uid, ..pod.clone() });
    }
    // An init container that shares the device with its pod's container is nobody else.
    let uids: BTreeSet<_> = joined.iter().filter_map(|pod| pod.uid.clone()).collect();
    joined.extend(
        left.into_iter()
            .filter(|pod| pod.uid.as_ref().is_none_or(|uid| !uids.contains(uid)))
            .cloned(),
    );
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_unit(id: &str) -> Unit {
        Unit {
            resource: "akri.sh/cams".into(),
            id: id.into(),
        }
    }

    fn mk_pod(name: Option<&str>, uid: Option<&str>) -> BTreeSet<Pod> {
        BTreeSet::from([Pod {
            name: name.map(Into::into),
            uid: uid.map(Into::into),
            container: "main".into(),
        }])
    }

    #[test]
    fn only_what_both_books_lack_is_certainly_absent() {
        let listed = |ids: &[&str]| {
            Some(
                ids.iter()
                    .map(|id| (mk_unit(id), mk_pod(Some("d/p"), None)))
                    .collect::<BTreeMap<_, _>>(),
            )
        };
        let checked = |ids: &[&str], fresh| {
            Some(Checked {
                entries: ids
                    .iter()
                    .map(|id| (mk_unit(id), mk_pod(None, Some("u"))))
                    .collect(),
                slots: BTreeMap::new(),
                fresh,
                anew: false,
            })
        };
        let both = Presence::Held(mk_pod(Some("d/p"), Some("u")));
        for (listed, checkpoint, sight) in [
            (None, checked(&["a"], true), Presence::Unsure),
            (listed(&["a"]), checked(&["a"], false), both),
            (
                listed(&["a"]),
                None,
                Presence::Held(mk_pod(Some("d/p"), None)),
            ),
            (
                listed(&[]),
                checked(&["a"], true),
                Presence::Held(mk_pod(None, Some("u"))),
            ),
            // Perhaps an init container, perhaps a pod that has ended.
            (listed(&[]), checked(&["a"], false), Presence::Unsure),
            (
                listed(&[]),
                checked(&[], false),
                Presence::Absent {
                    certain: true,
                    anew: false,
                },
            ),
            (
                listed(&[]),
                None,
                Presence::Absent {
                    certain: false,
                    anew: false,
                },
            ),
        ] {
            let snapshot = Snapshot {
                begun: Instant::now(),
                kubelet_run: None,
                listed: listed.clone(),
                checkpoint: checkpoint.clone(),
                active: BTreeSet::new(),
                alive: BTreeMap::new(),
                is_silent: false,
                problems: Vec::new(),
            };
            assert_eq!(
                snapshot.presence(&mk_unit("a")),
                sight,
                "{listed:?} {checkpoint:?}"
            );
        }
    }
}
