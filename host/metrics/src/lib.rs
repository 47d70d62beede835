//! Building blocks of the metrics, in the Prometheus text format 0.0.4. Each crate defines and registers its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

/// Content type of the output of [`render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics of a registry as text.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode_registry(&mut text, registry);
    text
}

/// Label set of names and values.
pub type Labels = Vec<(&'static str, String)>;

/// Creates a label set from names and values.
pub fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.map(|(name, value)| (name, value.to_owned())).into()
}

/// Counter whose name is written without the suffix `_total`, as Akri's are.
#[derive(Debug, Clone, Default)]
pub struct Count(pub Counter);

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // In the text format, a gauge is written like a counter without the suffix.
        encoder.encode_gauge(&i64::try_from(self.0.get()).unwrap_or(i64::MAX))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Counter;
}

/// Upper bounds of a histogram's buckets.
#[derive(Debug, Clone, Copy)]
pub struct Buckets(pub &'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Gauges that are recounted as a whole. Keeps the label sets in use, which a [`Family`] does not list.
#[derive(Debug)]
pub struct Counts(Family<Labels, Gauge>, Mutex<BTreeSet<Labels>>);

impl Counts {
    /// Registers the gauges.
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(register(registry, name, help), Mutex::default())
    }

    /// Sets all gauges to `counts` and removes those that are not in it.
    pub fn set(&self, counts: BTreeMap<Labels, i64>) {
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

/// Increments the counter of a label set.
pub fn count<const N: usize>(family: &Family<Labels, Count>, pairs: [(&'static str, &str); N]) {
    family.get_or_create(&labels(pairs)).0.inc();
}

/// Sets a gauge to a number, or to the largest value if the number is larger.
pub fn set(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Registers a new metric and returns it.
pub fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    register_as(registry, name, help, M::default())
}

/// Registers a metric and returns it.
pub fn register_as<M: Metric + Clone>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register(name, help, metric.clone());
    metric
}
