//! Prometheus metrics of discovery. The first ones have Akri's names and labels.

use std::collections::BTreeMap;

use leafhost_core::device::Health;
use leafhost_core::device_view::{DeviceSnapshot, DeviceView};
use leafhost_core::fault::FaultReason;
use leafhost_metrics::{Buckets, Count, Counts, Labels, count, labels, register, register_as};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use strum::VariantArray as _;

use crate::published::{CallResult, SessionReport};

/// Akri's buckets, in seconds.
const RESPONSE_BUCKETS: [f64; 9] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0];
/// Buckets for calls of components, from microseconds to their wall clock limit.
const CALL_BUCKETS: [f64; 10] = [0.000_1, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0];
/// Buckets for the delay of a call, which waits for the machine or for calls that last up to their wall clock limit.
const LATE_BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 30.0];

/// Metrics of discovery.
#[derive(Debug)]
pub struct Metrics {
    devices: Counts,
    response_time: Family<Labels, Histogram, Buckets>,
    response_result: Family<Labels, Count>,
    calls: Family<Labels, Count>,
    faults: Family<Labels, Count>,
    call_time: Family<Labels, Histogram, Buckets>,
    call_late: Family<Labels, Histogram, Buckets>,
    denied: Family<Labels, Count>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn new(all: &mut Registry) -> Self {
        let times = |buckets| Family::new_with_constructor(Buckets(buckets));
        Self {
            devices: Counts::register(
                all,
                "leafhost_devices",
                "Devices of Configurations by health",
            ),
            response_time: register_as(
                all,
                "akri_discovery_response_time",
                "Seconds until a handler answered",
                times(&RESPONSE_BUCKETS),
            ),
            response_result: register(
                all,
                "akri_discovery_response_result",
                "Calls of handlers by result",
            ),
            calls: register(all, "leafhost_handler_calls_total", "Calls of handlers"),
            faults: register(
                all,
                "leafhost_handler_faults_total",
                "Calls of handlers that ended without an answer, by reason",
            ),
            call_time: register_as(
                all,
                "leafhost_handler_call_seconds",
                "Wall clock of calls of handlers",
                times(&CALL_BUCKETS),
            ),
            call_late: register_as(
                all,
                "leafhost_handler_late_seconds",
                "Seconds from the time a call of a handler was due until the guest began",
                times(&LATE_BUCKETS),
            ),
            denied: register(
                all,
                "leafhost_handler_denied_total",
                "Uses of capabilities that the agent denied to handlers",
            ),
        }
    }

    /// Counts a call, in which `denied` uses of capabilities were denied.
    pub(crate) fn called(
        &self,
        name: &str,
        configuration: &str,
        session: &SessionReport,
        denied: usize,
    ) {
        let handler = labels([("handler", name)]);
        let seconds = session.call.wall.as_secs_f64();
        self.calls.get_or_create(&handler).0.inc();
        self.call_time.get_or_create(&handler).observe(seconds);
        self.call_late
            .get_or_create(&handler)
            .observe(session.call.late.as_secs_f64());
        self.response_time
            .get_or_create(&labels([("configuration", configuration)]))
            .observe(seconds);
        let [success, partial, fail] = RESULTS;
        let result = match session.result {
            CallResult::Ok => success,
            CallResult::Partial => partial,
            _ => fail,
        };
        let pairs = [("discovery_handler_name", name), ("result", result)];
        count(&self.response_result, pairs);
        if let CallResult::Faulted(reason) = session.result {
            let pairs = [("handler", name), ("reason", reason.label())];
            count(&self.faults, pairs);
        }
        if denied > 0 {
            self.denied
                .get_or_create(&handler)
                .0
                .inc_by(u64::try_from(denied).unwrap_or(u64::MAX));
        }
    }

    /// Removes the series of a name that no Configuration has any more.
    pub(crate) fn forget_configuration(&self, name: &str) {
        self.response_time
            .remove(&labels([("configuration", name)]));
    }

    /// Removes the series of a name that no handler has any more.
    pub(crate) fn forget_handler(&self, name: &str) {
        let handler = labels([("handler", name)]);
        self.calls.remove(&handler);
        self.call_time.remove(&handler);
        self.call_late.remove(&handler);
        self.denied.remove(&handler);
        for reason in FaultReason::VARIANTS {
            let labels = labels([("handler", name), ("reason", reason.label())]);
            self.faults.remove(&labels);
        }
        for result in RESULTS {
            let labels = labels([("discovery_handler_name", name), ("result", result)]);
            self.response_result.remove(&labels);
        }
    }

    /// Counts the devices by Configuration and health, including the states that no device has.
    pub fn count_devices(&self, snapshot: &DeviceSnapshot) {
        let mut counts = BTreeMap::<Labels, i64>::new();
        for (key, view) in &snapshot.configurations {
            for state in HEALTHS {
                let devices = view.devices.values();
                let found = devices.filter(|device| health(device) == state).count();
                let key = labels([("configuration", key.name()), ("health", state)]);
                *counts.entry(key).or_default() += i64::try_from(found).unwrap_or(i64::MAX);
            }
        }
        self.devices.set(counts);
    }
}

/// Akri's words for the results of a call; `Partial` is our own.
const RESULTS: [&str; 3] = ["Success", "Partial", "Fail"];

/// All values of [`health`].
const HEALTHS: [&str; 4] = ["healthy", "unhealthy", "unknown", "missing"];

fn health(view: &DeviceView) -> &'static str {
    match (view.missing_since, view.device.as_ref()) {
        (Some(_), _) => "missing",
        (None, None) => "unknown",
        (None, Some(device)) => match device.health {
            Health::Healthy => "healthy",
            Health::Unhealthy(_) => "unhealthy",
            Health::Unknown => "unknown",
        },
    }
}

#[cfg(test)]
mod tests;
