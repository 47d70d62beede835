//! Prometheus metrics of claims.

use std::time::Duration;

use leafhost_metrics::{Buckets, Labels, labels, register, register_as, set};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets for the seconds of a Prepare, from the duration of one write to the time limit.
const PREPARE_BUCKETS: Buckets = Buckets(&[0.002, 0.005, 0.01, 0.025, 0.05, 0.25, 1.0, 5.0, 40.0]);

/// Metrics of claims.
#[derive(Debug)]
pub struct Metrics {
    prepared: Gauge,
    prepare_time: Family<Labels, Histogram, Buckets>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn new(all: &mut Registry) -> Self {
        Self {
            prepared: register(
                all,
                "leafhost_claims_prepared",
                "Resource claims that are prepared on this node, or not yet released",
            ),
            prepare_time: register_as(
                all,
                "leafhost_claim_prepare_seconds",
                "Seconds until a resource claim was prepared, its slots taken, by result",
                Family::new_with_constructor(PREPARE_BUCKETS),
            ),
        }
    }

    pub(crate) fn prepared(&self, claims: usize) {
        set(&self.prepared, claims);
    }

    pub(crate) fn prepare(&self, result: &'static str, took: Duration) {
        let result = labels([("result", result)]);
        let histogram = self.prepare_time.get_or_create(&result);
        histogram.observe(took.as_secs_f64());
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&mut Registry::default())
    }
}
