//! Allocation of a container with a ticket, or the reason for a refusal. Pure.

use leafhost_core::allocation::{Allocation as Given, Consumer, Part, Share};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::Instance;
use leafhost_core::ports::InstanceSet;
use leafhost_core::scheduling::DEVICES;
use leafhost_core::usable::{Unusable, Usable, usable};
use leafhost_kubelet::{Allocation, Refusal};

use super::model::ReservedDevices;
use crate::model::claim::given;

/// Returns what a container of the pod with this uid and name gets on a node.
pub fn allocation(
    node: &str,
    (devices, instances): (&DeviceSnapshot, &InstanceSet),
    (uid, pod): (&str, &str),
    wanted: &ReservedDevices,
) -> Result<Allocation, Refused> {
    let mut found: Vec<(Share, Usable, String)> = Vec::new();
    for (key, slot) in wanted.devices.values() {
        let gone = || Refused {
            why: Refusal::Unavailable(format!("Instance {key} is gone")),
            is_final: true,
        };
        let instance = instances.instances.get(key).ok_or_else(gone)?;
        let usable =
            usable(node, devices, instance).map_err(|unusable| refusal(instance, &unusable))?;
        let share = Share {
            instance: key.clone(),
            uid: instance.metadata.uid.clone(),
            part: Part::Slot(slot.clone()),
        };
        let hash = instance.hash().unwrap_or_default().to_owned();
        found.push((share, usable, hash));
    }
    let allocation = Given {
        consumer: Consumer::Pod(pod.to_owned(), uid.to_owned()),
        shares: found.iter().map(|(share, _, _)| share.clone()).collect(),
    };
    let edits = allocation.edits(|share| {
        let (_, usable, hash) = found.iter().find(|(other, _, _)| other == share)?;
        Some((hash.as_str(), usable))
    });
    Ok(given(edits))
}

/// Returns the error text for a call when no pod is known that could be served.
pub fn nobody() -> String {
    format!(
        "no pod that the kubelet admits has devices reserved for it: a pod with {DEVICES} must be scheduled by a scheduler that asks leafhost scheduler"
    )
}

/// Reason that a container does not get what is reserved for it.
pub struct Refused {
    /// Error for the kubelet.
    pub why: Refusal,
    /// True if waiting a little cannot change the result.
    pub is_final: bool,
}

fn refusal(instance: &Instance, unusable: &Unusable) -> Refused {
    let name = &instance.metadata.name;
    let why = Refusal::Unavailable(match unusable {
        Unusable::Unhealthy { why, .. } => {
            format!("the device of Instance {name} is unhealthy: {why}")
        }
        Unusable::Gone => format!("the device of Instance {name} is not there any more"),
        Unusable::NotSeen => {
            format!("the device of Instance {name} has not been seen since the agent started")
        }
    });
    Refused {
        why,
        is_final: !matches!(unusable, Unusable::NotSeen),
    }
}
