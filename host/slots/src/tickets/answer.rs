//! Allocation of a container with a ticket, or the reason for a refusal. Pure.

use std::collections::BTreeMap;

use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::edits::Edits;
use leafhost_core::ports::InstanceSet;
use leafhost_core::scheduling::DEVICES;
use leafhost_core::usable::{Unusable, usable};
use leafhost_kubelet::{Allocation, Refusal};

use super::model::ReservedDevices;
use crate::model::claim::given;

/// Returns the allocation of a container on a node from its reserved devices.
pub fn allocation(
    node: &str,
    (devices, instances): (&DeviceSnapshot, &InstanceSet),
    wanted: &ReservedDevices,
) -> Result<Allocation, Refused> {
    let mut all = Edits::default();
    for (key, _) in wanted.devices.values() {
        let instance = instances.instances.get(key).ok_or_else(|| Refused {
            why: Refusal::Unavailable(format!("Instance {key} is gone")),
            is_final: true,
        })?;
        let usable = usable(node, devices, instance).map_err(|unusable| Refused {
            why: Refusal::Unavailable(unusable.describe(&instance.metadata.name)),
            is_final: !matches!(unusable, Unusable::NotSeen),
        })?;
        all.add(usable.edits(instance, &BTreeMap::new()));
    }
    Ok(given(all))
}

/// Returns the error text for a call when no pod is known that could be served.
pub fn nobody() -> String {
    format!(
        "no pod that the kubelet admits has devices reserved for it: a pod with {DEVICES} must be scheduled by a scheduler that asks leafhost scheduler"
    )
}

/// Reason why a container does not get its reserved devices.
pub struct Refused {
    /// Error for the kubelet.
    pub why: Refusal,
    /// True if waiting a little cannot change the result.
    pub is_final: bool,
}
