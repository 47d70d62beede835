//! Handlers that never answer the same twice, and handlers without faults.

use leafhost_core::device::Device;
use leafhost_core::left_out::LeftOuts;
use leafhost_core::session::{Devices as Answer, Discovery};

use super::*;
use crate::devices::{Grace, Part, SessionDevices, SourceRank, UnconfirmedDevices, merge};

/// Configuration with one session, and its published devices.
#[derive(Default)]
struct World {
    session: SessionDevices,
    bucket: Bucket,
    shown: Devices,
    grace: Grace,
    /// Number of published changes: devices that arrived, were withdrawn, went missing, returned or changed.
    changes: usize,
    /// Time in milliseconds.
    now: i64,
}

impl World {
    fn time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.now).unwrap()
    }

    /// Applies an answer of the handler, then lets `wait` pass.
    fn step(&mut self, devices: Answer, wait: Duration) {
        let discovery = Discovery {
            devices,
            departed: Vec::new(),
            left_out: LeftOuts::default(),
        };
        self.session.fold(discovery, self.grace, self.time());
        self.pass();
        let end = self.now + i64::try_from(wait.as_millis()).unwrap();
        loop {
            let dues = [self.session.deadline(self.grace), self.bucket.due()];
            let Some(then) = dues.into_iter().flatten().min() else {
                break;
            };
            if then.as_millisecond() > end {
                break;
            }
            // A past time is no longer due.
            assert!(then > self.time(), "{then} is due for ever");
            self.now = then.as_millisecond();
            self.session.expire(self.grace, then);
            self.pass();
        }
        self.now = end;
    }

    fn pass(&mut self) {
        let part = Part {
            source: "a.wasm",
            live: true,
            rank: SourceRank::default(),
            devices: &self.session,
        };
        let key = ConfigurationKey::new("default", "cams").unwrap();
        let (wanted, _) = merge(&key, vec![part], &UnconfirmedDevices::default());
        let passed = self.bucket.pass(&self.shown, wanted, self.time());
        let before = std::mem::replace(&mut self.shown, passed);
        let now = &self.shown;
        self.changes += before.keys().filter(|key| !now.contains_key(*key)).count();
        let differs = |(key, view): &(&DeviceKey, &DeviceView)| before.get(*key) != Some(*view);
        self.changes += now.iter().filter(differs).count();
    }

    fn problem(&self) -> String {
        let problem = self.bucket.problem(&leafhost_fakes::key("a"));
        problem.map_or_else(String::new, |problem| problem.to_string())
    }

    /// Returns the ids of published devices that are present.
    fn here(&self) -> Vec<&str> {
        let shown = self.shown.iter();
        let here = shown.filter(|(_, view)| view.missing_since.is_none());
        here.map(|(key, _)| key.id.as_str()).collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

fn devices(ids: impl IntoIterator<Item = String>) -> Vec<Device> {
    ids.into_iter().map(|id| Device::new(id, false)).collect()
}

fn complete(ids: &[&str]) -> Answer {
    Answer::Complete(devices(ids.iter().map(|&id| id.to_owned())))
}

/// Returns devices with ids that were never used before.
fn fresh(call: usize, count: usize) -> Vec<Device> {
    devices((0..count).map(|n| format!("{call}-{n}")))
}

#[test]
fn new_ids_at_every_call_are_few_changes() {
    // Each is a change, and another one when it goes missing before it is withdrawn.
    for (count, calls, most) in [(1, 7200, 330), (10, 7200, 650), (300, 300, 3500)] {
        let mut world = World::default();
        for call in 0..calls {
            world.step(Answer::Complete(fresh(call, count)), SECOND);
        }
        assert!(world.changes <= most, "{count}: {} changes", world.changes);
        assert!(world.shown.len() <= 2 * count, "{count}: they pile up");
        let problem = world.problem();
        assert!(problem.contains("output is unstable"), "{problem}");
    }
}

#[test]
fn many_that_come_and_go_are_some_times_as_many_changes_an_hour() {
    let ids: Vec<String> = (0..200).map(|n| format!("camera-{n}")).collect();
    let mut world = World::default();
    for call in 0..600 {
        let there = if call % 2 == 0 { &ids[..] } else { &[] };
        world.step(Answer::Complete(devices(there.to_vec())), 6 * SECOND);
    }
    // Without a bound it would be 120,000.
    assert!(world.changes <= 2_600, "{} changes", world.changes);
}

#[test]
fn once_the_ids_are_stable_they_are_passed_on_and_nothing_is_told_any_more() {
    let mut world = World::default();
    for call in 0..100 {
        world.step(Answer::Complete(fresh(call, 1)), SECOND);
    }
    world.step(complete(&["a", "b"]), 5 * MINUTE);
    assert_eq!(world.here(), ["a", "b"]);
    assert_eq!(world.shown.len(), 2);
    assert!(world.problem().contains("0 wait;"), "{}", world.problem());
    world.step(complete(&["a", "b"]), 60 * MINUTE);
    assert_eq!(world.problem(), "");
    assert_eq!(world.bucket.due(), None);
}

#[test]
fn a_device_that_comes_and_goes_is_passed_on_now_and_then_and_is_gone_in_the_end() {
    let mut world = World::default();
    for call in 0..3600 {
        world.step(complete(if call % 2 == 0 { &["a"] } else { &[] }), SECOND);
    }
    assert!(world.changes <= 210, "{} changes", world.changes);
    world.step(complete(&[]), 2 * MINUTE);
    assert!(world.shown.is_empty());
}

#[test]
fn that_a_device_is_gone_or_ill_does_not_wait() {
    let mut world = World {
        grace: Grace(Some(60 * MINUTE)),
        ..World::default()
    };
    let with = |value: usize, health: Health| {
        let mut device = Device::new("a", false);
        device.properties.insert("A".into(), value.to_string());
        device.health = health;
        Answer::Complete(vec![device])
    };
    for call in 0..200 {
        world.step(with(call, Health::Healthy), SECOND);
    }
    let held = world.shown.values().next().unwrap().clone();
    world.step(with(200, Health::Unhealthy("dark".into())), SECOND);
    let ill = world.shown.values().next().unwrap().clone();
    let (held, ill) = (held.device.unwrap(), ill.device.unwrap());
    assert_eq!(ill.health, Health::Unhealthy("dark".into()));
    assert_eq!(
        ill.properties, held.properties,
        "what has changed besides waits"
    );
    world.step(complete(&[]), SECOND);
    assert_eq!(world.here(), Vec::<&str>::new());
    // The change that has waited longest comes first.
    world.step(with(201, Health::Healthy), 2 * MINUTE);
    assert_eq!(world.here(), ["a"]);
}

#[test]
fn a_value_that_is_another_one_at_every_call_is_passed_on_now_and_then() {
    let mut world = World::default();
    let value = |world: &World| {
        let device = world.shown.values().next().unwrap().device.clone();
        device.unwrap().properties.get("A").cloned()
    };
    for call in 0..3600 {
        let mut device = Device::new("a", false);
        device.properties.insert("A".into(), call.to_string());
        world.step(Answer::Complete(vec![device]), SECOND);
    }
    assert!((100..=140).contains(&world.changes), "{}", world.changes);
    // The last change is not lost.
    world.step(Answer::Unchanged, MINUTE);
    assert_eq!(value(&world).as_deref(), Some("3599"));
}

#[test]
fn what_was_known_from_the_store_alone_is_shown_whatever_was_taken() {
    let key = Device::new("a", false).key();
    let view = |device: Option<Device>| {
        let view = DeviceView {
            device: device.map(Arc::new),
            missing_since: None,
        };
        Devices::from([(key.clone(), view)])
    };
    let mut bucket = Bucket {
        taken: 1000.0,
        ..Bucket::default()
    };
    let wanted = view(Some(Device::new("a", false)));
    let passed = bucket.pass(&view(None), wanted.clone(), Timestamp::UNIX_EPOCH);
    assert_eq!(passed, wanted);
}

#[test]
fn those_who_do_nothing_wrong_are_left_alone() {
    let ids = |ids: std::ops::Range<usize>| -> Vec<String> {
        ids.map(|n| format!("camera-{n}")).collect()
    };
    // A thousand cameras that are found in any order, not all each time.
    let mut world = World::default();
    let found: Vec<String> = ids(0..1000);
    for call in 0..4 {
        let heard = found
            .iter()
            .enumerate()
            .filter(|(n, _)| (n * 7 + call * 3) % 10 < 6);
        let heard = heard.map(|(_, id)| Device::new(id.clone(), true));
        world.step(Answer::Partial(heard.collect()), SECOND);
        assert_eq!(world.problem(), "");
    }
    assert_eq!((world.shown.len(), world.changes), (1000, 1000));
    // All go at once, and return.
    world.grace = Grace(Some(Duration::ZERO));
    world.step(complete(&[]), MINUTE);
    assert_eq!(world.here(), Vec::<&str>::new());
    world.step(Answer::Complete(devices(ids(0..1000))), MINUTE);
    assert_eq!(world.here().len(), 1000);
    assert_eq!(world.problem(), "");
    // A plug that is inserted and removed, besides another device.
    let mut world = World::default();
    for call in 0..20 {
        let plug = ["disk", "plug"];
        world.step(
            complete(if call % 2 == 0 { &plug } else { &plug[..1] }),
            SECOND,
        );
        assert_eq!(world.here().len(), 2 - call % 2);
        assert_eq!(world.shown.len(), 2 - call % 2, "{call}");
    }
    // Thirty different devices, one after the other.
    let mut world = World::default();
    for call in 0..30 {
        world.step(Answer::Complete(fresh(call, 1)), SECOND);
        assert_eq!(world.here().len(), 1, "{call}");
    }
    // A laptop that moves through five networks.
    let mut world = World::default();
    for call in 0..4 {
        world.step(Answer::Complete(fresh(call, 10)), 10 * MINUTE);
        assert_eq!(world.here().len(), 10, "{call}");
        assert_eq!(world.problem(), "");
    }
}
