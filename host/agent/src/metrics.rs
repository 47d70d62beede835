//! The metrics, in the Prometheus text format 0.0.4. Names and labels of the first three are Akri's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leafhost_core::device::Health;
use leafhost_core::device_view::{DeviceSnapshot, DeviceView};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::State;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};
use strum::VariantArray as _;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Akri's buckets, in seconds.
const RESPONSE_BUCKETS: [f64; 9] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0];
/// Calls of components take from microseconds to their wall limit.
const CALL_BUCKETS: [f64; 10] = [0.000_1, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0];
/// A call that is due waits for the machine, or for calls that last up to their wall limit.
const LATE_BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 30.0];

/// Allocations take from a write to their limit.
const ALLOCATION_BUCKETS: [f64; 9] = [0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 8.0];

/// How far a resource is, in a word.
pub(crate) fn resource_state(state: State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::Registered => "registered",
        State::Listed => "listed",
        State::Failed => "failed",
    }
}

/// Labels: names and values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Labels(Vec<(&'static str, String)>);

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in &self.0 {
            use prometheus_client::encoding::EncodeLabel as _;
            (*name, value.as_str()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    Labels(
        pairs
            .into_iter()
            .map(|(name, value)| (name, value.to_owned()))
            .collect(),
    )
}

/// A counter whose name is written as it is: Akri's has no `_total`.
#[derive(Debug, Clone, Default)]
struct Count(Counter);

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // A gauge is a counter without the suffix, as far as the text goes.
        encoder.encode_gauge(&i64::try_from(self.0.get()).unwrap_or(i64::MAX))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Counter;
}

#[derive(Debug, Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Gauges that are counted anew, with their label sets: a family does not list its own.
#[derive(Debug)]
struct Counts(Family<Labels, Gauge>, Mutex<BTreeSet<Labels>>);

impl From<Family<Labels, Gauge>> for Counts {
    fn from(family: Family<Labels, Gauge>) -> Self {
        Self(family, Mutex::default())
    }
}

impl Counts {
    /// From now on there are these.
    fn set(&self, counts: BTreeMap<Labels, i64>) {
        let now: BTreeSet<Labels> = counts.keys().cloned().collect();
        let mut counted = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        for labels in counted.difference(&now) {
            self.0.remove(labels);
        }
        *counted = now;
        for (labels, count) in counts {
            self.0.get_or_create(&labels).set(count);
        }
    }
}

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    instances: Counts,
    devices: Counts,
    response_time: Family<Labels, Histogram, Buckets>,
    response_result: Family<Labels, Count>,
    calls: Family<Labels, Count>,
    faults: Family<Labels, Count>,
    call_time: Family<Labels, Histogram, Buckets>,
    call_late: Family<Labels, Histogram, Buckets>,
    denied: Family<Labels, Count>,
    writes: Family<Labels, Count>,
    allocations: Family<Labels, Count>,
    allocation_time: Histogram,
    releases: Family<Labels, Count>,
    slot_conflicts: Gauge,
    resources: Family<Labels, Gauge>,
    registrations: Gauge,
    problems: Family<Labels, Gauge>,
    lost_lines: Count,
}

/// Registers a metric and returns it.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let all = &mut registry;
        let times = |buckets| Family::new_with_constructor(Buckets(buckets));
        Self {
            instances: register(
                all,
                "akri_instance_count",
                "Instances this node sees",
                Family::default(),
            )
            .into(),
            devices: register(
                all,
                "leafhost_devices",
                "Devices of Configurations by health",
                Family::default(),
            )
            .into(),
            response_time: register(
                all,
                "akri_discovery_response_time",
                "Seconds until a handler answered",
                times(&RESPONSE_BUCKETS),
            ),
            response_result: register(
                all,
                "akri_discovery_response_result",
                "Calls of handlers by result",
                Family::default(),
            ),
            calls: register(
                all,
                "leafhost_handler_calls_total",
                "Calls of handlers",
                Family::default(),
            ),
            faults: register(
                all,
                "leafhost_handler_faults_total",
                "Calls of handlers that ended without an answer, by reason",
                Family::default(),
            ),
            call_time: register(
                all,
                "leafhost_handler_call_seconds",
                "Wall clock of calls of handlers",
                times(&CALL_BUCKETS),
            ),
            call_late: register(
                all,
                "leafhost_handler_late_seconds",
                "From when calls of handlers were due until the guest began",
                times(&LATE_BUCKETS),
            ),
            denied: register(
                all,
                "leafhost_handler_denied_total",
                "Capabilities handlers asked for and were denied",
                Family::default(),
            ),
            writes: register(
                all,
                "leafhost_store_writes_total",
                "Changes of Instances by kind and result",
                Family::default(),
            ),
            allocations: register(
                all,
                "leafhost_allocations_total",
                "Allocations the kubelet asked for, by result",
                Family::default(),
            ),
            allocation_time: register(
                all,
                "leafhost_allocation_seconds",
                "Seconds until an allocation was decided, its claim written",
                Histogram::new(ALLOCATION_BUCKETS),
            ),
            releases: register(
                all,
                "leafhost_slot_releases_total",
                "Slots that came back, by reason",
                Family::default(),
            ),
            slot_conflicts: register(
                all,
                "leafhost_slot_conflicts",
                "Slots that the kubelet has given to a pod and another node claims",
                Gauge::default(),
            ),
            resources: register(
                all,
                "leafhost_kubelet_resources",
                "Resources offered to the kubelet, by state",
                Family::default(),
            ),
            registrations: register(
                all,
                "leafhost_kubelet_registrations",
                "Registrations of the resources that are offered now",
                Gauge::default(),
            ),
            problems: register(
                all,
                "leafhost_problems",
                "What is wrong now, as the status tells it, by the part that says so",
                Family::default(),
            ),
            lost_lines: register(
                all,
                "leafhost_log_lines_dropped_total",
                "Lines of the log that its reader did not take in time",
                Count::default(),
            ),
            registry,
        }
    }
}

/// How Akri calls what came of a call; the second is our own.
const RESULTS: [&str; 3] = ["Success", "Partial", "Fail"];

/// All that [`health`] says.
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

/// What is counted of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub handler: &'a str,
    pub configuration: &'a str,
    pub seconds: f64,
    /// From when it was due until it began.
    pub late: f64,
    pub result: CallResult<'a>,
    pub denied: usize,
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallResult<'a> {
    /// With all devices, be they none.
    Discovered,
    /// With devices that are perhaps not all.
    Partial,
    /// With an error of the handler's own.
    Refused,
    /// Without an answer.
    Faulted(&'a Fault),
}

impl Metrics {
    /// The text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode_registry(&mut text, &self.registry);
        text
    }

    pub(crate) fn called(&self, call: Call<'_>) {
        let handler = labels([("handler", call.handler)]);
        self.calls.get_or_create(&handler).0.inc();
        self.call_time.get_or_create(&handler).observe(call.seconds);
        self.call_late.get_or_create(&handler).observe(call.late);
        self.response_time
            .get_or_create(&labels([("configuration", call.configuration)]))
            .observe(call.seconds);
        let [success, partial, fail] = RESULTS;
        let result = match call.result {
            CallResult::Discovered => success,
            CallResult::Partial => partial,
            CallResult::Refused | CallResult::Faulted(_) => fail,
        };
        self.response_result
            .get_or_create(&labels([
                ("discovery_handler_name", call.handler),
                ("result", result),
            ]))
            .0
            .inc();
        if let CallResult::Faulted(fault) = call.result {
            self.faults
                .get_or_create(&labels([
                    ("handler", call.handler),
                    ("reason", fault.reason.label()),
                ]))
                .0
                .inc();
        }
        if call.denied > 0 {
            self.denied
                .get_or_create(&handler)
                .0
                .inc_by(u64::try_from(call.denied).unwrap_or(u64::MAX));
        }
    }

    /// No Configuration has that name any more.
    pub(crate) fn forget_configuration(&self, name: &str) {
        self.response_time
            .remove(&labels([("configuration", name)]));
    }

    /// No handler has that name any more.
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

    /// So many lines of the log were dropped since the agent started.
    pub(crate) fn lost_log_lines(&self, lines: u64) {
        self.lost_lines.0.inner().store(lines, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, kind: &'static str, result: &'static str) {
        self.writes
            .get_or_create(&labels([("kind", kind), ("result", result)]))
            .0
            .inc();
    }

    pub(crate) fn allocated(&self, result: &'static str, took: Duration) {
        let result = labels([("result", result)]);
        self.allocations.get_or_create(&result).0.inc();
        self.allocation_time.observe(took.as_secs_f64());
    }

    pub(crate) fn released(&self, reason: &'static str) {
        let reason = labels([("reason", reason)]);
        self.releases.get_or_create(&reason).0.inc();
    }

    /// So many slots are held here and claimed elsewhere.
    pub fn set_slot_conflicts(&self, count: usize) {
        self.slot_conflicts
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts the resources by state.
    pub(crate) fn count_resources(&self, report: &leafhost_kubelet::Report) {
        for state in [
            State::Waiting,
            State::Registered,
            State::Listed,
            State::Failed,
        ] {
            let resources = report.resources.values();
            let count = resources.filter(|resource| resource.state == state).count();
            self.resources
                .get_or_create(&labels([("state", resource_state(state))]))
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let registrations: u64 = report
            .resources
            .values()
            .map(|resource| resource.registrations)
            .sum();
        self.registrations
            .set(i64::try_from(registrations).unwrap_or(i64::MAX));
    }

    /// Counts what is wrong now, by part.
    pub(crate) fn count_problems(&self, parts: &BTreeMap<&'static str, usize>) {
        for (part, count) in parts {
            self.problems
                .get_or_create(&labels([("part", part)]))
                .set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Counts the devices by Configuration and health; of each Configuration also the healths that no device has.
    pub(crate) fn count_devices(&self, snapshot: &DeviceSnapshot) {
        let mut counts = BTreeMap::<Labels, i64>::new();
        for (key, view) in &snapshot.configurations {
            let mut found = HEALTHS.map(|health| (health, 0));
            for device in view.devices.values() {
                let is = health(device);
                for (health, count) in &mut found {
                    *count += i64::from(*health == is);
                }
            }
            for (health, count) in found {
                let key = labels([("configuration", key.name()), ("health", health)]);
                *counts.entry(key).or_default() += count;
            }
        }
        self.devices.set(counts);
    }

    /// Counts the Instances that `node` sees.
    pub(crate) fn count_instances(&self, set: &InstanceSet, node: &str) {
        let mut counts = BTreeMap::<Labels, i64>::new();
        for instance in set.instances.values() {
            if instance.spec.nodes.iter().any(|seen| seen == node) {
                let shared = if instance.spec.shared {
                    "true"
                } else {
                    "false"
                };
                let key = labels([
                    ("configuration", &instance.spec.configuration_name),
                    ("is_shared", shared),
                ]);
                *counts.entry(key).or_default() += 1;
            }
        }
        self.instances.set(counts);
    }
}

#[cfg(test)]
mod tests;
