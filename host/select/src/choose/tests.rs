//! Tests of the search against a brute-force search, and on hard cases.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use ContainerKind::{App, Init, Sidecar};

use super::*;
use crate::request::Constraint;

fn attributes(values: &[(&str, i64)]) -> DeviceAttributes {
    let values = values.iter().map(|(name, value)| {
        let name = ("leafhost.dev".to_owned(), (*name).to_owned());
        (name, AttributeValue::Int(*value))
    });
    DeviceAttributes {
        attributes: values.collect(),
        ..DeviceAttributes::default()
    }
}

/// Returns an alternative whose expressions are the numbers of the devices that fit.
fn alternative(count: u32, fitting: &[usize]) -> Alternative {
    Alternative {
        name: None,
        configuration: "gpu".to_owned(),
        expressions: fitting.iter().map(ToString::to_string).collect(),
        count,
    }
}

fn request(name: &str, alternatives: Vec<Alternative>) -> Request {
    Request {
        name: name.to_owned(),
        alternatives,
    }
}

fn asked(place: u32, kind: ContainerKind, requests: Vec<Request>, alike: bool) -> ContainerRequest {
    let alike = alike.then(|| Constraint {
        attribute: "leafhost.dev/numa".to_owned(),
        requests: BTreeSet::new(),
    });
    ContainerRequest {
        container: format!("c{place}"),
        place,
        kind,
        requests,
        constraints: alike.into_iter().collect(),
    }
}

fn run(
    asked: &[ContainerRequest],
    attributes: &[DeviceAttributes],
) -> Result<Vec<Choice>, NoChoice> {
    let names: Vec<String> = (0..attributes.len())
        .map(|n| format!("gpu-{n:02}"))
        .collect();
    let candidates = attributes
        .iter()
        .zip(&names)
        .map(|(attributes, name)| Candidate {
            configuration: "gpu",
            name,
            attributes,
            is_shared: false,
            left: 0,
        });
    let candidates: Vec<Candidate<'_>> = candidates.collect();
    choose(
        asked,
        &candidates,
        &mut { u32::MAX },
        |alternative, index| alternative.expressions.contains(&index.to_string()),
    )
}

fn devices(chosen: &[Choice]) -> Vec<usize> {
    chosen.iter().map(|one| one.candidate).collect()
}

const APP: ContainerKind = App;

#[test]
fn the_first_way_that_leaves_the_rest_possible_is_taken() {
    let all: Vec<DeviceAttributes> = (0..5).map(|_| DeviceAttributes::default()).collect();
    let first = request(
        "p",
        vec![alternative(3, &[0, 1, 2]), alternative(2, &[2, 3])],
    );
    let second = request("q", vec![alternative(2, &[3, 4])]);
    let both = run(
        &[asked(0, APP, vec![first.clone(), second.clone()], false)],
        &all,
    )
    .unwrap();
    assert_eq!(devices(&both), [0, 1, 2, 3, 4]);
    let without = |lost: usize| {
        let way_of = |count, all: &[usize]| {
            let left: Vec<usize> = all.iter().copied().filter(|one| *one != lost).collect();
            alternative(count, &left)
        };
        let first = request("p", vec![way_of(3, &[0, 1, 2]), way_of(2, &[2, 3])]);
        let second = request("q", vec![way_of(2, &[3, 4])]);
        (first, second)
    };
    let (first, second) = without(0);
    let one = run(&[asked(0, APP, vec![first.clone()], false)], &all).unwrap();
    assert_eq!(devices(&one), [2, 3]);
    let both = run(&[asked(0, APP, vec![first, second], false)], &all);
    assert_eq!(both, Err(NoChoice::Impossible));
}

#[test]
fn devices_of_a_constraint_are_alike_even_where_the_first_ones_are_not() {
    let all = [
        attributes(&[("numa", 0)]),
        attributes(&[("numa", 1)]),
        attributes(&[]),
        attributes(&[("numa", 1)]),
    ];
    let two = vec![request("a", vec![alternative(2, &[0, 1, 2, 3])])];
    assert_eq!(
        devices(&run(&[asked(0, APP, two.clone(), true)], &all).unwrap()),
        [1, 3]
    );
    assert_eq!(
        devices(&run(&[asked(0, APP, two, false)], &all).unwrap()),
        [0, 1]
    );
    let three = vec![request("a", vec![alternative(3, &[0, 1, 2, 3])])];
    assert_eq!(
        run(&[asked(0, APP, three, true)], &all),
        Err(NoChoice::Impossible)
    );
}

#[test]
fn init_containers_leave_their_devices_to_those_after_them_and_sidecars_do_not() {
    let all = [DeviceAttributes::default(), DeviceAttributes::default()];
    let one = || vec![request("a", vec![alternative(1, &[0, 1])])];
    let run_kinds = |kinds: &[ContainerKind]| {
        let places = kinds.iter().zip(0..);
        let asked: Vec<ContainerRequest> = places
            .map(|(kind, place)| asked(place, *kind, one(), false))
            .collect();
        run(&asked, &all).map(|chosen| devices(&chosen))
    };
    assert_eq!(run_kinds(&[Init, Init, App, App]), Ok(vec![0, 0, 0, 1]));
    assert_eq!(run_kinds(&[Sidecar, Init, App]), Ok(vec![0, 1, 1]));
    assert_eq!(run_kinds(&[Init, Sidecar, App]), Ok(vec![0, 0, 1]));
    assert_eq!(run_kinds(&[App, App, App]), Err(NoChoice::Impossible));
    assert_eq!(run_kinds(&[Sidecar, App, App]), Err(NoChoice::Impossible));
}

#[test]
fn what_nobody_else_can_use_is_taken_first() {
    let attributes = DeviceAttributes::default();
    let candidate = |name: &'static str, is_shared, left| Candidate {
        configuration: "gpu",
        name,
        attributes: &attributes,
        is_shared,
        left,
    };
    let all = [
        candidate("a", true, 0),
        candidate("b", false, 4),
        candidate("c", false, 1),
        candidate("d", false, 1),
    ];
    let asked = [asked(
        0,
        APP,
        vec![request("a", vec![alternative(1, &[])])],
        false,
    )];
    let chosen = choose(&asked, &all, &mut { u32::MAX }, |_, _| true).unwrap();
    assert_eq!(devices(&chosen), [2]);
    let none = choose(&asked, &all, &mut { u32::MAX }, |_, _| false);
    assert_eq!(none, Err(NoChoice::Impossible));
}

#[test]
fn a_search_that_cannot_end_soon_gives_up() {
    // Each device is of its own kind, and the last request can never be met.
    let all: Vec<DeviceAttributes> = (0..40).map(|n| attributes(&[("numa", n)])).collect();
    let every: Vec<usize> = (0..40).collect();
    let requests = (0..10).map(|n| request(&format!("r{n}"), vec![alternative(3, &every)]));
    let mut requests: Vec<Request> = requests.collect();
    requests.push(request("last", vec![alternative(11, &every)]));
    let constraint = Constraint {
        attribute: "leafhost.dev/numa".to_owned(),
        requests: BTreeSet::from(["nothing".to_owned()]),
    };
    let mut asked = asked(0, APP, requests, false);
    asked.constraints.push(constraint);
    let gave_up = run(&[asked], &all);
    assert_eq!(gave_up, Err(NoChoice::GaveUp));
}

/// Tries every device in every position. Returns true if a choice exists.
fn by_force(asked: &[ContainerRequest], attributes: &[DeviceAttributes]) -> bool {
    fn next(
        asked: &[ContainerRequest],
        attributes: &[DeviceAttributes],
        at: (usize, usize),
        chosen: &mut Vec<Choice>,
    ) -> bool {
        let Some(container) = asked.get(at.0) else {
            return true;
        };
        let Some(request) = container.requests.get(at.1) else {
            return next(asked, attributes, (at.0 + 1, 0), chosen);
        };
        (0..request.alternatives.len())
            .any(|alternative| fill(asked, attributes, at, alternative, 0, chosen))
    }
    fn fill(
        asked: &[ContainerRequest],
        attributes: &[DeviceAttributes],
        at: (usize, usize),
        alternative: usize,
        made: u32,
        chosen: &mut Vec<Choice>,
    ) -> bool {
        let found = &asked[at.0].requests[at.1].alternatives[alternative];
        if made == found.count {
            return next(asked, attributes, (at.0, at.1 + 1), chosen);
        }
        (0..attributes.len()).any(|candidate| {
            if !found.expressions.contains(&candidate.to_string()) {
                return false;
            }
            chosen.push(Choice {
                asked: at.0,
                request: at.1,
                alternative,
                candidate,
            });
            let is_right = is_right(asked, attributes, chosen)
                && fill(asked, attributes, at, alternative, made + 1, chosen);
            if !is_right {
                chosen.pop();
            }
            is_right
        })
    }
    next(asked, attributes, (0, 0), &mut Vec::new())
}

/// Returns true if a whole or partial choice breaks no rule.
fn is_right(
    asked: &[ContainerRequest],
    attributes: &[DeviceAttributes],
    chosen: &[Choice],
) -> bool {
    for (index, one) in chosen.iter().enumerate() {
        let own = &asked[one.asked];
        for other in &chosen[index + 1..] {
            let theirs = &asked[other.asked];
            let (first, _) = if own.place <= theirs.place {
                (own, theirs)
            } else {
                (theirs, own)
            };
            let together = own.place == theirs.place || first.kind != ContainerKind::Init;
            if one.candidate == other.candidate && together {
                return false;
            }
        }
        if own.constraints.is_empty() {
            continue;
        }
        let value = |choice: &Choice| attributes[choice.candidate].attribute("leafhost.dev/numa");
        let same = chosen.iter().filter(|other| other.asked == one.asked);
        if value(one).is_none() || same.into_iter().any(|other| value(other) != value(one)) {
            return false;
        }
    }
    true
}

#[test]
fn a_choice_is_found_exactly_where_trying_everything_finds_one() {
    let mut random = StdRng::seed_from_u64(2026);
    let mut found = BTreeMap::new();
    for round in 0..3_000 {
        let count = random.random_range(1..6);
        let all: Vec<DeviceAttributes> = (0..count)
            .map(|_| match random.random_range(0..3) {
                2 => attributes(&[]),
                value => attributes(&[("numa", value)]),
            })
            .collect();
        let containers: Vec<ContainerRequest> = (0..random.random_range(1..4))
            .map(|place| {
                let requests = (0..random.random_range(1..3)).map(|n| {
                    let alternatives = (0..random.random_range(1..3)).map(|_| {
                        let fitting = (0..count).filter(|_| random.random_range(0..3) > 0);
                        let fitting: Vec<usize> = fitting.collect();
                        alternative(random.random_range(1..3), &fitting)
                    });
                    let alternatives: Vec<Alternative> = alternatives.collect();
                    request(&format!("r{n}"), alternatives)
                });
                let requests: Vec<Request> = requests.collect();
                let kinds = [ContainerKind::Init, ContainerKind::Sidecar, APP];
                let kind = kinds[random.random_range(0..3)];
                asked(place, kind, requests, random.random_range(0..3) == 0)
            })
            .collect();
        let chosen = run(&containers, &all);
        assert_eq!(
            chosen.is_ok(),
            by_force(&containers, &all),
            "round {round}: {containers:#?}"
        );
        *found.entry(chosen.is_ok()).or_insert(0) += 1;
        if let Ok(chosen) = chosen {
            assert!(is_right(&containers, &all, &chosen), "round {round}");
            let whole = chosen.iter().fold(BTreeMap::new(), |mut counts, one| {
                *counts
                    .entry((one.asked, one.request, one.alternative))
                    .or_insert(0) += 1;
                counts
            });
            for ((asked, request, alternative), count) in whole {
                assert_eq!(
                    containers[asked].requests[request].alternatives[alternative].count,
                    count
                );
            }
        }
    }
    assert!(found.values().all(|count| *count > 300), "{found:?}");
}
