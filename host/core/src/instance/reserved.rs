//! What a scheduler says of a slot that it gives to a pod.

use serde::{Deserialize, Serialize};

/// The most containers of a pod that use one slot.
pub const MAX_USES: usize = 32;

/// Says for which pod a scheduler has chosen a slot, and for which of its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// The places of all containers of the pod that get devices, of this Instance or of others.
    #[serde(default)]
    pub places: Vec<u32>,
    /// The containers that get the device: one, or init containers and one that starts after them.
    #[serde(default)]
    pub uses: Vec<Use>,
}

/// Says that a container gets a device for a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// The name of the container.
    pub container: String,
    /// Where it is among the containers of the pod, init containers first.
    pub place: u32,
    /// Where the device is among those of the container.
    pub number: u32,
    /// How many devices the container gets.
    pub of: u32,
    /// The request, behind it the way that was chosen, if there are several: `<request>[/<way>]`.
    pub request: String,
}
