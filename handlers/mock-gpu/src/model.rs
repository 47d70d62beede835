//! `discoveryDetails` of the GPUs, and their limits.

use std::fmt;

use leafhost_sdk::check::{is_quantity, is_version};
use leafhost_sdk::serde::de::{
    self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer,
};
use leafhost_sdk::{Deserialize, Problem};

/// Maximum number of GPUs per node: the default maximum of devices in an answer.
const MAX_COUNT: u32 = 4_096;
/// Maximum number of bytes in the text of an attribute.
const MAX_TEXT: usize = 64;

/// `discoveryDetails`; all fields are optional.
#[leafhost_sdk::details]
#[derive(Debug)]
#[serde(default)]
pub struct Details {
    /// Number of GPUs of the node.
    pub count: u32,
    /// Model name of the GPUs.
    pub model: String,
    /// Memory of each GPU, a Kubernetes quantity.
    pub memory: String,
    /// Driver version, a semantic version.
    pub driver_version: String,
    /// NUMA nodes to which the GPUs are assigned in turn; if empty, the GPUs have none.
    pub numa_nodes: Vec<u32>,
    /// GPUs that do not work.
    pub unhealthy: Vec<Unhealthy>,
}

impl Default for Details {
    fn default() -> Self {
        Self {
            count: 4,
            model: "LATEST-GPU-MODEL".to_owned(),
            memory: "80Gi".to_owned(),
            driver_version: "1.0.0".to_owned(),
            numa_nodes: Vec::new(),
            unhealthy: Vec::new(),
        }
    }
}

/// GPU that does not work: `2`, or `{index: 2, reason: fan stuck}`.
#[derive(Debug)]
pub struct Unhealthy {
    /// Index of the GPU.
    pub index: u32,
    /// Reason of the failure.
    pub reason: String,
}

impl<'de> Deserialize<'de> for Unhealthy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnhealthyVisitor)
    }
}

struct UnhealthyVisitor;

impl<'de> Visitor<'de> for UnhealthyVisitor {
    type Value = Unhealthy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an index, or {index: 2, reason: fan stuck}")
    }

    fn visit_u64<E: de::Error>(self, index: u64) -> Result<Unhealthy, E> {
        let unexpected = de::Unexpected::Unsigned(index);
        Ok(Unhealthy {
            index: u32::try_from(index).map_err(|_| E::invalid_value(unexpected, &self))?,
            reason: unhealthy_for_no_reason(),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Unhealthy, A::Error> {
        #[leafhost_sdk::details]
        struct Entry {
            index: u32,
            #[serde(default = "unhealthy_for_no_reason")]
            reason: String,
        }
        let entry = Entry::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Unhealthy {
            index: entry.index,
            reason: entry.reason,
        })
    }
}

fn unhealthy_for_no_reason() -> String {
    "listed in unhealthy".to_owned()
}

/// Checks the details against the bounds and formats that the host accepts.
pub fn problems(details: &Details) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut expect = |good: bool, path: &str, message: String| {
        if !good {
            problems.push(Problem::new(path, message));
        }
    };
    let Details {
        count,
        model,
        memory,
        driver_version,
        ..
    } = details;
    expect(
        *count <= MAX_COUNT,
        "count",
        format!("is {count}, must be at most {MAX_COUNT}"),
    );
    expect(
        (1..=MAX_TEXT).contains(&model.len()) && !model.contains('\0'),
        "model",
        format!("must be 1 to {MAX_TEXT} bytes without NUL"),
    );
    expect(
        is_quantity(memory) && !memory.starts_with('-'),
        "memory",
        format!("is {memory:?}, must be a Kubernetes quantity such as 80Gi"),
    );
    expect(
        is_version(driver_version),
        "driverVersion",
        format!("is {driver_version:?}, must be a semantic version such as 1.0.0"),
    );
    for (place, gpu) in details.unhealthy.iter().enumerate() {
        let index = gpu.index;
        expect(
            index < *count,
            &format!("unhealthy[{place}]"),
            format!("is {index}, but the indexes of {count} GPUs end before {count}"),
        );
    }
    problems
}

#[cfg(test)]
mod tests {
    use crate::MockGpu;
    use leafhost_sdk::testing::validate;

    #[test]
    fn the_invalid_field_is_reported() {
        for (details, path) in [
            ("count: -1", "count"),
            ("count: 4097", "count"),
            ("count: four", "count"),
            ("model: ''", "model"),
            ("memory: 80 GB", "memory"),
            ("memory: -1Gi", "memory"),
            ("driverVersion: '1.0'", "driverVersion"),
            ("numaNodes: 0", "numaNodes"),
            ("numaNodes: [0, -1]", "numaNodes[1]"),
            ("unhealthy: 1", "unhealthy"),
            ("unhealthy: [0, 4]", "unhealthy[1]"),
            ("unhealthy: [0, fan]", "unhealthy[1]"),
            ("unhealthy: [4294967296]", "unhealthy[0]"),
            ("unhealthy: [{index: 9}]", "unhealthy[0]"),
            ("unhealthy: [{index: 1, why: hot}]", "unhealthy[0].why"),
            ("unhealthy: [{reason: hot}]", "unhealthy[0].index"),
            (
                "unhealthy: [{index: 1, reason: [hot]}]",
                "unhealthy[0].reason",
            ),
        ] {
            let problems = validate::<MockGpu>(details);
            assert_eq!(problems.len(), 1, "{details}");
            assert_eq!(problems[0].path, path, "{details}: {}", problems[0]);
        }
    }

    #[test]
    fn all_invalid_fields_are_reported_at_once() {
        let problems = validate::<MockGpu>("{count: 5000, memory: lots, driverVersion: new}");
        let paths: Vec<_> = problems
            .iter()
            .map(|problem| problem.path.as_str())
            .collect();
        assert_eq!(paths, ["count", "memory", "driverVersion"]);
    }
}
