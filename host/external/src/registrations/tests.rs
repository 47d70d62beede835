use std::time::Duration;

use super::*;

const FOLDER: &str = "/var/lib/akri";

fn folder() -> &'static Path {
    Path::new(FOLDER)
}

fn mk_handler(name: &str, socket: &str) -> Registered {
    Registered {
        name: name.to_owned(),
        endpoint: Endpoint::Socket(folder().join(socket)),
        shared: true,
        user: 0,
        mark: None,
    }
}

fn names(registrations: &Registrations, now: Instant) -> Vec<String> {
    registrations.sources(now).into_keys().collect()
}

fn bytes(registrations: &Registrations, source: &str, now: Instant) -> Vec<u8> {
    registrations.sources(now)[source].bytes.clone()
}

#[test]
fn endpoints_of_one_name_and_names_of_one_endpoint_are_sources_of_their_own() {
    let (mut registrations, now) = (Registrations::default(), Instant::now());
    for (name, socket) in [
        ("a", "x.sock"),
        ("a", "y.sock"),
        ("b", "x.sock"),
        ("a", "d/x%.sock"),
    ] {
        registrations
            .register(mk_handler(name, socket), folder(), now)
            .unwrap();
    }
    let network = Registered {
        endpoint: Endpoint::Network("[fd00::1]:10000".parse().unwrap()),
        ..mk_handler("a", "")
    };
    registrations.register(network, folder(), now).unwrap();
    assert_eq!(
        names(&registrations, now),
        [
            "a@[fd00::1]:10000",
            "a@d%2Fx%25.sock",
            "a@x.sock",
            "a@y.sock",
            "b@x.sock"
        ]
    );
    assert_eq!(registrations.take_unkept().map(|kept| kept.len()), Some(5));
    assert_eq!(registrations.take_unkept(), None);
}

#[test]
fn a_handler_that_fails_and_is_not_used_is_no_source_until_it_is_found_or_registers() {
    let (mut registrations, start) = (Registrations::default(), Instant::now());
    let handler = mk_handler("a", "x.sock");
    let source = "a@x.sock";
    registrations
        .register(handler.clone(), folder(), start)
        .unwrap();
    let first = bytes(&registrations, source, start);
    registrations.session(source, SessionEvent::Opened, start);
    registrations.session(source, SessionEvent::Failed, start);
    let hour = start + Duration::from_hours(1);
    assert_eq!(
        names(&registrations, hour),
        [source],
        "sessions tell the registry"
    );
    assert_eq!(
        registrations.take_looks(hour),
        [],
        "sessions try it themselves"
    );

    // Evicted: the session is closed.
    let evicted = start + Duration::from_mins(5);
    registrations.session(source, SessionEvent::Closed, evicted);
    assert_eq!(
        names(&registrations, evicted),
        [source],
        "a session may be opened at once"
    );
    assert_eq!(registrations.deadline(evicted), Some(evicted + UNUSED));
    let unused = evicted + UNUSED;
    assert!(names(&registrations, unused).is_empty());
    assert_eq!(registrations.deadline(unused), Some(evicted + LOOK));
    let look = evicted + LOOK;
    assert_eq!(registrations.take_looks(look).len(), 1);
    assert_eq!(registrations.take_looks(look), [], "one a minute");
    registrations.looked(source, false, look);
    assert!(names(&registrations, look).is_empty());
    let found = look + LOOK;
    assert_eq!(registrations.take_looks(found).len(), 1);
    registrations.looked(source, true, found);
    assert_ne!(
        bytes(&registrations, source, found),
        first,
        "the agent begins anew"
    );
    assert_eq!(registrations.deadline(found), Some(found + LOOK));

    registrations.looked(source, false, found);
    assert!(names(&registrations, found).is_empty());
    registrations
        .register(handler, folder(), found + REGISTER_SPACING)
        .unwrap();
    assert_eq!(names(&registrations, found + REGISTER_SPACING), [source]);
}

#[test]
fn registering_again_begins_anew_only_where_there_is_no_stream_and_not_too_often() {
    let (mut registrations, start) = (Registrations::default(), Instant::now());
    let handler = mk_handler("a", "x.sock");
    let register = |registrations: &mut Registrations, at: Instant| {
        registrations
            .register(handler.clone(), folder(), at)
            .unwrap();
        bytes(registrations, "a@x.sock", at)
    };
    let first = register(&mut registrations, start);
    assert_eq!(
        register(&mut registrations, start + Duration::from_millis(10)),
        first
    );
    let second = register(&mut registrations, start + REGISTER_SPACING);
    assert_ne!(second, first);
    registrations.session("a@x.sock", SessionEvent::Opened, start);
    registrations.session("a@x.sock", SessionEvent::StreamBegun, start);
    assert_eq!(
        register(&mut registrations, start + REGISTER_SPACING * 2),
        second
    );
    registrations.session("a@x.sock", SessionEvent::StreamEnded, start);
    assert_ne!(
        register(&mut registrations, start + REGISTER_SPACING * 2),
        second
    );
    // A changed description takes effect at once.
    let other = Registered {
        shared: false,
        ..handler.clone()
    };
    registrations.take_unkept();
    registrations
        .register(other, folder(), start + REGISTER_SPACING * 2)
        .unwrap();
    assert!(registrations.take_unkept().is_some());
}

#[test]
fn a_thousand_names_leave_room_for_others() {
    let (mut registrations, now) = (Registrations::default(), Instant::now());
    let refused = |registrations: &mut Registrations, name: &str, socket: &str| {
        registrations
            .register(mk_handler(name, socket), folder(), now)
            .err()
    };
    for number in 0..MOST_NAMES {
        assert_eq!(
            refused(&mut registrations, &number.to_string(), "x.sock"),
            None
        );
    }
    for number in MOST_NAMES..1000 {
        let why = refused(&mut registrations, &number.to_string(), "x.sock").unwrap();
        assert!(why.contains("a socket of its own"), "{why}");
    }
    for number in MOST_NAMES..MOST {
        let (name, socket) = (format!("a{number}"), format!("{number}.sock"));
        assert_eq!(refused(&mut registrations, &name, &socket), None);
    }
    let why = refused(&mut registrations, "b", "new.sock").unwrap();
    assert!(why.contains("stop those that are not wanted"), "{why}");
    // A handler that is gone makes room.
    registrations.looked("a5@5.sock", false, now - UNUSED);
    let later = now + UNUSED;
    registrations
        .register(mk_handler("b", "new.sock"), folder(), later)
        .unwrap();
    let names = names(&registrations, later);
    assert_eq!(names.len(), MOST);
    assert!(!names.contains(&"a5@5.sock".to_owned()));
}

#[test]
fn a_name_has_four_endpoints_at_most_and_those_that_are_gone_do_not_count() {
    let (mut registrations, now) = (Registrations::default(), Instant::now());
    let register = |registrations: &mut Registrations, socket: &str, at| {
        registrations.register(mk_handler("a", socket), folder(), at)
    };
    for number in 0..MOST_OF_NAME {
        register(&mut registrations, &format!("{number}.sock"), now).unwrap();
    }
    let why = register(&mut registrations, "more.sock", now).unwrap_err();
    assert!(why.contains("stop those that are not wanted"), "{why}");
    // The handler ended without having been used.
    assert_eq!(registrations.take_looks(now + LOOK).len(), MOST_OF_NAME);
    registrations.looked("a@0.sock", false, now + LOOK);
    register(&mut registrations, "more.sock", now + LOOK + UNUSED).unwrap();
}

#[test]
fn what_an_earlier_run_kept_is_a_source_at_once_and_looked_for() {
    let now = Instant::now();
    let elsewhere = Registered {
        endpoint: Endpoint::Socket("/run/x.sock".into()),
        ..mk_handler("a", "")
    };
    let kept = vec![
        mk_handler("a", "x.sock"),
        elsewhere,
        mk_handler("a", "y.sock"),
    ];
    let mut registrations = Registrations::of_earlier_run(kept, folder(), now);
    assert_eq!(names(&registrations, now), ["a@x.sock", "a@y.sock"]);
    assert_eq!(registrations.take_looks(now).len(), 2);
    registrations.looked("a@x.sock", true, now);
    registrations.looked("a@y.sock", false, now);
    assert_eq!(names(&registrations, now + UNUSED), ["a@x.sock"]);
    assert_eq!(registrations.take_unkept(), None);
    registrations.tidy(now + FORGET);
    assert_eq!(names(&registrations, now + FORGET), ["a@x.sock"]);
    assert_eq!(registrations.take_unkept().map(|kept| kept.len()), Some(1));
}

#[test]
fn refusals_are_few_and_forgotten() {
    let (mut registrations, now) = (Registrations::default(), Instant::now());
    for number in 0_u64..1000 {
        let problem = SourceProblem::new(number.to_string(), "no");
        let at = now + Duration::from_millis(number);
        registrations.refuse(&number.to_string(), problem, at);
    }
    let told: Vec<&str> = registrations
        .refusals()
        .map(|problem| problem.source.as_str())
        .collect();
    assert_eq!(told.len(), MOST_REFUSALS);
    assert!(told.contains(&"999"));
    registrations.accepted("999");
    assert_eq!(registrations.refusals().count(), MOST_REFUSALS - 1);
    assert!(registrations.deadline(now).is_some());
    registrations.tidy(now + REFUSED + Duration::from_secs(1));
    assert_eq!(registrations.refusals().count(), 0);
}

#[tokio::test]
async fn an_address_is_that_of_the_same_handler_only_while_its_connection_holds() {
    let (mut registrations, start) = (Registrations::default(), Instant::now());
    let mk_network = |mark| Registered {
        endpoint: Endpoint::Network("[fd00::1]:10000".parse().unwrap()),
        mark: Some(mark),
        ..mk_handler("a", "")
    };
    let register = |registrations: &mut Registrations, mark, at| {
        registrations
            .register(mk_network(mark), folder(), at)
            .unwrap();
        let mut names = names(registrations, at);
        assert_eq!(names.len(), 1, "{names:?}");
        names.remove(0)
    };
    let source = register(&mut registrations, 1, start);
    assert_eq!(source, "a@[fd00::1]:10000~00000001");
    assert_eq!(registrations.take_looks(start).len(), 1, "at once");
    let first = |registrations: &Registrations, source: &str, at| match registrations
        .first_connection(source, at)
    {
        First::ToCome => "to come",
        First::Holds(_) => "holds",
        First::Ended => "ended",
    };
    assert_eq!(first(&registrations, &source, start), "to come");
    assert_eq!(
        first(&registrations, &source, start + FIRST_CONNECTION),
        "ended"
    );
    assert_eq!(
        register(&mut registrations, 2, start),
        source,
        "too soon to matter"
    );
    registrations.looked(&source, false, start);
    assert_eq!(names(&registrations, start + UNUSED), [source.as_str()]);
    assert_eq!(
        registrations.take_looks(start + UNUSED).len(),
        1,
        "soon again"
    );

    let ended = tokio_util::sync::CancellationToken::new();
    registrations.connected(&source, FirstConnection::mk(ended.clone()));
    let later = start + Duration::from_hours(1);
    assert_eq!(first(&registrations, &source, later), "holds");
    assert_eq!(register(&mut registrations, 3, later), source);
    ended.cancel();
    assert_eq!(first(&registrations, &source, later), "ended");
    let again = later + REGISTER_SPACING;
    let other = register(&mut registrations, 4, again);
    assert_eq!(other, "a@[fd00::1]:10000~00000004");
    assert_eq!(first(&registrations, &other, again), "to come");

    let kept = registrations.take_unkept().unwrap();
    let mut registrations = Registrations::of_earlier_run(kept, folder(), again);
    assert_eq!(first(&registrations, &other, again), "ended");
    let again = again + REGISTER_SPACING;
    assert_eq!(
        register(&mut registrations, 5, again),
        "a@[fd00::1]:10000~00000005"
    );
}
