//! Snapshot of the kubelet's records: which pod has which device. Pure; [`crate::records`] takes snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leafhost_core::device_id::{DeviceId, resource_name};
use leafhost_core::problem::Problem;
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

/// Annotation prefix that maps virtual devices to slots: `<this>/<configuration>`, with `<virtual>=<slot>` pairs. The kubelet's checkpoint
/// keeps it, so that it outlives the agent and the Instance.
pub const SLOTS_ANNOTATION: &str = "slots.leafhost.dev";

/// Container that has a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// `namespace/name` of the pod, if PodResources gave it.
    pub name: Option<String>,
    /// Uid of the pod, if the checkpoint gave it.
    pub uid: Option<String>,
    /// Name of the container.
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

/// State of the kubelet's records at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Start of the read; later events are not included.
    pub begun: Instant,
    /// Kubelet that was read.
    pub kubelet_run: Option<KubeletRun>,
    /// Device ids that PodResources lists; `None` if it could not be read.
    pub listed: Option<BTreeMap<DeviceId, BTreeSet<Pod>>>,
    /// All pods that PodResources lists, as `namespace/name`, with or without devices.
    pub active: BTreeSet<String>,
    /// Content of the checkpoint; `None` if it could not be read.
    pub checkpoint: Option<Checked>,
    /// Presence of pods on this node, by uid; pods of unknown state are missing.
    pub alive: BTreeMap<String, bool>,
    /// True if one of the pods that are present has no volume, so that the end of its containers causes no event.
    pub is_silent: bool,
    /// Records that could not be read, with the remedy.
    pub problems: Vec<Problem>,
}

/// Content of the kubelet's checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Containers by device id.
    pub entries: BTreeMap<DeviceId, BTreeSet<Pod>>,
    /// Slots by device id of a Configuration.
    pub slots: BTreeMap<DeviceId, String>,
    /// True if it was written after PodResources had answered, which makes the kubelet drop stale records, or if it confirms such a
    /// checkpoint that is still believed. An older one may still name pods that have ended.
    pub fresh: bool,
    /// True if it was written in the course of this snapshot.
    pub rewritten: bool,
}

/// State of the kubelet while it admits a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Admitted pods and the pod being admitted, as `namespace/name`.
    pub active: BTreeSet<String>,
    /// Containers that have tickets according to the kubelet's checkpoint, each with the uid of its pod.
    pub served: BTreeSet<Served>,
}

/// Container, as the uid of its pod and its own name.
pub type Served = (String, String);

/// State of one device id in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// These containers have the device id.
    Held(BTreeSet<Pod>),
    /// No container has the device id. Only the checkpoint knows init containers, so certainty requires the checkpoint.
    Absent {
        /// True if the checkpoint was read, too.
        certain: bool,
        /// True if the checkpoint was written in the course of this snapshot, so that it has every answer that the kubelet received before.
        rewritten: bool,
    },
    /// The records do not show the state.
    Unsure,
}

/// Device id that only the kubelet knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Pods that have the device id.
    pub pods: BTreeSet<Pod>,
    /// Slot of the device id, if the checkpoint names it.
    pub slot: Option<String>,
}

impl Snapshot {
    /// Returns true if the snapshot shows the state: a kubelet answered, or none runs.
    pub fn is_answer(&self) -> bool {
        self.listed.is_some() || self.kubelet_run.is_none()
    }

    /// Returns true if a kubelet answers but has no registration socket, so that no resource can be registered.
    pub fn is_socket_missing(&self) -> bool {
        self.listed.is_some() && self.kubelet_run.is_none()
    }

    /// Returns the state of a device id.
    pub fn presence(&self, device_id: &DeviceId) -> Presence {
        let Some(listed) = &self.listed else {
            return Presence::Unsure;
        };
        let checked = self.checkpoint.as_ref();
        let booked = checked.and_then(|checked| checked.entries.get(device_id));
        match (listed.get(device_id), booked) {
            (Some(pods), Some(booked)) => Presence::Held(join(pods, booked)),
            (Some(pods), None) => Presence::Held(pods.clone()),
            (None, Some(booked)) if checked.is_some_and(|checked| checked.fresh) => {
                Presence::Held(booked.clone())
            }
            (None, Some(_)) => Presence::Unsure,
            (None, None) => Presence::Absent {
                certain: checked.is_some(),
                rewritten: checked.is_some_and(|checked| checked.rewritten),
            },
        }
    }

    /// Returns true if the pod is still on this node, `None` if it is unknown.
    pub fn is_alive(&self, pod: &Pod) -> Option<bool> {
        self.alive.get(pod.uid.as_ref()?).copied()
    }

    /// Returns true if a pod may still use its devices. A pod that has ended may keep its folder until it is deleted, but is not active. If
    /// the name or the uid is unknown, the other decides.
    pub fn is_running(&self, pod: &Pod) -> bool {
        let is_there = self.is_alive(pod) != Some(false);
        let is_active = |name: &String| self.active.contains(name);
        is_there && pod.name.as_ref().is_none_or(is_active)
    }

    /// Returns the device ids of our resources that the kubelet has and that are not known. A device id that only an older checkpoint names
    /// counts if its pod exists.
    pub fn unknown_ids(&self, is_known: impl Fn(&DeviceId) -> bool) -> Vec<(DeviceId, Found)> {
        let Some(listed) = &self.listed else {
            return Vec::new();
        };
        let checked = self.checkpoint.as_ref();
        let booked = checked.into_iter().flat_map(|checked| {
            checked.entries.iter().filter(|(_, pods)| {
                checked.fresh || pods.iter().any(|pod| self.is_alive(pod) == Some(true))
            })
        });
        let mut found: BTreeMap<DeviceId, Found> = BTreeMap::new();
        for (device_id, pods) in booked.chain(listed) {
            if is_known(device_id) || resource_name(&device_id.resource).is_none() {
                continue;
            }
            let slot = checked
                .and_then(|checked| checked.slots.get(device_id))
                .cloned();
            found.entry(device_id.clone()).or_insert_with(|| Found {
                pods: pods.clone(),
                slot,
            });
        }
        found.into_iter().collect()
    }
}

/// Joins the names of `listed` with the uids of `booked`, container by container.
fn join(listed: &BTreeSet<Pod>, booked: &BTreeSet<Pod>) -> BTreeSet<Pod> {
    let mut joined: BTreeSet<Pod> = BTreeSet::new();
    let mut left: Vec<&Pod> = booked.iter().collect();
    for pod in listed {
        let same = left
            .iter()
            .position(|other| other.container == pod.container);
        let uid = same.and_then(|index| left.remove(index).uid.clone());
        joined.insert(Pod { uid, ..pod.clone() });
    }
    // An init container that shares the device with a container of its pod is not another holder.
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

    fn mk_device_id(id: &str) -> DeviceId {
        DeviceId::new("akri.sh/cams", id)
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
                    .map(|id| (mk_device_id(id), mk_pod(Some("d/p"), None)))
                    .collect::<BTreeMap<_, _>>(),
            )
        };
        let checked = |ids: &[&str], fresh| {
            Some(Checked {
                entries: ids
                    .iter()
                    .map(|id| (mk_device_id(id), mk_pod(None, Some("u"))))
                    .collect(),
                slots: BTreeMap::new(),
                fresh,
                rewritten: false,
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
            // Either an init container or a pod that has ended.
            (listed(&[]), checked(&["a"], false), Presence::Unsure),
            (
                listed(&[]),
                checked(&[], false),
                Presence::Absent {
                    certain: true,
                    rewritten: false,
                },
            ),
            (
                listed(&[]),
                None,
                Presence::Absent {
                    certain: false,
                    rewritten: false,
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
                snapshot.presence(&mk_device_id("a")),
                sight,
                "{listed:?} {checkpoint:?}"
            );
        }
    }

    #[test]
    fn an_init_container_is_no_second_holder_and_a_container_of_another_pod_is() {
        let pod = |name: Option<&str>, uid: Option<&str>, container: &str| Pod {
            name: name.map(Into::into),
            uid: uid.map(Into::into),
            container: container.into(),
        };
        let listed = BTreeSet::from([pod(Some("d/p"), None, "main")]);
        let booked = BTreeSet::from([
            pod(None, Some("u"), "main"),
            pod(None, Some("u"), "init"),
            pod(None, Some("v"), "other"),
            pod(None, None, "odd"),
        ]);
        let expected = BTreeSet::from([
            pod(Some("d/p"), Some("u"), "main"),
            pod(None, Some("v"), "other"),
            pod(None, None, "odd"),
        ]);
        assert_eq!(join(&listed, &booked), expected);
    }

    #[test]
    fn a_kubelet_or_its_absence_answers_and_one_without_a_socket_is_missing_it() {
        for (is_listed, runs, is_answer, is_socket_missing) in [
            (true, true, true, false),
            (true, false, true, true),
            (false, true, false, false),
            (false, false, true, false),
        ] {
            let mut snapshot = crate::fixture::snapshot(1, &[]);
            snapshot.listed = snapshot.listed.filter(|_| is_listed);
            snapshot.kubelet_run = snapshot.kubelet_run.filter(|_| runs);
            let shown = (snapshot.is_answer(), snapshot.is_socket_missing());
            assert_eq!(shown, (is_answer, is_socket_missing), "{is_listed} {runs}");
        }
    }
}
