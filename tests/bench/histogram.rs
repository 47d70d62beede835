//! Histogram among metrics in the text format of Prometheus.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::statistics::ms;

/// Cumulative buckets and sum of a histogram.
pub struct Histogram {
    /// Upper bounds in seconds, each with the cumulative count.
    buckets: Vec<(f64, f64)>,
    sum: f64,
}

impl Histogram {
    /// Reads the histogram of that name; `labels` selects one of several.
    pub fn read(metrics: &str, name: &str, labels: &str) -> Result<Self> {
        let (mut buckets, mut sum) = (Vec::new(), None);
        let own = metrics.lines().filter_map(|line| line.strip_prefix(name));
        for line in own.filter(|line| line.contains(labels)) {
            let (series, value) = line.rsplit_once(' ').context("a line without a value")?;
            let value: f64 = value.parse()?;
            if series.starts_with("_bucket") {
                let bound = series
                    .split_once("le=\"")
                    .context("a bucket has no bound")?;
                let bound = bound.1.split('"').next().unwrap_or_default();
                buckets.push((bound.parse()?, value));
            } else if series.starts_with("_sum") {
                sum = Some(value);
            }
        }
        ensure!(!buckets.is_empty(), "no {name} with {labels:?}");
        Ok(Self {
            buckets,
            sum: sum.with_context(|| format!("no sum of {name}"))?,
        })
    }

    /// Returns the observations after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&before.buckets);
        Self {
            buckets: pairs
                .map(|((bound, now), (_, before))| (*bound, now - before))
                .collect(),
            sum: self.sum - before.sum,
        }
    }

    /// Returns the number of observations.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the sum of the observations.
    pub fn sum(&self) -> Duration {
        Duration::from_secs_f64(self.sum.max(0.0))
    }

    /// Returns the mean of the observations.
    pub fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.sum.max(0.0) / self.count().max(1.0))
    }

    /// Returns the bounds of a quantile as a text.
    pub fn quantile(&self, share: f64) -> String {
        let wanted = self.count() * share;
        let is_below = |(_, count): &&(f64, f64)| *count < wanted;
        let below = self.buckets.iter().take_while(is_below).last();
        let above = self.buckets.iter().find(|bucket| !is_below(bucket));
        match (below, above) {
            (_, Some((bound, _))) if bound.is_finite() => {
                format!("≤ {}", ms(Duration::from_secs_f64(*bound)))
            }
            (Some((bound, _)), _) => format!("> {}", ms(Duration::from_secs_f64(*bound))),
            (None, _) => "–".to_owned(),
        }
    }
}
