//! Prometheus metrics of the agent and its parts. Name and labels of the first metric are Akri's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use leafhost_core::claim::ports::SliceReport;
use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::State;
use leafhost_metrics::{Count, Counts, Labels, count, labels, register, set};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Metrics of discovery.
    pub discovery: Arc<leafhost_discovery::Metrics>,
    /// Metrics of slots.
    pub slots: Arc<leafhost_slots::Metrics>,
    /// Metrics of claims.
    pub claims: Arc<leafhost_claims::Metrics>,
    instances: Counts,
    writes: Family<Labels, Count>,
    resources: Family<Labels, Gauge>,
    registrations: Gauge,
    problems: Family<Labels, Gauge>,
    slices: Gauge,
    slice_writes: Family<Labels, Count>,
    lost_lines: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let all = &mut registry;
        Self {
            discovery: Arc::new(leafhost_discovery::Metrics::new(all)),
            slots: Arc::new(leafhost_slots::Metrics::new(all)),
            claims: Arc::new(leafhost_claims::Metrics::new(all)),
            instances: Counts::register(all, "akri_instance_count", "Instances this node sees"),
            writes: register(
                all,
                "leafhost_store_writes_total",
                "Changes of Instances by kind and result",
            ),
            resources: register(
                all,
                "leafhost_kubelet_resources",
                "Resources offered to the kubelet, by state",
            ),
            registrations: register(
                all,
                "leafhost_kubelet_registrations",
                "Registrations of the resources that are offered now",
            ),
            problems: register(
                all,
                "leafhost_problems",
                "Current problems, by the part of the agent that reports them",
            ),
            slices: register(
                all,
                "leafhost_slices",
                "ResourceSlices of this node's local devices",
            ),
            slice_writes: register(
                all,
                "leafhost_slice_writes_total",
                "Writes of ResourceSlices, by reason",
            ),
            lost_lines: register(
                all,
                "leafhost_log_lines_dropped_total",
                "Log lines dropped because the log reader was too slow",
            ),
            registry,
        }
    }
}

impl Metrics {
    /// Returns all metrics as text.
    pub fn render(&self) -> String {
        leafhost_metrics::render(&self.registry)
    }

    /// Sets the number of log lines dropped since the agent started.
    pub(crate) fn lost_log_lines(&self, lines: u64) {
        self.lost_lines.0.inner().store(lines, Ordering::Relaxed);
    }

    /// Counts a change of an Instance.
    pub(crate) fn count_write(&self, kind: &'static str, result: &'static str) {
        count(&self.writes, [("kind", kind), ("result", result)]);
    }

    /// Sets the number of resources by state, and the number of their registrations.
    pub(crate) fn count_resources(&self, report: &leafhost_kubelet::Report) {
        for state in [
            State::Waiting,
            State::Registered,
            State::Listed,
            State::Failed,
        ] {
            let resources = report.resources.values();
            let number = resources.filter(|resource| resource.state == state).count();
            let state = labels([("state", <&str>::from(state))]);
            set(&self.resources.get_or_create(&state), number);
        }
        let registrations: u64 = report
            .resources
            .values()
            .map(|resource| resource.registrations)
            .sum();
        self.registrations
            .set(i64::try_from(registrations).unwrap_or(i64::MAX));
    }

    /// Sets the number of current problems by part.
    pub(crate) fn count_problems(&self, parts: &BTreeMap<&'static str, usize>) {
        for (part, count) in parts {
            let part = labels([("part", part)]);
            set(&self.problems.get_or_create(&part), *count);
        }
    }

    /// Sets the metrics of slices.
    pub(crate) fn count_slices(&self, report: &SliceReport) {
        set(&self.slices, report.slices);
        for (reason, count) in [("changed", report.changed), ("deleted", report.restored)] {
            let writes = self
                .slice_writes
                .get_or_create(&labels([("reason", reason)]));
            writes.0.inner().store(count, Ordering::Relaxed);
        }
    }

    /// Counts the Instances that `node` sees.
    pub(crate) fn count_instances(&self, set: &InstanceSet, node: &str) {
        let mut counts = BTreeMap::<Labels, i64>::new();
        for instance in set.instances.values() {
            if instance.is_seen_by(node) {
                let shared = instance.spec.shared.to_string();
                let key = labels([
                    ("configuration", &instance.spec.configuration_name),
                    ("is_shared", &shared),
                ]);
                *counts.entry(key).or_default() += 1;
            }
        }
        self.instances.set(counts);
    }
}

#[cfg(test)]
mod tests;
