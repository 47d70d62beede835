//! Tests of every transition.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn configuration(name: &str) -> ConfigurationKey {
    ConfigurationKey::new("default", name).unwrap()
}

fn handler() -> HandlerKey {
    HandlerKey {
        name: "udev".into(),
        source: "udev.wasm".into(),
    }
}

/// Subject, events with their times, and resulting phase of the handler.
type Row = (&'static str, &'static [(i64, Do)], &'static str);

/// Event, with the Configuration of its session.
#[derive(Clone, Copy)]
enum Do {
    Register,
    Gone,
    Open(&'static str),
    Close(&'static str),
    Answer(&'static str),
    Fail(&'static str),
    Tick,
}
use Do::{Answer, Close, Fail, Gone, Open, Register, Tick};

fn play(steps: &[(i64, Do)]) -> String {
    let mut registry = Registry::new(timeouts::HANDLER_EVICTION);
    let key = handler();
    for &(second, step) in steps {
        let now = at(second);
        match step {
            Register => registry.register(&key, now),
            Gone => registry.source_gone(&key, now),
            Open(c) => registry.open(&key, &configuration(c), now),
            Close(c) => registry.close(&key, &configuration(c), now),
            Answer(c) => registry.called(&key, &configuration(c), true, now),
            Fail(c) => registry.called(&key, &configuration(c), false, now),
            Tick => drop(registry.tick(now)),
        }
    }
    match registry.phase(&key) {
        None => "unknown".into(),
        Some((Phase::Removed(retry), _)) => format!("removed until {}", retry.as_second()),
        Some((Phase::Offline(since), _)) => {
            format!("Offline since {}", since.as_second())
        }
        Some((phase, _)) => phase.label().into(),
    }
}

#[test]
fn every_transition_is_as_the_design_has_it() {
    let table: &[Row] = &[
        ("registered, unused", &[(0, Register)], "Waiting"),
        (
            "used, not heard yet",
            &[(0, Register), (1, Open("a"))],
            "Waiting",
        ),
        (
            "first answer",
            &[(0, Register), (1, Open("a")), (2, Answer("a"))],
            "Active",
        ),
        (
            "first failure of its only session",
            &[(0, Register), (1, Open("a")), (2, Fail("a"))],
            "Offline since 2",
        ),
        (
            "one fails beside a healthy one",
            &[
                (0, Register),
                (1, Open("a")),
                (1, Open("b")),
                (2, Answer("a")),
                (3, Fail("b")),
            ],
            "Active",
        ),
        (
            "one fails, the other is not heard yet",
            &[
                (0, Register),
                (1, Open("a")),
                (1, Open("b")),
                (2, Fail("a")),
            ],
            "Waiting",
        ),
        (
            "every session fails: since the last one",
            &[
                (0, Register),
                (1, Open("a")),
                (1, Open("b")),
                (2, Fail("a")),
                (7, Fail("b")),
            ],
            "Offline since 7",
        ),
        (
            "further failures do not move the moment",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (9, Fail("a")),
            ],
            "Offline since 2",
        ),
        (
            "an answer ends Offline",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (9, Answer("a")),
            ],
            "Active",
        ),
        (
            "one of two Configurations deleted",
            &[
                (0, Register),
                (1, Open("a")),
                (1, Open("b")),
                (2, Answer("a")),
                (2, Answer("b")),
                (3, Close("a")),
            ],
            "Active",
        ),
        (
            "the last Configuration deleted",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Answer("a")),
                (3, Close("a")),
            ],
            "Waiting",
        ),
        (
            "the last Configuration deleted while Offline",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (3, Close("a")),
                (900, Tick),
            ],
            "Waiting",
        ),
        (
            "the healthy Configuration deleted, a failing one left",
            &[
                (0, Register),
                (1, Open("a")),
                (1, Open("b")),
                (2, Answer("a")),
                (2, Fail("b")),
                (3, Close("a")),
            ],
            "Offline since 3",
        ),
        (
            "a changed Configuration stays Active until it is heard",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Answer("a")),
                (3, Open("a")),
            ],
            "Active",
        ),
        (
            "source deleted while Waiting",
            &[(0, Register), (4, Gone)],
            "Offline since 4",
        ),
        (
            "source deleted while Active",
            &[(0, Register), (1, Open("a")), (2, Answer("a")), (4, Gone)],
            "Offline since 4",
        ),
        (
            "source deleted while Offline goes on counting",
            &[(0, Register), (1, Open("a")), (2, Fail("a")), (4, Gone)],
            "Offline since 2",
        ),
        (
            "source deleted and five minutes over",
            &[(0, Register), (4, Gone), (304, Tick)],
            "unknown",
        ),
        (
            "source deleted and back",
            &[(0, Register), (4, Gone), (10, Register)],
            "Waiting",
        ),
        (
            "one second less than five minutes Offline",
            &[(0, Register), (1, Open("a")), (2, Fail("a")), (301, Tick)],
            "Offline since 2",
        ),
        (
            "five minutes Offline",
            &[(0, Register), (1, Open("a")), (2, Fail("a")), (302, Tick)],
            "removed until 602",
        ),
        (
            "removed and tried again",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (302, Tick),
                (602, Tick),
            ],
            "Waiting",
        ),
        (
            "tried again and answering",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (302, Tick),
                (602, Tick),
                (602, Open("a")),
                (603, Answer("a")),
            ],
            "Active",
        ),
        (
            "tried again and failing",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (302, Tick),
                (602, Tick),
                (602, Open("a")),
                (603, Fail("a")),
            ],
            "Offline since 603",
        ),
        (
            "removed, then new bytes",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (302, Tick),
                (400, Register),
            ],
            "Waiting",
        ),
        (
            "removed, then the source deleted",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (302, Tick),
                (400, Gone),
            ],
            "unknown",
        ),
        (
            "new bytes while Offline",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (100, Register),
                (302, Tick),
            ],
            "Waiting",
        ),
        (
            "new bytes while Active",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Answer("a")),
                (100, Register),
            ],
            "Active",
        ),
        (
            "new bytes that fail",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Answer("a")),
                (100, Register),
                (101, Fail("a")),
            ],
            "Offline since 101",
        ),
        (
            "an edit just before the removal is heard first",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (301, Open("a")),
                (302, Tick),
            ],
            "Offline since 2",
        ),
        (
            "an edit that does not help is followed by the removal",
            &[
                (0, Register),
                (1, Open("a")),
                (2, Fail("a")),
                (301, Open("a")),
                (302, Tick),
                (303, Fail("a")),
                (303, Tick),
            ],
            "removed until 603",
        ),
    ];
    for (what, steps, expected) in table {
        assert_eq!(play(steps), *expected, "{what}");
    }
}

#[test]
fn removal_and_return_are_told_once() {
    let mut registry = Registry::new(Duration::from_secs(10));
    let (key, a) = (handler(), configuration("a"));
    registry.register(&key, at(0));
    registry.open(&key, &a, at(0));
    assert_eq!(registry.deadline(), None);
    registry.called(&key, &a, false, at(1));
    assert_eq!(registry.deadline(), Some(at(11)));
    assert_eq!(registry.tick(at(11)), [Event::Removed(key.clone())]);
    assert_eq!(registry.tick(at(12)), []);
    assert!(!registry.is_registered(&key));
    assert_eq!(registry.deadline(), Some(at(311)));
    assert_eq!(registry.tick(at(311)), [Event::Returned(key.clone())]);
    assert_eq!(registry.deadline(), None);
}

#[test]
fn sources_of_one_name_fare_each_for_itself() {
    let mut registry = Registry::new(timeouts::HANDLER_EVICTION);
    let (first, a) = (handler(), configuration("a"));
    let second = HandlerKey {
        source: "other.wasm".into(),
        ..first.clone()
    };
    for key in [&first, &second] {
        registry.register(key, at(0));
        registry.open(key, &a, at(0));
    }
    registry.called(&first, &a, false, at(1));
    registry.called(&second, &a, true, at(1));
    assert_eq!(registry.phase(&first), Some((Phase::Offline(at(1)), at(1))));
    assert_eq!(registry.phase(&second), Some((Phase::Active, at(1))));
}
