//! Remembers the pods that have passed Filter and the devices each would take, so that the next pod is not sent to the same devices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leafhost_select::ContainerRequest;
use tokio::time::Instant;

use crate::world::Number;

/// Time within which a pod that has passed Filter may be bound.
const BINDS: Duration = Duration::from_mins(1);
/// Time for which the devices of a pod that has passed Filter count as taken.
const TAKES: Duration = Duration::from_secs(5);
/// Upper bound of pods whose devices count as taken.
const MOST: usize = 200;

/// Result of a pod's last Filter.
#[derive(Debug)]
struct FilteredPod {
    at: Instant,
    /// Requests of the pod.
    asked: Arc<Vec<ContainerRequest>>,
    /// Devices that the pod would take, by node.
    takes: HashMap<String, Vec<Number>>,
}

/// Pods that have passed Filter, by uid.
#[derive(Debug, Default)]
pub struct FilteredPods(BTreeMap<String, FilteredPod>);

impl FilteredPods {
    /// Records that a pod has passed Filter.
    pub fn add(
        &mut self,
        uid: &str,
        (asked, takes): (Arc<Vec<ContainerRequest>>, HashMap<String, Vec<Number>>),
        at: Instant,
    ) {
        self.0.retain(|_, pod| pod.at + BINDS > at);
        self.0
            .insert(uid.to_owned(), FilteredPod { at, asked, takes });
    }

    /// Forgets a pod that is bound or will not be bound.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Clears the devices that a pod would take; the pod may still be bound.
    pub fn take_nothing(&mut self, uid: &str) {
        if let Some(pod) = self.0.get_mut(uid) {
            pod.takes.clear();
        }
    }

    /// Records that a pod is being bound to a node: it takes devices there only.
    pub fn take_on(&mut self, uid: &str, node: &str) {
        if let Some(pod) = self.0.get_mut(uid) {
            pod.takes.retain(|of, _| of == node);
        }
    }

    /// Records the devices that a pod is about to have on its node.
    pub fn take(&mut self, uid: &str, node: &str, devices: Vec<Number>) {
        if let Some(pod) = self.0.get_mut(uid) {
            pod.takes = HashMap::from([(node.to_owned(), devices)]);
        }
    }

    /// Returns the requests of a pod that may be bound.
    pub fn asked(&self, uid: &str, now: Instant) -> Option<Arc<Vec<ContainerRequest>>> {
        let pod = self.0.get(uid).filter(|pod| pod.at + BINDS > now);
        pod.map(|pod| Arc::clone(&pod.asked))
    }

    /// Returns true if the devices of a pod still count as taken.
    pub fn is_recent(&self, uid: &str, now: Instant) -> bool {
        self.0.get(uid).is_some_and(|pod| pod.at + TAKES > now)
    }

    /// Returns the devices that pods other than `uid` would take, by node.
    pub fn taken(&self, uid: &str, now: Instant) -> HashMap<&str, Vec<Number>> {
        let recent = self
            .0
            .iter()
            .filter(|(other, pod)| *other != uid && pod.at + TAKES > now && !pod.takes.is_empty());
        let mut taken: HashMap<&str, Vec<Number>> = HashMap::new();
        for (_, pod) in recent.take(MOST) {
            for (node, devices) in &pod.takes {
                taken.entry(node).or_default().extend(devices);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_being_bound_takes_devices_on_its_own_node_alone() {
        let (mut filtered, now) = (FilteredPods::default(), Instant::now());
        let takes = [("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])];
        filtered.add("one", (Arc::default(), HashMap::from(takes)), now);
        assert_eq!(filtered.taken("two", now).len(), 2);
        filtered.take_on("one", "b");
        assert_eq!(filtered.taken("two", now), HashMap::from([("b", vec![2])]));
        filtered.take("one", "b", vec![3]);
        assert_eq!(filtered.taken("two", now), HashMap::from([("b", vec![3])]));
        assert!(filtered.taken("one", now).is_empty());
    }
}
