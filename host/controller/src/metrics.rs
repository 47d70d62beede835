//! Metrics of the controller, in the Prometheus text format 0.0.4. Name and labels of the first are Akri's.
//!
//! Gauges of existing objects are counted on each scrape, so that a restart changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leafhost_core::brokers::{Kind, ObjectSet, Phase};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
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
    /// A reservation of a name.
    Name,
}

/// All metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    leads: watch::Receiver<bool>,
    /// Pods, jobs and services, if the controller creates brokers.
    objects: Option<watch::Receiver<Arc<ObjectSet>>>,
    releases: AtomicU64,
    failures: [AtomicU64; Write::VARIANTS.len()],
}

impl Metrics {
    /// Creates the metrics of a controller with these sources.
    pub fn new(
        leads: watch::Receiver<bool>,
        objects: Option<watch::Receiver<Arc<ObjectSet>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            leads,
            objects,
            releases: AtomicU64::default(),
            failures: Default::default(),
        })
    }

    /// Renders the metrics as text.
    pub fn render(self: &Arc<Self>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(self)));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode_registry(&mut text, &registry);
        text
    }

    /// Counts entries of nodes that were removed from an Instance.
    pub(crate) fn released(&self, nodes: usize) {
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        self.releases.fetch_add(nodes, Ordering::Relaxed);
    }

    /// Counts a write that failed for a reason other than a concurrent change of the object.
    pub(crate) fn failed(&self, write: Write) {
        if let Some(count) = self.failures.get(write as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the running pods by Configuration and node; a pair whose pods do not run counts zero.
    fn brokers(&self) -> BTreeMap<(String, String), i64> {
        let mut counts = BTreeMap::new();
        let objects = self.objects.as_ref().filter(|_| *self.leads.borrow());
        let objects = objects.map(|objects| Arc::clone(&objects.borrow()));
        for (key, object) in objects.iter().flat_map(|objects| &objects.objects) {
            if key.kind == Kind::Pod
                && object.is_made
                && let (Some(configuration), Some(node)) = (&object.configuration, &object.node)
            {
                let count: &mut i64 = counts
                    .entry((configuration.clone(), node.clone()))
                    .or_default();
                *count += i64::from(object.phase == Phase::Running);
            }
        }
        counts
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut pods = encoder.encode_descriptor(
            "akri_broker_pod_count",
            "Pods of brokers that run",
            None,
            MetricType::Gauge,
        )?;
        for ((configuration, node), count) in self.brokers() {
            pods.encode_family(&[("configuration", configuration), ("node", node)])?
                .encode_gauge(&count)?;
        }
        encoder
            .encode_descriptor(
                "leafhost_controller_leads",
                "Whether this controller is the one that acts",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&i64::from(*self.leads.borrow()))?;
        // Encoded as gauges, because a counter would get a second suffix.
        encoder
            .encode_descriptor(
                "leafhost_controller_releases_total",
                "Entries of nodes that are gone, removed from Instances",
                None,
                MetricType::Counter,
            )?
            .encode_gauge(&self.releases.load(Ordering::Relaxed))?;
        let mut failures = encoder.encode_descriptor(
            "leafhost_controller_failed_writes_total",
            "Writes that the API server refused or did not answer",
            None,
            MetricType::Counter,
        )?;
        for (write, count) in Write::VARIANTS.iter().zip(&self.failures) {
            failures
                .encode_family(&[("of", <&str>::from(write))])?
                .encode_gauge(&count.load(Ordering::Relaxed))?;
        }
        Ok(())
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

    fn lines(metrics: &Arc<Metrics>, name: &str) -> Vec<String> {
        let text = metrics.render();
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect()
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
        let none = ["instance", "status", "broker", "name"].map(|of| format!("{{of=\"{of}\"}} 0"));
        assert_eq!(failures(), none);
        metrics.released(2);
        metrics.failed(Write::Broker);
        assert_eq!(releases(), [" 2"]);
        assert_eq!(failures()[2], "{of=\"broker\"} 1");
        assert!(
            metrics
                .render()
                .contains("# TYPE leafhost_controller_releases_total counter\n")
        );
    }
}
