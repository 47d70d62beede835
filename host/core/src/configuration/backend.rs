//! How the devices of a Configuration are given to pods.

use super::FieldProblem;

/// The annotation that says how: `device-plugin` or `dra`.
pub const ALLOCATION_ANNOTATION: &str = "leafhost.dev/allocation";

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
