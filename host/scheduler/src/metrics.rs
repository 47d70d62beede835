//! Metrics of the extender.

use std::time::Duration;

use leafhost_metrics::{Buckets, Count, Labels, count, labels, register, register_as, set};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets in seconds, from a call answered from memory to one with several writes.
const CALL_BUCKETS: Buckets = Buckets(&[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0]);

/// Metrics of the extender and their registry.
pub struct Metrics {
    registry: Registry,
    calls: Family<Labels, Count>,
    call_time: Family<Labels, Histogram, Buckets>,
    reserved: Gauge,
    conflicts: Count,
    releases: Family<Labels, Count>,
    waiting: Gauge,
    tried_again: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        Self {
            calls: register(
                &mut registry,
                "leafhost_scheduler_calls_total",
                "Calls of a scheduler, by verb and result",
            ),
            call_time: register_as(
                &mut registry,
                "leafhost_scheduler_call_seconds",
                "Seconds until a call of a scheduler was answered, by verb",
                Family::new_with_constructor(CALL_BUCKETS),
            ),
            reserved: register(
                &mut registry,
                "leafhost_scheduler_reserved_slots",
                "Slots that are reserved for pods",
            ),
            conflicts: register(
                &mut registry,
                "leafhost_scheduler_conflicts_total",
                "Reservations that failed because another process took the slot first",
            ),
            releases: register(
                &mut registry,
                "leafhost_scheduler_releases_total",
                "Reserved slots that were released, by reason",
            ),
            waiting: register(
                &mut registry,
                "leafhost_scheduler_waiting_pods",
                "Pods that wait for devices",
            ),
            tried_again: register(
                &mut registry,
                "leafhost_scheduler_tried_again_total",
                "Waiting pods that a scheduler was asked to try again",
            ),
            registry,
        }
    }
}

impl Metrics {
    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        leafhost_metrics::render(&self.registry)
    }

    pub(crate) fn called(&self, verb: &'static str, result: &'static str, took: Duration) {
        count(&self.calls, [("verb", verb), ("result", result)]);
        let by_verb = labels([("verb", verb)]);
        let histogram = self.call_time.get_or_create(&by_verb);
        histogram.observe(took.as_secs_f64());
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.0.inc();
    }

    pub(crate) fn released(&self, reason: &'static str) {
        count(&self.releases, [("reason", reason)]);
    }

    pub(crate) fn tried_again(&self) {
        self.tried_again.0.inc();
    }

    pub(crate) fn seen(&self, reserved: usize, waiting: usize) {
        set(&self.reserved, reserved);
        set(&self.waiting, waiting);
    }
}
