//! Invalid and excessive answers.

use wasip2::clocks::monotonic_clock::now;

use crate::bindings::leafhost::discovery::types::{
    Attribute, AttributeValue, Device, DeviceNode, Devices, Discovery, DiscoveryError, Health,
    Mount, MulticastFilter, Problem, Wake,
};

/// Returns a device with nothing but an ID.
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

/// Returns an answer with these devices and this cursor that wakes after a second.
pub fn with(devices: Vec<Device>, cursor: impl Into<Vec<u8>>) -> Discovery {
    Discovery {
        devices: Devices::Complete(devices),
        departed: Vec::new(),
        wake: vec![Wake::After(1000)],
        cursor: Some(cursor.into()),
    }
}

/// Returns the answer with one good device.
pub fn good() -> Discovery {
    with(vec![device("good")], *b"good")
}

/// Returns the answer of the first call, good for most actions.
pub fn first(action: &str) -> Discovery {
    match action {
        "unchanged" => unchanged(),
        _ => good(),
    }
}

/// Returns the answer for an action; `None` if it is not an answer.
pub fn answer(
    action: &str,
    argument: &str,
    _cursor: &[u8],
) -> Option<Result<Discovery, DiscoveryError>> {
    if let Some(device) = broken(action, argument) {
        return Some(Ok(with(vec![device, self::device("good")], "")));
    }
    if let Some(answer) = crate::devices::answer(action) {
        return Some(Ok(answer));
    }
    Some(Ok(match action {
        "good" => good(),
        "many" => with((0..5000).map(|n| device(format!("dev-{n}"))).collect(), ""),
        "large" => with((0..400).map(|n| wordy(&format!("dev-{n}"))).collect(), ""),
        "unchanged" => unchanged(),
        "new-ids" => with(new_ids(argument), ""),
        "partial-new-ids" => Discovery {
            devices: Devices::Partial(new_ids(argument)),
            ..good()
        },
        "partial" => Discovery {
            devices: Devices::Partial(vec![device("good")]),
            ..good()
        },
        "new-values" => with(
            vec![Device {
                properties: vec![("HOSTILE_TIME".to_owned(), now().to_string())],
                ..device("good")
            }],
            "",
        ),
        "comes-and-goes" => with(
            if (now() / 1_000_000_000).is_multiple_of(2) {
                vec![device("good")]
            } else {
                Vec::new()
            },
            "",
        ),
        "departs" => Discovery {
            departed: (0..4000)
                .map(|n| format!("dev-{n}"))
                .chain([String::new(), "good".to_owned()])
                .collect(),
            ..with(vec![device("mine")], "")
        },
        "departs-too-many" => Discovery {
            departed: (0..5000).map(|n| format!("dev-{n}")).collect(),
            ..good()
        },
        "cursor" => with(vec![device("good")], vec![7; 10_000_000]),
        "wake-at-once" => Discovery {
            wake: vec![Wake::After(0)],
            ..good()
        },
        "million-wakes" => Discovery {
            wake: (0..1_000_000).map(|_| Wake::Network).collect(),
            ..good()
        },
        "filters" => Discovery {
            wake: (0..60)
                .map(|n| {
                    Wake::Multicast(MulticastFilter {
                        group: "239.255.255.250".to_owned(),
                        port: 3702,
                        contains: vec![vec![n; 64]; 8],
                    })
                })
                .chain([Wake::After(1000)])
                .collect(),
            ..good()
        },
        "unavailable" => {
            return Some(Err(DiscoveryError::Unavailable("not ".repeat(1 << 20))));
        }
        "invalid" => {
            let problem = Problem {
                path: "p\n".repeat(1000),
                message: "no such thing\0".repeat(1000),
            };
            return Some(Err(DiscoveryError::InvalidDetails(vec![problem; 200])));
        }
        _ => return None,
    }))
}

/// Returns the answer "unchanged".
fn unchanged() -> Discovery {
    Discovery {
        devices: Devices::Unchanged,
        ..good()
    }
}

/// Returns `count` devices with new IDs.
fn new_ids(count: &str) -> Vec<Device> {
    let (now, count) = (now(), count.parse().unwrap_or(1));
    (0..count)
        .map(|n| device(format!("new-{now}-{n}")))
        .collect()
}

/// Returns a device with nearly the most text allowed.
fn wordy(id: &str) -> Device {
    Device {
        properties: vec![("HOSTILE_TEXT".to_owned(), "x".repeat(52 << 10))],
        ..device(id)
    }
}

/// Returns a device that breaks a rule; `argument` is the invalid value where there is one.
fn broken(action: &str, argument: &str) -> Option<Device> {
    let mut broken = device("broken");
    let value = argument
        .replace("\\n", "\n")
        .replace("\\0", "\0")
        .replace("\\e", "");
    match action {
        "id" => broken.id = value,
        "long-id" => broken.id = "x".repeat(1 << 20),
        "twice" => "good".clone_into(&mut broken.id),
        "physical-id" => broken.physical_id = Some(value),
        "name" => broken.properties = vec![(value, String::new())],
        "value" => broken.properties = vec![("HOSTILE_VALUE".to_owned(), value)],
        "same-name" => {
            broken.properties = vec![("HOSTILE_A".to_owned(), String::new()); 2];
        }
        "mount" => {
            let (host_path, container_path) = value.split_once(' ')?;
            broken.mounts = vec![Mount {
                container_path: container_path.to_owned(),
                host_path: host_path.to_owned(),
                read_only: true,
            }];
        }
        "node" => {
            let (host_path, container_path) = value.split_once(' ')?;
            broken.device_nodes = vec![DeviceNode {
                container_path: container_path.to_owned(),
                host_path: host_path.to_owned(),
                permissions: "rw".to_owned(),
            }];
        }
        "attribute" => {
            broken.attributes = vec![Attribute {
                name: value,
                value: AttributeValue::Boolean(true),
            }];
        }
        "attribute-text" => {
            broken.attributes = vec![Attribute {
                name: "text".to_owned(),
                value: AttributeValue::Text("x".repeat(65)),
            }];
        }
        "attributes" => {
            broken.attributes = (0..33)
                .map(|n| Attribute {
                    name: format!("a{n}"),
                    value: AttributeValue::Integer(n),
                })
                .collect();
        }
        "capacity" => broken.capacity = vec![("memory".to_owned(), value)],
        _ => return None,
    }
    Some(broken)
}
