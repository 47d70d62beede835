//! Answers no handler should give.

use crate::bindings::leafhost::discovery::types::{
    Device, Devices, Discovery, DiscoveryError, Health, Wake,
};

/// A device of that id and nothing else.
pub fn device(id: impl Into<String>) -> Device {
    Device {
        id: id.into(),
        shared: None,
        physical_id: None,
        properties: Vec::new(),
        mounts: Vec::new(),
        device_nodes: Vec::new(),
        attributes: Vec::new(),
        capacity: Vec::new(),
        health: Health::Healthy,
    }
}

/// Those devices, to be called again in a second with that cursor.
pub fn with(devices: Vec<Device>, cursor: impl Into<Vec<u8>>) -> Discovery {
    Discovery {
        devices: Devices::Complete(devices),
        departed: Vec::new(),
        wake: vec![Wake::After(1000)],
        cursor: Some(cursor.into()),
    }
}

/// The good device.
pub fn good() -> Discovery {
    with(vec![device("good")], *b"good")
}

/// The answer that `deed` is; none: it is something to do.
pub fn answer(
    deed: &str,
    _argument: &str,
    _cursor: &[u8],
) -> Option<Result<Discovery, DiscoveryError>> {
    Some(Ok(match deed {
        "good" => good(),
        "many" => with((0..5000).map(|n| device(format!("dev-{n}"))).collect(), ""),
        _ => return None,
    }))
}
