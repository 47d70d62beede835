//! Metrics of the controller, in the Prometheus text format 0.0.4. Name and labels of the first metric are Akri's.
//!
//! Gauges of existing objects are counted on each scrape, so that a restart changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::brokers::{Kind, ObjectSet, Phase};
use leafhost_metrics::{Count, Counts, Labels, count, labels, register};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use strum::VariantArray as _;
use tokio::sync::watch;

/// Kind of a failed write.
#[derive(Debug, Clone, Copy, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Write {
    /// An Instance that names nodes that are gone.
    Instance,
    /// The status of a Configuration.
    Status,
    /// A broker or a service.
    Broker,
    /// The eviction of a pod whose device is gone.
    Eviction,
    /// A reservation of a name.
    Name,
    /// The labels of a node.
    Node,
}

/// All metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leads: watch::Receiver<bool>,
    /// Pods, jobs and services, if the controller creates brokers.
    objects: Option<watch::Receiver<Arc<ObjectSet>>>,
    brokers: Counts,
    leading: Gauge,
    releases: Count,
    evictions: Family<Labels, Count>,
    failures: Family<Labels, Count>,
}

impl Metrics {
    /// Creates the metrics of a controller with these sources.
    pub fn new(
        leads: watch::Receiver<bool>,
        objects: Option<watch::Receiver<Arc<ObjectSet>>>,
    ) -> Arc<Self> {
        let mut registry = Registry::default();
        let all = &mut registry;
        let metrics = Self {
            leads,
            objects,
            brokers: Counts::register(all, "akri_broker_pod_count", "Pods of brokers that run"),
            leading: register(
                all,
                "leafhost_controller_leads",
                "1 if this controller is the leader, else 0",
            ),
            releases: register(
                all,
                "leafhost_controller_releases_total",
                "Entries of nodes that are gone, removed from Instances",
            ),
            evictions: register(
                all,
                "leafhost_controller_pods_evicted_total",
                "Pods that were evicted because their device is gone",
            ),
            failures: register(
                all,
                "leafhost_controller_failed_writes_total",
                "Writes that the API server refused or did not answer",
            ),
            registry,
        };
        for write in Write::VARIANTS {
            metrics.failures(*write);
        }
        Arc::new(metrics)
    }

    /// Renders the metrics as text.
    pub fn render(&self) -> String {
        self.leading.set(i64::from(*self.leads.borrow()));
        self.brokers.set(self.count_brokers());
        leafhost_metrics::render(&self.registry)
    }

    /// Counts entries of nodes that were removed from an Instance.
    pub(crate) fn released(&self, nodes: usize) {
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        self.releases.0.inc_by(nodes);
    }

    /// Counts an evicted pod of a Configuration.
    pub(crate) fn evicted(&self, configuration: &str) {
        count(&self.evictions, [("configuration", configuration)]);
    }

    /// Removes the counter of a name that no Configuration has any more.
    pub(crate) fn forget_evictions(&self, configuration: &str) {
        self.evictions
            .remove(&labels([("configuration", configuration)]));
    }

    /// Counts a write that failed for a reason other than a concurrent change of the object.
    pub(crate) fn failed(&self, write: Write) {
        self.failures(write).0.inc();
    }

    fn failures(&self, write: Write) -> Count {
        let labels = labels([("of", write.into())]);
        self.failures.get_or_create_owned(&labels)
    }

    /// Counts the running pods by Configuration and node; a pair whose pods do not run counts zero.
    fn count_brokers(&self) -> BTreeMap<Labels, i64> {
        let mut counts = BTreeMap::new();
        let objects = self.objects.as_ref().filter(|_| *self.leads.borrow());
        let objects = objects.map(|objects| Arc::clone(&objects.borrow()));
        for (key, object) in objects.iter().flat_map(|objects| &objects.objects) {
            if key.kind == Kind::Pod
                && object.is_made
                && let (Some(configuration), Some(node)) = (&object.configuration, &object.node)
            {
                let labels = labels([("configuration", configuration), ("node", node)]);
                *counts.entry(labels).or_default() += i64::from(object.phase == Phase::Running);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::brokers::{Object, ObjectKey};

    use super::*;

    fn pod(configuration: &str, node: Option<&str>, phase: Phase) -> Object {
        Object {
            uid: String::new(),
            owner: None,
            is_made: true,
            configuration: Some(configuration.into()),
            instance: None,
            node: node.map(str::to_owned),
            made_of: None,
            is_deleting: false,
            phase,
        }
    }

    fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.render();
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn pods_that_run_are_counted_by_configuration_and_node_while_the_controller_leads() {
        let (leads, is_leader) = watch::channel(true);
        let foreign = Object {
            is_made: false,
            ..pod("cams", Some("a"), Phase::Running)
        };
        let pods = [
            pod("cams", Some("a"), Phase::Running),
            pod("cams", Some("a"), Phase::Running),
            pod("cams", Some("a"), Phase::Pending),
            pod("cams", Some("b"), Phase::Pending),
            pod("lab", Some("a"), Phase::Running),
            // Pod of a job, without a node label.
            pod("lab", None, Phase::Running),
            foreign,
        ];
        let key = |number: usize, kind| ObjectKey {
            kind,
            namespace: "n".into(),
            name: number.to_string(),
        };
        let set = |pods: &[Object]| {
            let pods = pods.iter().cloned().map(Arc::new).enumerate();
            Arc::new(ObjectSet {
                complete: true,
                objects: pods
                    .map(|(number, pod)| (key(number, Kind::Pod), pod))
                    .collect(),
            })
        };
        let (objects, seen) = watch::channel(set(&pods));
        let metrics = Metrics::new(is_leader, Some(seen));
        let counts = || lines(&metrics, "akri_broker_pod_count");
        let [cams, lab] = [2, 1].map(|count| format!("\",node=\"a\"}} {count}"));
        assert_eq!(
            counts(),
            [
                format!("{{configuration=\"cams{cams}"),
                "{configuration=\"cams\",node=\"b\"} 0".to_owned(),
                format!("{{configuration=\"lab{lab}"),
            ]
        );
        objects.send_replace(set(&pods[3..4]));
        assert_eq!(counts(), ["{configuration=\"cams\",node=\"b\"} 0"]);
        assert_eq!(lines(&metrics, "leafhost_controller_leads"), [" 1"]);
        // Two controllers would count each pod twice.
        leads.send_replace(false);
        assert_eq!(counts(), <[&str; 0]>::default());
        assert_eq!(lines(&metrics, "leafhost_controller_leads"), [" 0"]);
    }

    #[test]
    fn what_was_released_and_what_could_not_be_written_is_counted_from_zero() {
        let (_leads, is_leader) = watch::channel(true);
        let metrics = Metrics::new(is_leader, None);
        let releases = || lines(&metrics, "leafhost_controller_releases_total");
        let failures = || lines(&metrics, "leafhost_controller_failed_writes_total");
        assert_eq!(releases(), [" 0"]);
        let none = ["broker", "eviction", "instance", "name", "node", "status"];
        let none = none.map(|of| format!("{{of=\"{of}\"}} 0"));
        assert_eq!(failures(), none);
        metrics.released(2);
        metrics.failed(Write::Broker);
        assert_eq!(releases(), [" 2"]);
        assert_eq!(failures()[0], "{of=\"broker\"} 1");
        assert!(
            metrics
                .render()
                .contains("# TYPE leafhost_controller_releases_total counter\n")
        );
    }
}
