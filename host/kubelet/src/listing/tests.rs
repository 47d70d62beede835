//! Tests of the list, as tables, and against a kubelet whose messages are delayed.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const LINGER: Duration = Duration::from_secs(30);

/// Parses devices: `a` is Healthy, `-a` Unhealthy.
fn mk_devices(text: &str) -> Arc<Devices> {
    let device = |word: &str| {
        let (id, health) = match word.strip_prefix('-') {
            Some(id) => (id, Health::Unhealthy),
            None => (word, Health::Healthy),
        };
        let numa = (id == "n").then_some(1);
        (id.to_owned(), Device { health, numa })
    };
    Arc::new(text.split_whitespace().map(device).collect())
}

fn mk_ids(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn shown(list: Option<List>) -> String {
    let Some(list) = list else {
        return "end".to_owned();
    };
    let words = list.devices().iter().map(|(id, device)| {
        let sign = match device.health {
            Health::Healthy => "",
            Health::Unhealthy => "-",
        };
        format!("{sign}{id}")
    });
    words.collect::<Vec<_>>().join(" ")
}

enum Step {
    Want(&'static str),
    Ask(&'static str),
    Answer(&'static str),
}
type Row = (u64, Option<Step>, &'static str);
use Step::{Answer, Ask, Want};

#[test]
fn an_id_leaves_when_no_allocate_of_it_can_be_under_way() {
    // Event in each second, and the list right after it.
    let tables: &[(&str, &[Row])] = &[
        (
            "an id that was Healthy",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("b")), "-a b"),
                (34, None, "-a b"),
                (35, None, "b"),
            ],
        ),
        (
            "an id that was Unhealthy for long",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("-a b")), "-a b"),
                (35, Some(Want("b")), "b"),
            ],
        ),
        (
            "an id that was Unhealthy for a moment",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("-a b")), "-a b"),
                (10, Some(Want("b")), "-a b"),
                (35, None, "b"),
            ],
        ),
        (
            "an id that was never Healthy",
            &[(0, Some(Want("-a b")), "-a b"), (1, Some(Want("b")), "b")],
        ),
        (
            "an id that comes back",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("b")), "-a b"),
                (10, Some(Want("a b")), "a b"),
                (35, None, "a b"),
                (40, Some(Want("b")), "-a b"),
                (69, None, "-a b"),
                (70, None, "b"),
            ],
        ),
        (
            "an unanswered Allocate",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Ask("a")), "a b"),
                (6, Some(Want("b")), "-a b"),
                (1000, None, "-a b"),
                (1001, Some(Answer("a")), "-a b"),
                (1030, None, "-a b"),
                (1031, None, "b"),
            ],
        ),
        (
            "two Allocates of an id",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Ask("a")), "a b"),
                (6, Some(Ask("a")), "a b"),
                (7, Some(Want("b")), "-a b"),
                (10, Some(Answer("a")), "-a b"),
                (500, Some(Answer("a")), "-a b"),
                (530, None, "b"),
            ],
        ),
        (
            "a resource that is withdrawn",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("")), "end"),
                (6, None, "end"),
            ],
        ),
        (
            "a resource that is withdrawn while an Allocate is unanswered",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Ask("a")), "a b"),
                (6, Some(Want("")), "-a -b"),
                (7, Some(Answer("a")), "end"),
            ],
        ),
        (
            "a resource that comes back soon",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("")), "end"),
                (10, Some(Want("c")), "-a -b c"),
                (34, None, "-a -b c"),
                (35, None, "c"),
            ],
        ),
        (
            "a resource that comes back late",
            &[
                (0, Some(Want("a b")), "a b"),
                (5, Some(Want("")), "end"),
                (35, Some(Want("c")), "c"),
            ],
        ),
    ];
    for (name, steps) in tables {
        let start = Instant::now();
        let mut listing = Listing::new(LINGER);
        for (second, step, listed) in *steps {
            let now = start + Duration::from_secs(*second);
            match step {
                Some(Want(devices)) => listing.want(mk_devices(devices), now),
                Some(Ask(ids)) => listing.asked(&mk_ids(ids), now).unwrap(),
                Some(Answer(ids)) => listing.answered(&mk_ids(ids), now),
                None => {}
            }
            let next = listing.next();
            assert_eq!(&shown(listing.list(now)), listed, "{name}, second {second}");
            assert!(next.is_none_or(|next| next <= now + LINGER), "{name}");
        }
    }
}

#[test]
fn the_next_change_is_known_to_the_moment() {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let mut listing = Listing::new(LINGER);
    listing.want(mk_devices("a b c"), start);
    assert_eq!((listing.next(), listing.over(start)), (None, None));
    listing.want(mk_devices("c"), at(1));
    listing.asked(&mk_ids("b"), at(2)).unwrap();
    assert_eq!(listing.next(), Some(at(31)));
    assert_eq!(shown(listing.list(at(31))), "-b c");
    assert_eq!(listing.next(), None);
    listing.answered(&mk_ids("b"), at(40));
    assert_eq!(listing.next(), Some(at(70)));
    listing.want(mk_devices(""), at(42));
    assert_eq!(listing.over(at(42)), Some(at(72)));
}

#[test]
fn an_id_that_stays_keeps_its_numa_node() {
    let start = Instant::now();
    let mut listing = Listing::new(LINGER);
    listing.want(mk_devices("n b"), start);
    listing.want(mk_devices("b"), start);
    let list = listing.list(start).unwrap();
    assert_eq!(list.devices()["n"].numa, Some(1));
}

#[test]
fn an_allocate_must_name_what_is_listed() {
    let now = Instant::now();
    let mut listing = Listing::new(LINGER);
    assert!(listing.asked(&mk_ids("a"), now).is_err());
    listing.want(mk_devices("a b"), now);
    let error = listing.asked(&mk_ids("a x y"), now).unwrap_err();
    assert_eq!(error.to_string(), r#"the agent does not offer "x""#);
    // A listed id of the refused call is not kept.
    listing.want(mk_devices(""), now);
    assert_eq!(shown(listing.list(now)), "end");
    assert!(listing.asked(&mk_ids("a"), now).is_err());
}

/// Kubelet and the two streams between it and the plugin. No message takes longer than fourteen seconds, including its steps.
#[derive(Default)]
struct Kubelet {
    /// Devices that it knows; it keeps them when a stream ends.
    list: Devices,
    /// Lists on their way to the kubelet.
    lists: VecDeque<(Instant, Devices)>,
    /// Allocates on their way to the plugin.
    requests: Vec<(Instant, BTreeSet<String>)>,
    /// Unanswered Allocates, with the time of the answer.
    unanswered: Vec<(Instant, BTreeSet<String>)>,
    /// Answers on their way to the kubelet.
    answers: Vec<(Instant, BTreeSet<String>)>,
}

fn due<T>(messages: &mut Vec<(Instant, T)>, now: Instant) -> Vec<T> {
    let (due, rest) = std::mem::take(messages)
        .into_iter()
        .partition(|(at, _)| *at <= now);
    *messages = rest;
    let due: Vec<(Instant, T)> = due;
    due.into_iter().map(|(_, message)| message).collect()
}

#[test]
fn the_kubelet_never_misses_an_id_it_has_named() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut kubelet = Kubelet::default();
        let mut listing = Listing::new(LINGER);
        let mut now = Instant::now();
        let mut sent = None;
        let (mut asked, mut ended) = (0, 0);
        for _ in 0..2000 {
            now += Duration::from_millis(random.random_range(1..2000));
            let travel =
                |random: &mut StdRng| Duration::from_millis(random.random_range(0..12_000));
            if random.random_bool(0.05) {
                let mut devices = Devices::default();
                for id in ["a", "b", "c", "d"] {
                    let device = |health| Device { health, numa: None };
                    match random.random_range(0..3) {
                        0 => drop(devices.insert(id.to_owned(), device(Health::Healthy))),
                        1 => drop(devices.insert(id.to_owned(), device(Health::Unhealthy))),
                        _ => {}
                    }
                }
                if random.random_bool(0.3) {
                    devices.clear();
                }
                listing.want(Arc::new(devices), now);
            }
            let healthy = kubelet.list.iter();
            let healthy = healthy.filter(|(_, device)| device.health == Health::Healthy);
            let named: BTreeSet<String> = healthy
                .map(|(id, _)| id.clone())
                .filter(|_| random.random_bool(0.5))
                .collect();
            if sent.is_some() && !named.is_empty() && random.random_bool(0.1) {
                let at = now + travel(&mut random);
                kubelet.requests.push((at, named));
                asked += 1;
            }
            for ids in due(&mut kubelet.requests, now) {
                // Withdrawn at this moment: the connection is about to end.
                if listing.list(now).is_none() {
                    continue;
                }
                listing.asked(&ids, now).expect("it came in time");
                let thinks = Duration::from_secs(random.random_range(0..20));
                kubelet.unanswered.push((now + thinks, ids));
            }
            for ids in due(&mut kubelet.unanswered, now) {
                listing.answered(&ids, now);
                kubelet.answers.push((now + travel(&mut random), ids));
            }
            let list = listing.list(now);
            if list != sent {
                if let Some(list) = &list {
                    let after = kubelet.lists.back().map_or(now, |(at, _)| *at);
                    // The first list of a stream arrives before anything can be requested by it.
                    let at = match &sent {
                        Some(_) => after.max(now + travel(&mut random)),
                        None => now,
                    };
                    kubelet.lists.push_back((at, list.devices().clone()));
                } else {
                    // The connection ends, and drops the requests on their way.
                    assert!(kubelet.unanswered.is_empty());
                    kubelet.requests.clear();
                    kubelet.lists.clear();
                    ended += 1;
                }
                sent = list;
            }
            while kubelet.lists.front().is_some_and(|(at, _)| *at <= now) {
                kubelet.list = kubelet.lists.pop_front().unwrap().1;
            }
            let under_way = [&kubelet.requests, &kubelet.unanswered, &kubelet.answers];
            for (_, ids) in under_way.into_iter().flatten() {
                for id in ids {
                    assert!(
                        kubelet.list.contains_key(id),
                        "{id} is missing, seed {seed}"
                    );
                }
            }
            due(&mut kubelet.answers, now);
        }
        assert!(asked > 20 && ended > 5, "{asked} asked, {ended} ended");
    }
}
