//! Tests of answers and grace.

use std::iter;

use super::*;
use leafhost_core::left_out::{LeftOut, LeftOuts};

const DEFAULTS: Grace = Grace(None);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn local(id: &str) -> Device {
    Device::new(id, false)
}

fn shared(id: &str) -> Device {
    Device::new(id, true)
}

fn answer(devices: Devices) -> Discovery {
    Discovery {
        devices,
        departed: Vec::new(),
        left_out: LeftOuts::default(),
    }
}

/// Returns a single device that was left out, with a shortened id.
fn left_out(id: &str) -> LeftOuts {
    let mut left_out = LeftOuts::default();
    left_out.add(id, || LeftOut {
        id: id.chars().take(256).collect(),
        reason: "property".into(),
    });
    left_out
}

fn complete(devices: &[Device]) -> Discovery {
    answer(Devices::Complete(devices.to_vec()))
}

/// Formats devices: `id` if present, `id?second` if missing since then.
fn shown(session: &SessionDevices) -> Vec<String> {
    session
        .tracked
        .iter()
        .map(|(key, tracked)| match tracked.missing_since {
            None => key.id.clone(),
            Some(since) => format!("{}?{}", key.id, since.as_second()),
        })
        .collect()
}

fn with(devices: &[Device]) -> SessionDevices {
    let mut session = SessionDevices::default();
    session.fold(complete(devices), DEFAULTS, at(0));
    session
}

#[test]
fn only_a_device_that_gives_what_is_no_longer_granted_goes() {
    let mut device = local("a");
    device.properties.insert("A".into(), "1".into());
    for (item, left) in [("A", vec![]), ("B", vec!["a"])] {
        let mut session = with(std::slice::from_ref(&device));
        let mut answer = Discovery {
            left_out: left_out("a"),
            ..complete(&[])
        };
        answer.left_out.ungranted = [("a".to_owned(), item.to_owned())].into();
        assert_eq!(session.fold(answer, DEFAULTS, at(5)), left.is_empty());
        assert_eq!(shown(&session), left, "{item}");
    }
}

#[test]
fn each_kind_of_answer_leaves_what_it_should() {
    let left_out = |id: &str| Discovery {
        left_out: left_out(id),
        ..complete(&[])
    };
    let (long, longer) = ("x".repeat(600), "x".repeat(601));
    let table: [(&str, Vec<Device>, Discovery, Vec<&str>); 10] = [
        (
            "a local device that is missing goes",
            vec![local("a")],
            complete(&[]),
            vec![],
        ),
        (
            "a shared one stays",
            vec![shared("a")],
            complete(&[]),
            vec!["a?5"],
        ),
        (
            "partial says nothing of the rest",
            vec![local("a")],
            answer(Devices::Partial(vec![local("b")])),
            vec!["a", "b"],
        ),
        (
            "unchanged",
            vec![local("a")],
            answer(Devices::Unchanged),
            vec!["a"],
        ),
        (
            "departed goes at once",
            vec![shared("a"), shared("b")],
            Discovery {
                departed: vec!["a".into()],
                ..answer(Devices::Unchanged)
            },
            vec!["b"],
        ),
        (
            "what is reported has not departed",
            vec![shared("a")],
            Discovery {
                departed: vec!["a".into()],
                ..complete(&[shared("a")])
            },
            vec!["a"],
        ),
        ("left out stays", vec![local("a")], left_out("a"), vec!["a"]),
        (
            "left out stays although its id is shown cut",
            vec![local(&long)],
            left_out(&long),
            vec![&long],
        ),
        (
            "left out is not another one that is shown the same",
            vec![local(&long)],
            left_out(&longer),
            vec![],
        ),
        (
            "left out is not another one",
            vec![local("a")],
            left_out("b"),
            vec![],
        ),
    ];
    for (what, before, discovery, after) in table {
        let mut session = with(&before);
        session.fold(discovery, DEFAULTS, at(5));
        assert_eq!(shown(&session), after, "{what}");
    }
}

#[test]
fn a_shared_device_goes_after_five_minutes_and_not_before() {
    let mut session = with(&[shared("a"), shared("b")]);
    session.fold(complete(&[shared("b")]), DEFAULTS, at(10));
    session.fold(complete(&[shared("b")]), DEFAULTS, at(20));
    assert_eq!(session.deadline(DEFAULTS), Some(at(310)));
    assert!(!session.expire(DEFAULTS, at(309)));
    assert!(session.expire(DEFAULTS, at(310)));
    assert_eq!(shown(&session), ["b"]);
}

#[test]
fn a_device_that_comes_back_is_as_if_it_had_never_been_away() {
    let mut session = with(&[shared("a")]);
    let before = session.clone();
    assert!(session.fold(complete(&[]), DEFAULTS, at(10)));
    assert!(session.fold(complete(&[shared("a")]), DEFAULTS, at(20)));
    assert_eq!(session, before);
}

#[test]
fn the_configuration_sets_the_grace_of_both_kinds() {
    let grace = Grace(Some(Duration::from_secs(30)));
    let mut session = with(&[shared("a"), local("b")]);
    session.fold(complete(&[]), grace, at(10));
    assert_eq!(shown(&session), ["a?10", "b?10"]);
    assert!(session.expire(grace, at(40)));
    assert_eq!(shown(&session), Vec::<String>::new());
}

#[test]
fn the_same_answer_again_is_no_difference() {
    let mut session = with(&[shared("a")]);
    assert!(!session.fold(complete(&[shared("a")]), DEFAULTS, at(9)));
    assert!(!session.fold(answer(Devices::Unchanged), DEFAULTS, at(9)));
}

#[test]
fn unchanged_as_the_first_answer_of_new_bytes_means_none() {
    let mut session = with(&[shared("a"), local("b")]);
    session.reopen();
    session.fold(answer(Devices::Unchanged), DEFAULTS, at(7));
    assert_eq!(shown(&session), ["a?7"]);
}

#[test]
fn a_device_of_an_earlier_run_that_was_left_out_stays() {
    let mut session = SessionDevices::default();
    let left_out = Discovery {
        left_out: left_out("a"),
        ..complete(&[])
    };
    session.fold(left_out, DEFAULTS, at(1));
    session.fold(answer(Devices::Unchanged), DEFAULTS, at(2));
    let mut known = unseen(&[("a", false, None), ("b", false, None)]);
    known.update(&[&session], true, DEFAULTS, at(2));
    assert_eq!(known, unseen(&[("a", false, None)]));
}

fn unseen(devices: &[(&str, bool, Option<i64>)]) -> UnconfirmedDevices {
    UnconfirmedDevices(
        devices
            .iter()
            .map(|&(id, shared, since)| {
                let key = DeviceKey {
                    id: id.into(),
                    shared,
                };
                (key, since.map(at))
            })
            .collect(),
    )
}

#[test]
fn a_device_of_an_earlier_run_waits_for_a_complete_answer() {
    let known = unseen(&[
        ("here", false, None),
        ("gone", false, None),
        ("away", true, None),
        ("long", true, Some(-400)),
    ]);
    let partial = {
        let mut session = SessionDevices::default();
        session.fold(
            answer(Devices::Partial(vec![local("here")])),
            DEFAULTS,
            at(1),
        );
        session
    };
    let mut unseen_now = known.clone();
    unseen_now.update(&[&partial], true, DEFAULTS, at(1));
    assert_eq!(
        unseen_now,
        unseen(&[
            ("gone", false, None),
            ("away", true, None),
            ("long", true, Some(-400))
        ])
    );

    let whole = with(&[local("here")]);
    for (sessions, all_known) in [(vec![&partial, &whole], true), (vec![&whole], false)] {
        let before = unseen_now.clone();
        unseen_now.update(&sessions, all_known, DEFAULTS, at(2));
        assert_eq!(unseen_now, before);
    }
    unseen_now.update(&[&whole], true, DEFAULTS, at(2));
    assert_eq!(unseen_now, unseen(&[("away", true, Some(2))]));
    assert_eq!(unseen_now.deadline(DEFAULTS), Some(at(302)));
    unseen_now.update(&[&whole], true, DEFAULTS, at(302));
    assert!(unseen_now.is_empty());
}

#[test]
fn a_device_of_an_earlier_run_that_departed_goes_once_every_other_source_has_answered() {
    let departed = |devices| Discovery {
        departed: vec!["a".into()],
        ..answer(devices)
    };
    let mut session = SessionDevices::default();
    session.fold(departed(Devices::Partial(Vec::new())), DEFAULTS, at(1));
    let silent = SessionDevices::default();
    let (with_it, without) = (with(&[shared("a")]), with(&[]));
    for (others, all_known, stays) in [
        (vec![], true, false),
        (vec![], false, true),
        (vec![&silent], true, true),
        (vec![&without], true, false),
        (vec![&without, &silent], true, true),
    ] {
        let mut known = unseen(&[("a", true, None)]);
        let sessions: Vec<_> = iter::once(&session).chain(others).collect();
        known.update(&sessions, all_known, DEFAULTS, at(1));
        assert_eq!(known.is_empty(), !stays, "{sessions:?} {all_known}");
    }
    // The device is present, whatever the other session says.
    let (devices, _) = merge(
        &key(),
        vec![part("1", &session), part("2", &with_it)],
        &UnconfirmedDevices::default(),
    );
    assert_eq!(devices.len(), 1);
}

#[test]
fn what_departed_is_remembered_until_the_others_have_answered() {
    let mut known = unseen(&[("a", true, None)]);
    let mut session = SessionDevices::default();
    let departed = Discovery {
        departed: vec!["a".into(), "b".into()],
        ..answer(Devices::Partial(Vec::new()))
    };
    session.fold(departed, DEFAULTS, at(1));
    session.remember_departed(&known);
    session.fold(answer(Devices::Partial(Vec::new())), DEFAULTS, at(2));
    assert_eq!(session.departed, BTreeSet::from(["a".to_owned()]));
    known.update(&[&session, &with(&[])], true, DEFAULTS, at(2));
    assert!(known.is_empty());
    session.remember_departed(&known);
    assert_eq!(session.departed, BTreeSet::new());
}

#[test]
fn what_is_reported_again_after_it_departed_is_there() {
    let known = unseen(&[("a", true, None)]);
    let mut session = SessionDevices::default();
    let departed = Discovery {
        departed: vec!["a".into()],
        ..answer(Devices::Partial(Vec::new()))
    };
    session.fold(departed, DEFAULTS, at(1));
    session.remember_departed(&known);
    session.fold(complete(&[shared("a")]), DEFAULTS, at(2));
    session.fold(answer(Devices::Unchanged), DEFAULTS, at(3));
    assert_eq!(shown(&session), ["a"]);
}

#[test]
fn a_device_of_an_earlier_run_that_is_left_out_while_its_grace_runs_goes_when_it_is_over() {
    let left_out = Discovery {
        left_out: left_out("a"),
        ..complete(&[])
    };
    let mut session = SessionDevices::default();
    session.fold(left_out, DEFAULTS, at(10));
    let mut known = unseen(&[("a", true, Some(0)), ("b", true, None)]);
    known.update(&[&session], true, DEFAULTS, at(10));
    assert_eq!(known.deadline(DEFAULTS), Some(at(300)));
    known.update(&[&session], true, DEFAULTS, at(310));
    // A past time is no longer due: a deadline that stays would be met for ever.
    assert!(known.deadline(DEFAULTS).is_none_or(|then| then > at(310)));
    assert!(known.is_empty());
}

#[test]
fn a_moment_in_the_future_does_not_stretch_the_grace() {
    let session = with(&[]);
    let mut known = unseen(&[("a", true, Some(9_000))]);
    known.update(&[&session], true, DEFAULTS, at(10));
    assert_eq!(known.deadline(DEFAULTS), Some(at(310)));
}

#[test]
fn partial_answers_fill_a_session_up_to_its_devices_and_its_text() {
    let mut session = SessionDevices::default();
    session.limit(100);
    for call in 0..50 {
        let fresh = (0..7).map(|n| shared(&format!("{call}-{n}"))).collect();
        session.fold(answer(Devices::Partial(fresh)), DEFAULTS, at(call));
    }
    assert_eq!(session.tracked().len(), 100);
    let key = leafhost_fakes::key("a");
    let told = session.problem(&key, "a.wasm").unwrap().to_string();
    assert!(
        told.contains("7 devices beyond") && told.contains("limits.devices"),
        "{told}"
    );

    let mut session = SessionDevices::default();
    let large = |id: &str, bytes: usize| {
        let mut device = shared(id);
        device.properties.insert("A".into(), "x".repeat(bytes));
        device
    };
    for call in 0..1000 {
        let fresh = vec![large(&call.to_string(), 60 << 10)];
        session.fold(answer(Devices::Partial(fresh)), DEFAULTS, at(call));
    }
    let text: usize = session
        .tracked()
        .values()
        .map(|one| one.device.text())
        .sum();
    assert!(text <= MOST_TEXT && text > MOST_TEXT - (61 << 10), "{text}");
    // At the limit an existing device cannot grow; devices that are withdrawn free text for others.
    let grown = vec![large("0", 100 << 10), large("1", 1)];
    let held = session.tracked().len();
    session.fold(answer(Devices::Partial(grown)), DEFAULTS, at(1000));
    let sizes = ["0", "1"].map(|id| session.tracked()[&shared(id).key()].device.text());
    assert!(sizes[0] < 61 << 10 && sizes[1] < 10, "{sizes:?}");
    session.fold(
        answer(Devices::Partial(vec![large("new", 50 << 10)])),
        DEFAULTS,
        at(1001),
    );
    assert_eq!(session.tracked().len(), held + 1);
}

#[test]
fn as_many_devices_as_there_may_be_may_come_in_the_place_of_missing_ones_and_no_more() {
    let mut session = SessionDevices::default();
    session.limit(100);
    let fresh = |call: usize| (0..100).map(|n| shared(&format!("{call}-{n}"))).collect();
    for call in 0..5 {
        let answer = answer(Devices::Complete(fresh(call)));
        session.fold(answer, DEFAULTS, at(i64::try_from(call).unwrap()));
    }
    assert_eq!(session.tracked().len(), 200);
}

fn part<'a>(source: &'a str, devices: &'a SessionDevices) -> Part<'a> {
    Part {
        source,
        live: true,
        rank: SourceRank::default(),
        devices,
    }
}

fn key() -> ConfigurationKey {
    ConfigurationKey::new("default", "cams").unwrap()
}

#[test]
fn a_source_that_is_gone_fills_gaps_and_wins_nothing() {
    let mut old = shared("a");
    old.properties.insert("FROM".into(), "gone".into());
    let (gone, live) = (with(&[old, shared("b")]), with(&[shared("a")]));
    let gone = Part {
        live: false,
        ..part("1.wasm", &gone)
    };
    let (devices, lost) = merge(
        &key(),
        vec![gone, part("2.wasm", &live)],
        &UnconfirmedDevices::default(),
    );
    let shown: Vec<_> = devices
        .values()
        .map(|view| view.device.as_ref().unwrap().properties.len())
        .collect();
    assert_eq!((shown, lost), (vec![0, 0], vec![]));
}

#[test]
fn of_two_sources_the_first_wins_and_the_other_is_named() {
    let mut named = shared("a");
    named.properties.insert("FROM".into(), "first".into());
    let first = with(&[named.clone()]);
    let second = with(&[shared("a"), shared("b")]);
    let (devices, lost) = merge(
        &key(),
        vec![part("1.wasm", &first), part("2.wasm", &second)],
        &unseen(&[("a", true, None), ("c", false, None)]),
    );
    let sources: Vec<_> = devices
        .values()
        .map(|view| view.device.as_ref().map(|device| device.properties.len()))
        .collect();
    assert_eq!(sources, [Some(1), Some(0), None]);
    assert_eq!(
        lost,
        [Problem::DevicesDuplicated {
            configuration: key(),
            loser: "2.wasm".into(),
            winner: "1.wasm".into(),
            devices: 1,
            example: "a".into()
        }]
    );
}

#[test]
fn a_local_and_a_shared_device_of_one_id_are_two() {
    let session = with(&[shared("a"), local("a")]);
    assert_eq!(session.tracked().len(), 2);
}

#[test]
fn a_source_that_has_the_device_wins_over_one_that_misses_it() {
    let mut first = with(&[shared("a")]);
    first.fold(complete(&[]), DEFAULTS, at(3));
    let second = with(&[shared("a")]);
    let (devices, lost) = merge(
        &key(),
        vec![part("1", &first), part("2", &second)],
        &UnconfirmedDevices::default(),
    );
    assert_eq!(devices.values().next().unwrap().missing_since, None);
    assert_eq!(lost, []);
}
