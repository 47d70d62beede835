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

fn names(book: &Book, now: Instant) -> Vec<String> {
    book.sources(now).into_keys().collect()
}

fn bytes(book: &Book, source: &str, now: Instant) -> Vec<u8> {
    book.sources(now)[source].bytes.clone()
}

#[test]
fn endpoints_of_one_name_and_names_of_one_endpoint_are_sources_of_their_own() {
    let (mut book, now) = (Book::default(), Instant::now());
    for (name, socket) in [
        ("a", "x.sock"),
        ("a", "y.sock"),
        ("b", "x.sock"),
        ("a", "d/x%.sock"),
    ] {
        book.register(mk_handler(name, socket), folder(), now)
            .unwrap();
    }
    let network = Registered {
        endpoint: Endpoint::Network("[fd00::1]:10000".parse().unwrap()),
        ..mk_handler("a", "")
    };
    book.register(network, folder(), now).unwrap();
    assert_eq!(
        names(&book, now),
        [
            "a@[fd00::1]:10000",
            "a@d%2Fx%25.sock",
            "a@x.sock",
            "a@y.sock",
            "b@x.sock"
        ]
    );
    assert_eq!(book.take_unkept().map(|kept| kept.len()), Some(5));
    assert_eq!(book.take_unkept(), None);
}

#[test]
fn a_handler_that_fails_and_is_not_used_is_no_source_until_it_is_found_or_registers() {
    let (mut book, start) = (Book::default(), Instant::now());
    let handler = mk_handler("a", "x.sock");
    let source = "a@x.sock";
    book.register(handler.clone(), folder(), start).unwrap();
    let first = bytes(&book, source, start);
    book.session(source, SessionEvent::Opened, start);
    book.session(source, SessionEvent::Failed, start);
    let hour = start + Duration::from_hours(1);
    assert_eq!(names(&book, hour), [source], "sessions tell the registry");
    assert_eq!(book.take_looks(hour), [], "sessions try it themselves");

    // Evicted: the session is closed.
    let evicted = start + Duration::from_mins(5);
    book.session(source, SessionEvent::Closed, evicted);
    assert_eq!(
        names(&book, evicted),
        [source],
        "a session may be opened at once"
    );
    assert_eq!(book.deadline(evicted), Some(evicted + UNUSED));
    let unused = evicted + UNUSED;
    assert!(names(&book, unused).is_empty());
    assert_eq!(book.deadline(unused), Some(evicted + LOOK));
    let look = evicted + LOOK;
    assert_eq!(book.take_looks(look).len(), 1);
    assert_eq!(book.take_looks(look), [], "one a minute");
    book.looked(source, false, look);
    assert!(names(&book, look).is_empty());
    let found = look + LOOK;
    assert_eq!(book.take_looks(found).len(), 1);
    book.looked(source, true, found);
    assert_ne!(bytes(&book, source, found), first, "the agent begins anew");
    assert_eq!(book.deadline(found), Some(found + LOOK));

    book.looked(source, false, found);
    assert!(names(&book, found).is_empty());
    book.register(handler, folder(), found + REGISTER_SPACING)
        .unwrap();
    assert_eq!(names(&book, found + REGISTER_SPACING), [source]);
}

#[test]
fn registering_again_begins_anew_only_where_there_is_no_stream_and_not_too_often() {
    let (mut book, start) = (Book::default(), Instant::now());
    let handler = mk_handler("a", "x.sock");
    let register = |book: &mut Book, at: Instant| {
        book.register(handler.clone(), folder(), at).unwrap();
        bytes(book, "a@x.sock", at)
    };
    let first = register(&mut book, start);
    assert_eq!(
        register(&mut book, start + Duration::from_millis(10)),
        first
    );
    let second = register(&mut book, start + REGISTER_SPACING);
    assert_ne!(second, first);
    book.session("a@x.sock", SessionEvent::Opened, start);
    book.session("a@x.sock", SessionEvent::StreamBegun, start);
    assert_eq!(register(&mut book, start + REGISTER_SPACING * 2), second);
    book.session("a@x.sock", SessionEvent::StreamEnded, start);
    assert_ne!(register(&mut book, start + REGISTER_SPACING * 2), second);
    // A changed description takes effect at once.
    let other = Registered {
        shared: false,
        ..handler.clone()
    };
    book.take_unkept();
    book.register(other, folder(), start + REGISTER_SPACING * 2)
        .unwrap();
    assert!(book.take_unkept().is_some());
}

#[test]
fn a_thousand_names_leave_room_for_others() {
    let (mut book, now) = (Book::default(), Instant::now());
    let refused = |book: &mut Book, name: &str, socket: &str| {
        book.register(mk_handler(name, socket), folder(), now).err()
    };
    for number in 0..MOST_NAMES {
        assert_eq!(refused(&mut book, &number.to_string(), "x.sock"), None);
    }
    for number in MOST_NAMES..1000 {
        let why = refused(&mut book, &number.to_string(), "x.sock").unwrap();
        assert!(why.contains("a socket of its own"), "{why}");
    }
    for number in MOST_NAMES..MOST {
        let (name, socket) = (format!("a{number}"), format!("{number}.sock"));
        assert_eq!(refused(&mut book, &name, &socket), None);
    }
    let why = refused(&mut book, "b", "new.sock").unwrap();
    assert!(why.contains("stop those that are not wanted"), "{why}");
    // A handler that is gone makes room.
    book.looked("a5@5.sock", false, now - UNUSED);
    let later = now + UNUSED;
    book.register(mk_handler("b", "new.sock"), folder(), later)
        .unwrap();
    let names = names(&book, later);
    assert_eq!(names.len(), MOST);
    assert!(!names.contains(&"a5@5.sock".to_owned()));
}

#[test]
fn a_name_has_four_endpoints_at_most_and_those_that_are_gone_do_not_count() {
    let (mut book, now) = (Book::default(), Instant::now());
    let register =
        |book: &mut Book, socket: &str, at| book.register(mk_handler("a", socket), folder(), at);
    for number in 0..MOST_OF_NAME {
        register(&mut book, &format!("{number}.sock"), now).unwrap();
    }
    let why = register(&mut book, "more.sock", now).unwrap_err();
    assert!(why.contains("stop those that are not wanted"), "{why}");
    // The handler ended without having been used.
    assert_eq!(book.take_looks(now + LOOK).len(), MOST_OF_NAME);
    book.looked("a@0.sock", false, now + LOOK);
    register(&mut book, "more.sock", now + LOOK + UNUSED).unwrap();
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
    let mut book = Book::of_earlier_run(kept, folder(), now);
    assert_eq!(names(&book, now), ["a@x.sock", "a@y.sock"]);
    assert_eq!(book.take_looks(now).len(), 2);
    book.looked("a@x.sock", true, now);
    book.looked("a@y.sock", false, now);
    assert_eq!(names(&book, now + UNUSED), ["a@x.sock"]);
    assert_eq!(book.take_unkept(), None);
    book.tidy(now + FORGET);
    assert_eq!(names(&book, now + FORGET), ["a@x.sock"]);
    assert_eq!(book.take_unkept().map(|kept| kept.len()), Some(1));
}

#[test]
fn refusals_are_few_and_forgotten() {
    let (mut book, now) = (Book::default(), Instant::now());
    for number in 0_u64..1000 {
        let problem = SourceProblem::new(number.to_string(), "no");
        let at = now + Duration::from_millis(number);
        book.refuse(&number.to_string(), problem, at);
    }
    let told: Vec<&str> = book
        .refusals()
        .map(|problem| problem.source.as_str())
        .collect();
    assert_eq!(told.len(), MOST_REFUSALS);
    assert!(told.contains(&"999"));
    book.accepted("999");
    assert_eq!(book.refusals().count(), MOST_REFUSALS - 1);
    assert!(book.deadline(now).is_some());
    book.tidy(now + REFUSED + Duration::from_secs(1));
    assert_eq!(book.refusals().count(), 0);
}

#[tokio::test]
async fn an_address_is_that_of_the_same_handler_only_while_its_connection_holds() {
    let (mut book, start) = (Book::default(), Instant::now());
    let mk_network = |mark| Registered {
        endpoint: Endpoint::Network("[fd00::1]:10000".parse().unwrap()),
        mark: Some(mark),
        ..mk_handler("a", "")
    };
    let register = |book: &mut Book, mark, at| {
        book.register(mk_network(mark), folder(), at).unwrap();
        let mut names = names(book, at);
        assert_eq!(names.len(), 1, "{names:?}");
        names.remove(0)
    };
    let source = register(&mut book, 1, start);
    assert_eq!(source, "a@[fd00::1]:10000~00000001");
    assert_eq!(book.take_looks(start).len(), 1, "at once");
    let first = |book: &Book, source: &str, at| match book.first_connection(source, at) {
        First::ToCome => "to come",
        First::Holds(_) => "holds",
        First::Ended => "ended",
    };
    assert_eq!(first(&book, &source, start), "to come");
    assert_eq!(first(&book, &source, start + FIRST_CONNECTION), "ended");
    assert_eq!(register(&mut book, 2, start), source, "too soon to matter");
    book.looked(&source, false, start);
    assert_eq!(names(&book, start + UNUSED), [source.as_str()]);
    assert_eq!(book.take_looks(start + UNUSED).len(), 1, "soon again");

    let ended = tokio_util::sync::CancellationToken::new();
    book.connected(&source, FirstConnection::mk(ended.clone()));
    let later = start + Duration::from_hours(1);
    assert_eq!(first(&book, &source, later), "holds");
    assert_eq!(register(&mut book, 3, later), source);
    ended.cancel();
    assert_eq!(first(&book, &source, later), "ended");
    let again = later + REGISTER_SPACING;
    let other = register(&mut book, 4, again);
    assert_eq!(other, "a@[fd00::1]:10000~00000004");
    assert_eq!(first(&book, &other, again), "to come");

    let kept = book.take_unkept().unwrap();
    let mut book = Book::of_earlier_run(kept, folder(), again);
    assert_eq!(first(&book, &other, again), "ended");
    let again = again + REGISTER_SPACING;
    assert_eq!(register(&mut book, 5, again), "a@[fd00::1]:10000~00000005");
}
