//! Prometheus metrics of slots.

use std::time::Duration;

use leafhost_metrics::{Count, Labels, count, register, register_as, set};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets of `leafhost_allocation_seconds`, from the time of one fast write to that of an allocation that had to wait.
const ALLOCATION_BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 8.0, 15.0];

/// Metrics of slots.
#[derive(Debug)]
pub struct Metrics {
    allocations: Family<Labels, Count>,
    allocation_time: Histogram,
    releases: Family<Labels, Count>,
    slot_conflicts: Gauge,
}

impl Metrics {
    /// Registers the metrics.
    pub fn new(all: &mut Registry) -> Self {
        Self {
            allocations: register(
                all,
                "leafhost_allocations_total",
                "Allocations the kubelet asked for, by result",
            ),
            allocation_time: register_as(
                all,
                "leafhost_allocation_seconds",
                "Seconds until an allocation was decided, including the write of its claim",
                Histogram::new(ALLOCATION_BUCKETS),
            ),
            releases: register(
                all,
                "leafhost_slot_releases_total",
                "Slots that were released, by reason",
            ),
            slot_conflicts: register(
                all,
                "leafhost_slot_conflicts",
                "Slots that the kubelet has given to a pod and another node claims",
            ),
        }
    }

    /// Counts an allocation that was decided.
    pub(crate) fn allocated(&self, result: &'static str, took: Duration) {
        count(&self.allocations, [("result", result)]);
        self.allocation_time.observe(took.as_secs_f64());
    }

    /// Counts a slot that was released.
    pub(crate) fn released(&self, reason: &'static str) {
        count(&self.releases, [("reason", reason)]);
    }

    /// Sets the number of slots that pods of this node have and another node claims.
    pub fn set_slot_conflicts(&self, conflicts: usize) {
        set(&self.slot_conflicts, conflicts);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&mut Registry::default())
    }
}
