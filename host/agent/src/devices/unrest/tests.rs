//! Handlers that never answer the same twice, and those that do nothing wrong.

use jiff::Timestamp;
use leafhost_core::device::Device;
use leafhost_core::left_out::LeftOuts;
use leafhost_core::session::{Devices, Discovery};

use super::*;
use crate::devices::{Grace, SessionDevices};

/// A session, and what it caused.
#[derive(Default)]
struct World {
    session: SessionDevices,
    grace: Grace,
    /// Devices that came up or were withdrawn.
    writes: usize,
    /// The time, in milliseconds.
    now: i64,
}

impl World {
    fn time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.now).unwrap()
    }

    /// The handler answers, then this much time passes.
    fn step(&mut self, devices: Devices, wait: Duration) {
        let before: Vec<_> = self.keys();
        let discovery = Discovery {
            devices,
            departed: Vec::new(),
            left_out: LeftOuts::default(),
        };
        self.session.fold(discovery, self.grace, self.time());
        self.count(&before);
        let end = self.now + i64::try_from(wait.as_millis()).unwrap();
        while let Some(then) = self.session.deadline(self.grace)
            && then.as_millisecond() <= end
        {
            // What is past is due no more.
            assert!(then > self.time(), "{then} is due for ever");
            self.now = then.as_millisecond();
            let before = self.keys();
            self.session.expire(self.grace, then);
            self.count(&before);
        }
        self.now = end;
    }

    fn keys(&self) -> Vec<DeviceKey> {
        self.session.tracked().keys().cloned().collect()
    }

    fn count(&mut self, before: &[DeviceKey]) {
        let after = self.keys();
        self.writes += before.iter().filter(|key| !after.contains(key)).count();
        self.writes += after.iter().filter(|key| !before.contains(key)).count();
    }

    fn held_back(&self) -> String {
        self.session.held_back().join("; ")
    }

    /// The ids of those that are there, missing ones aside.
    fn here(&self) -> Vec<&str> {
        let tracked = self.session.tracked().iter();
        let here = tracked.filter(|(_, tracked)| tracked.missing_since.is_none());
        here.map(|(key, _)| key.id.as_str()).collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

fn devices(ids: impl IntoIterator<Item = String>) -> Vec<Device> {
    ids.into_iter().map(|id| Device::new(id, false)).collect()
}

fn complete(ids: &[&str]) -> Devices {
    Devices::Complete(devices(ids.iter().map(|&id| id.to_owned())))
}

/// Ids that were never there before.
fn fresh(call: usize, count: usize) -> Vec<Device> {
    devices((0..count).map(|n| format!("{call}-{n}")))
}

#[test]
fn new_ids_at_every_call_are_few_writes_and_the_devices_stay() {
    for (count, calls, most) in [(1, 7200, 300), (10, 7200, 400), (300, 300, 2600)] {
        let mut world = World::default();
        for call in 0..calls {
            world.step(Devices::Complete(fresh(call, count)), SECOND);
        }
        assert!(world.writes <= most, "{count}: {} writes", world.writes);
        assert!(world.keys().len() >= count, "{count}: nothing is left");
        assert!(
            world.held_back().contains("new ids"),
            "{}",
            world.held_back()
        );
    }
}

#[test]
fn new_ids_whenever_it_was_calm_are_few_writes_too() {
    let mut world = World::default();
    for call in 0..24 * 60 {
        world.step(Devices::Complete(fresh(call, 10)), MINUTE + SECOND);
    }
    // All of them would be 28,800.
    assert!(world.writes <= 3000, "{} writes", world.writes);
}

#[test]
fn once_the_ids_are_stable_they_are_passed_on() {
    let mut world = World::default();
    for call in 0..100 {
        world.step(Devices::Complete(fresh(call, 1)), SECOND);
    }
    world.step(complete(&["a", "b"]), SECOND);
    assert_eq!(world.here(), Vec::<&str>::new());
    world.step(complete(&["a", "b"]), MINUTE);
    assert_eq!(world.keys().len(), 2);
    assert_eq!(world.here(), ["a", "b"]);
    assert_eq!(world.held_back(), "");
}

#[test]
fn another_handler_or_configuration_begins_anew() {
    let mut world = World::default();
    for call in 0..100 {
        world.step(Devices::Complete(fresh(call, 1)), SECOND);
    }
    world.session.calm(4096);
    world.step(complete(&["a"]), SECOND);
    assert_eq!((world.here(), world.keys().len()), (vec!["a"], 1));
}

#[test]
fn partial_answers_fill_a_session_up_to_its_limit() {
    let mut world = World::default();
    world.session.calm(100);
    for call in 0..50 {
        world.step(Devices::Partial(fresh(call, 7)), SECOND);
    }
    assert_eq!(world.keys().len(), 100);
    assert!(
        world.held_back().contains("limits.devices"),
        "{}",
        world.held_back()
    );
}

#[test]
fn a_device_that_comes_and_goes_is_withdrawn_more_slowly() {
    let mut world = World::default();
    for call in 0..3600 {
        world.step(complete(if call % 2 == 0 { &["a"] } else { &[] }), SECOND);
    }
    assert!(world.writes <= 30, "{} writes", world.writes);
    assert!(
        world.held_back().contains("comes and goes"),
        "{}",
        world.held_back()
    );
    world.step(complete(&[]), MINUTE);
    assert_eq!(world.keys(), []);
}

#[test]
fn a_value_that_is_another_one_at_every_call_is_passed_on_now_and_then() {
    let mut world = World::default();
    let mut changes = 0;
    let mut last = String::new();
    let value = |world: &World| {
        let mut tracked = world.session.tracked().values();
        tracked.next().unwrap().device.properties.get("A").cloned()
    };
    for call in 0..3600 {
        let mut device = Device::new("a", false);
        device.properties.insert("A".into(), call.to_string());
        world.step(Devices::Complete(vec![device]), SECOND);
        let now = value(&world).unwrap();
        changes += usize::from(std::mem::replace(&mut last, now.clone()) != now);
    }
    assert!((60..=75).contains(&changes), "{changes} changes");
    assert!(
        world.held_back().contains("change"),
        "{}",
        world.held_back()
    );
    // The last one is not forgotten.
    world.step(Devices::Unchanged, MINUTE);
    assert_eq!(value(&world).as_deref(), Some("3599"));
    assert_eq!(world.held_back(), "");
}

#[test]
fn those_who_do_nothing_wrong_are_left_alone() {
    let ids = |ids: std::ops::Range<usize>| -> Vec<String> {
        ids.map(|n| format!("camera-{n}")).collect()
    };
    // A thousand cameras that are found in any order, not all each time.
    let mut world = World::default();
    let found: Vec<String> = ids(0..1000);
    for call in 0..60 {
        let heard = found
            .iter()
            .enumerate()
            .filter(|(n, _)| (n * 7 + call * 3) % 10 < 6);
        let heard = heard.map(|(_, id)| Device::new(id.clone(), true));
        world.step(Devices::Complete(heard.collect()), SECOND);
        assert_eq!(world.held_back(), "");
    }
    assert_eq!((world.keys().len(), world.writes), (1000, 1000));
    // All go at once, and come again.
    world.grace = Grace(Some(Duration::ZERO));
    for _ in 0..3 {
        world.step(complete(&[]), MINUTE);
        assert_eq!(world.keys(), []);
        world.step(Devices::Complete(devices(ids(0..1000))), MINUTE);
        assert_eq!(world.here().len(), 1000);
        assert_eq!(world.held_back(), "");
    }
    // A plug that is put in and pulled out, beside others.
    let mut world = World::default();
    for call in 0..20 {
        let plug = ["disk", "plug"];
        world.step(
            complete(if call % 2 == 0 { &plug } else { &plug[..1] }),
            SECOND,
        );
        assert_eq!(world.here().len(), 2 - call % 2);
        assert_eq!(world.keys().len(), 2 - call % 2, "{call}");
    }
    // Thirty different ones, one after the other.
    let mut world = World::default();
    for call in 0..30 {
        world.step(Devices::Complete(fresh(call, 1)), SECOND);
        assert_eq!(world.here().len(), 1, "{call}");
    }
    // A laptop that is carried through five networks.
    let mut world = World::default();
    for call in 0..4 {
        world.step(Devices::Complete(fresh(call, 10)), 10 * MINUTE);
        assert_eq!(world.here().len(), 10, "{call}");
        assert_eq!(world.held_back(), "");
    }
}
