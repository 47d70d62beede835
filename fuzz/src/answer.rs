//! Text form of answers, one item per line, so that a fuzzer's mutations change words: `node<TAB>/dev/a<TAB>/dev/a<TAB>rw`.

use leafhost_wasm::fuzzing::types::{
    Attribute, AttributeValue, Device, DeviceNode, Devices, Discovery, Health, Mount, Wake,
};

/// Upper bounds of the devices that `repeat` makes and of the text that `grow` adds, both a little above the host's limits.
const MOST: usize = 4_200;
const MOST_TEXT: usize = 9 << 20;

/// Parses an answer. Lines that are not understood are ignored.
pub fn read(lines: &str) -> Discovery {
    let mut answer = Answer::default();
    for line in lines.lines() {
        let words: Vec<String> = line.split('\t').map(unescaped).collect();
        let _ = answer.take(&words);
    }
    Discovery {
        devices: match answer.kind {
            Kind::Complete => Devices::Complete(answer.devices),
            Kind::Partial => Devices::Partial(answer.devices),
            Kind::Unchanged => Devices::Unchanged,
        },
        departed: answer.departed,
        wake: answer.wake,
        cursor: answer.cursor,
    }
}

fn unescaped(word: &str) -> String {
    word.replace("\\n", "\n")
        .replace("\\0", "\0")
        .replace("\\t", "\t")
}

#[derive(Default)]
enum Kind {
    #[default]
    Complete,
    Partial,
    Unchanged,
}

#[derive(Default)]
struct Answer {
    kind: Kind,
    devices: Vec<Device>,
    departed: Vec<String>,
    wake: Vec<Wake>,
    cursor: Option<Vec<u8>>,
    grown: usize,
}

impl Answer {
    fn take(&mut self, words: &[String]) -> Option<()> {
        let word = |index: usize| words.get(index).cloned().unwrap_or_default();
        let number = |index: usize| word(index).parse::<usize>().ok();
        match word(0).as_str() {
            "partial" => self.kind = Kind::Partial,
            "unchanged" => self.kind = Kind::Unchanged,
            "departed" => self.departed.push(word(1)),
            "wakes" => self.wake = vec![Wake::Network; number(1)?.min(MOST)],
            "cursor" => self.cursor = Some(vec![0; number(1)?.min(MOST_TEXT)]),
            "device" => self.devices.push(device(word(1))),
            "repeat" => {
                let last = self.devices.last()?.clone();
                let size = last
                    .properties
                    .iter()
                    .map(|(_, value)| value.len())
                    .sum::<usize>()
                    + 100;
                let room = (MOST_TEXT / size).min(MOST.saturating_sub(self.devices.len()));
                for n in 0..number(1)?.min(room) {
                    let id = format!("{}{n}", last.id);
                    self.devices.push(Device { id, ..last.clone() });
                }
            }
            "grow" => {
                let more = number(1)?.min(MOST_TEXT - self.grown);
                self.grown += more;
                let (_, value) = self.devices.last_mut()?.properties.last_mut()?;
                value.push_str(&"x".repeat(more));
            }
            _ => return part(self.devices.last_mut()?, &word),
        }
        Some(())
    }
}

fn device(id: String) -> Device {
    Device {
        id,
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

fn part(device: &mut Device, word: &dyn Fn(usize) -> String) -> Option<()> {
    let value = match word(0).as_str() {
        "text" => Some(AttributeValue::Text(word(2))),
        "version" => Some(AttributeValue::Version(word(2))),
        "integer" => Some(AttributeValue::Integer(word(2).parse().ok()?)),
        "boolean" => Some(AttributeValue::Boolean(word(2) == "true")),
        _ => None,
    };
    if let Some(value) = value {
        device.attributes.push(Attribute {
            name: word(1),
            value,
        });
        return Some(());
    }
    match word(0).as_str() {
        "shared" => device.shared = Some(word(1) == "true"),
        "physical" => device.physical_id = Some(word(1)),
        "property" => device.properties.push((word(1), word(2))),
        "capacity" => device.capacity.push((word(1), word(2))),
        "unhealthy" => device.health = Health::Unhealthy(word(1)),
        "unknown" => device.health = Health::Unknown,
        "mount" => device.mounts.push(Mount {
            container_path: word(1),
            host_path: word(2),
            read_only: word(3) != "rw",
        }),
        "node" => device.device_nodes.push(DeviceNode {
            container_path: word(1),
            host_path: word(2),
            permissions: word(3),
        }),
        _ => return None,
    }
    Some(())
}
