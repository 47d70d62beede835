//! Reservation of a slot by a scheduler.

use serde::{Deserialize, Serialize};

/// Maximum number of containers of a pod that use one slot.
pub const MAX_USES: usize = 32;

/// Pod for which a scheduler has reserved a slot, and the containers of the pod that use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// Namespace and name of the pod: `namespace/name`.
    pub pod: String,
    /// Positions of all containers of the pod that get devices, of this Instance or of others.
    #[serde(default)]
    pub places: Vec<u32>,
    /// Containers that get the device: a single one, or init containers and one container that starts after them.
    #[serde(default)]
    pub uses: Vec<Use>,
}

/// Use of a device by a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// Name of the container.
    pub container: String,
    /// Position of the container in the pod, init containers first.
    pub place: u32,
    /// Position of the device among those of the container.
    pub number: u32,
    /// Number of devices that the container gets.
    pub of: u32,
    /// Name of the request, with the chosen alternative if there are several: `<request>[/<alternative>]`.
    pub request: String,
}
