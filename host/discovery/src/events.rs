//! Logs changes of a Configuration's devices: one line when a device arrives, is missing, returns, is withdrawn, or changes its health, and
//! one line for each reason for which devices are left out.
//!
//! Pure except for the logging; time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::later;
use leafhost_core::device::{DeviceKey, Health};
use leafhost_core::device_view::DeviceView;
use leafhost_core::left_out::LeftOut;
use leafhost_core::names::ConfigurationKey;

use crate::devices::Grace;

/// Maximum number of log lines of a Configuration in each [`WINDOW`]; one more line says that there are others.
const LINES: usize = 20;
const WINDOW: Duration = Duration::from_secs(10);

type Devices = BTreeMap<DeviceKey, DeviceView>;

/// Change of a device, to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// Log message.
    what: &'static str,
    /// Id of the device.
    device: String,
    why: String,
}

/// Returns the changes between two lists of devices. `gone` is the reason for devices that are withdrawn before the end of their grace
/// period.
pub(super) fn changes(
    old: &Devices,
    new: &Devices,
    grace: Grace,
    now: Timestamp,
    gone: &str,
) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |key: &DeviceKey, what, why: &str| {
        events.push(Event {
            what,
            device: key.id.clone(),
            why: why.to_owned(),
        });
    };
    for (key, view) in new {
        let before = old.get(key);
        // A device that only the store knows arrived in an earlier run.
        if before.is_none() && view.device.is_some() {
            add(key, "device arrived", "its handler reports it");
        }
        let was_missing = before.and_then(|view| view.missing_since);
        match (was_missing, view.missing_since) {
            (None, Some(_)) if before.is_some() => {
                let seconds = grace.of(key.shared).as_secs();
                let why =
                    format!("its handler no longer reports it; it is withdrawn after {seconds} s");
                add(key, "device is missing", &why);
            }
            (Some(_), None) => add(key, "device returned", "its handler reports it again"),
            _ => {}
        }
        let before = before.and_then(|view| view.device.as_ref());
        let before = before.map_or(&Health::Healthy, |device| &device.health);
        match (before, view.device.as_ref().map(|device| &device.health)) {
            (Health::Healthy | Health::Unknown, Some(Health::Unhealthy(why))) => {
                add(key, "device is unhealthy", why);
            }
            (Health::Unhealthy(_), Some(Health::Healthy)) => {
                add(key, "device is healthy again", "its handler says so");
            }
            (Health::Unhealthy(_), Some(Health::Unknown)) => {
                add(key, "device is of unknown health", "its handler says so");
            }
            _ => {}
        }
    }
    for (key, view) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
        let over = view
            .missing_since
            .is_some_and(|since| grace.end(key.shared, since) <= now);
        if over {
            let why = format!("it was missing for {} s", grace.of(key.shared).as_secs());
            add(key, "device withdrawn", &why);
        } else {
            add(key, "device withdrawn", gone);
        }
    }
    events
}

/// Returns an event for each reason that is in `new` and not in `old`, with its first device. Reasons that differ only in paths count as
/// equal.
pub(super) fn left_out(old: &[LeftOut], new: &[LeftOut]) -> Vec<Event> {
    let reason = |one: &LeftOut| {
        let words = one.reason.split(' ').filter(|word| !word.starts_with('/'));
        words.collect::<Vec<_>>().join(" ")
    };
    let mut reasons: BTreeMap<String, (&LeftOut, usize)> = BTreeMap::new();
    for one in new {
        reasons.entry(reason(one)).or_insert((one, 0)).1 += 1;
    }
    for one in old {
        reasons.remove(&reason(one));
    }
    let event = |(first, number): (&LeftOut, usize)| Event {
        what: "device left out",
        device: first.id.clone(),
        why: match number - 1 {
            0 => first.reason.clone(),
            more => format!("{}; so are {more} more, see the status", first.reason),
        },
    };
    reasons.into_values().map(event).collect()
}

/// Rate-limited log of a Configuration.
#[derive(Debug, Default)]
pub(super) struct Log {
    since: Option<Timestamp>,
    /// Number of events in this window, written or not.
    events: usize,
}

impl Log {
    /// Writes the events that the limit admits.
    pub fn write(
        &mut self,
        configuration: &ConfigurationKey,
        mut events: Vec<Event>,
        now: Timestamp,
    ) {
        let is_over = self.admit(&mut events, now);
        for Event { what, device, why } in events {
            tracing::info!(%configuration, device, why, "{what}");
        }
        if is_over {
            let seconds = WINDOW.as_secs();
            tracing::info!(%configuration, seconds, "further events of devices are not logged in this time; see the status");
        }
    }

    /// Keeps the events to write; returns true if the limit of the window is exceeded for the first time.
    fn admit(&mut self, events: &mut Vec<Event>, now: Timestamp) -> bool {
        if events.is_empty() {
            return false;
        }
        if self.since.is_none_or(|since| later(since, WINDOW) <= now) {
            *self = Self {
                since: Some(now),
                events: 0,
            };
        }
        let room = LINES.saturating_sub(self.events);
        let was_over = self.events > LINES;
        self.events = self.events.saturating_add(events.len());
        events.truncate(room);
        self.events > LINES && !was_over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leafhost_core::device::Device;

    use super::*;

    const GRACE: Grace = Grace(Some(Duration::from_mins(5)));

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns a device list: `-` is empty, `stored` is a device that only the store knows, any other word is its health; `?` marks it as
    /// missing since 0.
    fn devices(text: &str) -> Devices {
        let (health, missing) = match text.strip_suffix('?') {
            Some(health) => (health, true),
            None => (text, false),
        };
        let mut device = Device::new("camera-3", true);
        device.health = match health {
            "-" => return Devices::new(),
            "unknown" => Health::Unknown,
            "fine" | "stored" => Health::Healthy,
            why => Health::Unhealthy(why.to_owned()),
        };
        let view = DeviceView {
            device: (health != "stored").then(|| Arc::new(device.clone())),
            missing_since: missing.then(|| at(0)),
        };
        [(device.key(), view)].into()
    }

    #[test]
    fn every_change_that_matters_is_an_event_with_its_cause() {
        let missing =
            "device is missing: its handler no longer reports it; it is withdrawn after 300 s";
        let table: [(&str, &str, i64, &[&str]); 18] = [
            ("-", "fine", 0, &["device arrived: its handler reports it"]),
            (
                "-",
                "no light",
                0,
                &[
                    "device arrived: its handler reports it",
                    "device is unhealthy: no light",
                ],
            ),
            ("-", "stored", 0, &[]),
            ("-", "stored?", 0, &[]),
            ("stored", "fine", 0, &[]),
            ("stored", "no light", 0, &["device is unhealthy: no light"]),
            ("stored", "stored?", 0, &[missing]),
            ("fine", "fine", 0, &[]),
            ("fine", "fine?", 0, &[missing]),
            ("fine?", "fine?", 9, &[]),
            (
                "fine?",
                "fine",
                0,
                &["device returned: its handler reports it again"],
            ),
            (
                "fine?",
                "-",
                300,
                &["device withdrawn: it was missing for 300 s"],
            ),
            ("fine?", "-", 299, &["device withdrawn: gone"]),
            ("fine", "-", 900, &["device withdrawn: gone"]),
            ("fine", "no light", 0, &["device is unhealthy: no light"]),
            ("no light", "no image", 0, &[]),
            (
                "no light",
                "fine",
                0,
                &["device is healthy again: its handler says so"],
            ),
            (
                "no light",
                "unknown",
                0,
                &["device is of unknown health: its handler says so"],
            ),
        ];
        for (old, new, second, expected) in table {
            let events = changes(&devices(old), &devices(new), GRACE, at(second), "gone");
            assert!(events.iter().all(|event| event.device == "camera-3"));
            let texts: Vec<String> = events
                .iter()
                .map(|event| format!("{}: {}", event.what, event.why))
                .collect();
            assert_eq!(texts, expected, "{old} -> {new}");
        }
    }

    #[test]
    fn each_new_reason_for_leaving_devices_out_is_one_event() {
        let out = |id: &str, reason: &str| LeftOut {
            id: id.to_owned(),
            reason: reason.to_owned(),
        };
        let new = [
            out("1", "/dev/tty1 is not granted"),
            out("2", "/dev/tty2 is not granted"),
            out("3", "property A is not granted"),
        ];
        let texts = |old: &[LeftOut]| -> Vec<String> {
            let events = left_out(old, &new).into_iter();
            events
                .map(|event| format!("{}: {}", event.device, event.why))
                .collect()
        };
        assert_eq!(
            texts(&[]),
            [
                "1: /dev/tty1 is not granted; so are 1 more, see the status",
                "3: property A is not granted"
            ]
        );
        assert_eq!(
            texts(&[out("9", "/dev/tty9 is not granted")]),
            ["3: property A is not granted"]
        );
        assert_eq!(texts(&new), [""; 0]);
    }

    #[test]
    fn ten_thousand_events_are_twenty_lines_and_a_remark() {
        let event = Event {
            what: "device arrived",
            device: "d".to_owned(),
            why: String::new(),
        };
        let mut log = Log::default();
        let mut admitted = |number, second| {
            let mut events = vec![event.clone(); number];
            let is_over = log.admit(&mut events, at(second));
            (events.len(), is_over)
        };
        assert_eq!(admitted(1, 0), (1, false));
        assert_eq!(admitted(10_000, 1), (19, true));
        assert_eq!(admitted(10_000, 9), (0, false));
        assert_eq!(admitted(20, 10), (20, false));
        assert_eq!(admitted(1, 11), (0, true));
    }
}
