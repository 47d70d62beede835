//! How the devices of a Configuration are given to pods.

use std::collections::BTreeMap;

use super::FieldProblem;

/// The annotation that says how: `device-plugin` or `dra`.
pub const ALLOCATION_ANNOTATION: &str = "leafhost.dev/allocation";
/// The annotation that says whether pods are evicted whose device does not work: `true` or `false`.
pub const EVICT_ANNOTATION: &str = "leafhost.dev/evict";

/// The part that gives the devices of a Configuration to pods. No device has two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// The kubelet's device plugins.
    #[default]
    DevicePlugin,
    /// Dynamic Resource Allocation: the scheduler chooses the device.
    Dra,
}

impl Backend {
    /// Returns what annotations say, where they can be read.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        let text = annotations.get(ALLOCATION_ANNOTATION);
        text.and_then(|text| Self::parse(text).ok())
            .unwrap_or_default()
    }

    /// Reads the annotation's value.
    pub fn parse(text: &str) -> Result<Self, FieldProblem> {
        match text {
            "device-plugin" => Ok(Self::DevicePlugin),
            "dra" => Ok(Self::Dra),
            _ => Err(FieldProblem::new(
                format!("metadata.annotations.{ALLOCATION_ANNOTATION}"),
                format!("is {text:?}, must be \"device-plugin\" or \"dra\""),
            )),
        }
    }
}

/// Reads the value of [`EVICT_ANNOTATION`]. It is about devices that the scheduler gives: device plugins evict nobody.
pub fn parse_evict(text: &str, backend: Backend) -> Result<bool, FieldProblem> {
    let problem = |message: String| {
        let path = format!("metadata.annotations.{EVICT_ANNOTATION}");
        Err(FieldProblem::new(path, message))
    };
    match (text, backend) {
        ("false", _) => Ok(false),
        ("true", Backend::Dra) => Ok(true),
        ("true", Backend::DevicePlugin) => problem(format!(
            "needs {ALLOCATION_ANNOTATION}: dra; add it, or remove this one"
        )),
        _ => problem(format!("is {text:?}, must be \"true\" or \"false\"")),
    }
}
