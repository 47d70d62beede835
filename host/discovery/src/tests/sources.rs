//! Sources of handlers that come, go, change, and share a handler.

use leafhost_core::handler::Registration;
use leafhost_core::ports::LoadError;

use super::*;
use crate::loader::{LoadedSource, TrustedSource};

/// Returns sources with their numbers of acceptance; sources without a handler belong to `udev` and are not loaded yet.
pub(super) fn registered(sources: &[(&str, Option<&Arc<FakeHandler>>, u64)]) -> Arc<HandlerSet> {
    let mut set = HandlerSet {
        complete: sources.iter().all(|(_, handler, _)| handler.is_some()),
        ..HandlerSet::default()
    };
    let mut sources = sources.to_vec();
    sources.sort_by_key(|(_, _, number)| *number);
    for (source, handler, number) in sources {
        let name = handler.map_or("udev", |handler| &handler.facts().description.name);
        let first = TrustedSource {
            source: source.to_owned(),
            is_there: true,
        };
        set.trusted.entry(name.to_owned()).or_insert(first);
        let loaded = LoadedSource {
            handler: handler.map(|handler| Arc::<FakeHandler>::clone(handler) as Arc<dyn Handler>),
            registration: Some(Registration {
                handler: name.to_owned(),
                number,
            }),
            ..LoadedSource::default()
        };
        set.sources.insert(source.to_owned(), loaded);
    }
    Arc::new(set)
}

#[tokio::test(start_paused = true)]
async fn two_sources_of_a_handler_both_serve_and_the_warning_names_them() {
    let (one, two) = (FakeHandler::named("udev@1"), FakeHandler::named("udev@2"));
    let bench = start(
        &[configured("a", "udev", "")],
        &[("1.wasm", &one), ("2.wasm", &two)],
    );
    bench
        .problem(
            "a",
            "1.wasm and 2.wasm: each of them gets this Configuration's properties",
        )
        .await;
    idle().await;
    one.say("a", complete(&[shared("x")]));
    two.say("a", complete(&[shared("x"), shared("y")]));
    bench.has("a", &["x", "y"]).await;
    bench
        .problem(
            "a",
            "device \"x\" of 2.wasm is not used, because 1.wasm has the same",
        )
        .await;
    one.say("a", fault());
    bench.statuses(&["1.wasm: Offline", "2.wasm: Active"]).await;
}

/// Returns a Configuration of `udev` with a secret.
fn with_secret() -> ConfiguredDiscovery {
    ConfiguredDiscovery {
        properties: Ok(vec![Property {
            name: "PASSWORD".to_owned(),
            value: Some(b"hunter2"[..].into()),
            secret: true,
        }]),
        ..configured("a", "udev", "")
    }
}

/// Returns the number of properties that each opened session got.
fn properties(handler: &FakeHandler) -> Vec<usize> {
    let opened = handler.opened.lock().unwrap();
    let given = opened.iter().map(|opened| opened.spec.properties.len());
    given.collect()
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_whose_file_sorts_first_gets_no_secret_and_adds_only_what_the_first_does_not_have()
 {
    let (first, newcomer) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start(&[with_secret()], &[("udev.wasm", &first)]);
    idle().await;
    first.say("a", complete(&[shared("x"), shared("z")]));
    bench.has("a", &["x", "z"]).await;
    bench.handlers.send_replace(registered(&[
        ("aaa.wasm", Some(&newcomer), 1),
        ("udev.wasm", Some(&first), 0),
    ]));
    bench
        .problem("a", "aaa.wasm, too, which was accepted after udev.wasm: it gets none of this Configuration's properties")
        .await;
    let mut other = shared("x");
    other.physical_id = Some("another".to_owned());
    newcomer.say("a", complete(&[other, shared("y"), shared("z")]));
    bench.has("a", &["x", "y", "z"]).await;
    // Not even while the first source misses the device.
    first.say("a", complete(&[shared("x")]));
    bench.has("a", &["x", "y", "z?"]).await;
    let snapshot = Arc::clone(&bench.devices.borrow());
    for view in snapshot.configurations[&key("a")].devices.values() {
        assert_eq!(view.device.as_ref().unwrap().physical_id, None);
    }
    assert_eq!(
        (properties(&first), properties(&newcomer)),
        (vec![1], vec![0])
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_newcomer_that_loads_sooner_waits_for_the_first_one_to_answer() {
    let (first, newcomer) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start_with(&[with_secret()], &[], &earlier("a", &["x"]));
    bench.handlers.send_replace(registered(&[
        ("aaa.wasm", Some(&newcomer), 1),
        ("udev.wasm", None, 0),
    ]));
    idle().await;
    newcomer.say("a", complete(&[shared("x"), shared("y")]));
    idle().await;
    assert_eq!(bench.has_now("a"), ["x*"]);
    bench.handlers.send_replace(registered(&[
        ("aaa.wasm", Some(&newcomer), 1),
        ("udev.wasm", Some(&first), 0),
    ]));
    idle().await;
    assert_eq!(bench.has_now("a"), ["x*"]);
    first.say("a", complete(&[shared("x")]));
    bench.has("a", &["x", "y"]).await;
    assert_eq!(
        (properties(&first), properties(&newcomer)),
        (vec![1], vec![0])
    );
}

#[tokio::test(start_paused = true)]
async fn a_first_source_that_is_removed_takes_no_device_of_a_newcomer_with_it() {
    let (first, newcomer) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let mut configured = configured("a", "udev", "");
    configured.configuration.grace = Some(Duration::from_mins(10));
    let bench = start_with(
        &[configured],
        &[("udev.wasm", &first), ("usb.wasm", &newcomer)],
        &earlier("a", &["gone"]),
    );
    idle().await;
    first.say("a", complete(&[shared("x")]));
    newcomer.say("a", complete(&[shared("y")]));
    bench.has("a", &["gone?*", "x", "y"]).await;
    first.say("a", fault());
    pass(301).await;
    assert_eq!(bench.has_now("a"), ["gone?*", "y"]);
    bench
        .statuses(&["udev.wasm: Removed", "usb.wasm: Active"])
        .await;
    pass(301).await;
    assert_eq!(bench.has_now("a"), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn a_first_source_that_only_fails_holds_a_newcomer_back_until_it_is_removed() {
    let (first, newcomer) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start(
        &[configured("a", "udev", "")],
        &[("udev.wasm", &first), ("usb.wasm", &newcomer)],
    );
    idle().await;
    first.say("a", fault());
    newcomer.say("a", complete(&[shared("y")]));
    pass(299).await;
    assert_eq!(bench.has_now("a"), Vec::<String>::new());
    pass(2).await;
    assert_eq!(bench.has_now("a"), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn a_first_source_that_no_longer_loads_is_waited_for_five_minutes() {
    let newcomer = FakeHandler::new("udev@2");
    let bench = start_with(&[configured("a", "udev", "")], &[], &earlier("a", &["x"]));
    let mut set = HandlerSet::clone(&registered(&[("usb.wasm", Some(&newcomer), 1)]));
    let (source, mut loaded) = broken("udev.wasm");
    loaded.registration = Some(Registration {
        handler: "udev".to_owned(),
        number: 0,
    });
    set.sources.insert(source, loaded);
    let first = TrustedSource {
        source: "udev.wasm".to_owned(),
        is_there: true,
    };
    set.trusted.insert("udev".to_owned(), first);
    bench.handlers.send_replace(Arc::new(set));
    idle().await;
    newcomer.say("a", complete(&[shared("y")]));
    pass(299).await;
    assert_eq!(bench.has_now("a"), ["x*"]);
    pass(2).await;
    assert_eq!(bench.has_now("a"), ["x?*", "y"]);
    pass(301).await;
    assert_eq!(bench.has_now("a"), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_that_its_grants_name_or_that_is_left_alone_is_trusted() {
    let (first, second) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start(&[with_secret()], &[]);
    let both = [("1.wasm", Some(&second), 1), ("2.wasm", Some(&first), 0)];
    bench.handlers.send_replace(registered(&both));
    idle().await;
    assert_eq!(properties(&second), [0]);
    bench.handlers.send_replace(registered(&both[..1]));
    idle().await;
    assert_eq!(properties(&second), [0, 1]);
    let named = FakeHandler::named("udev@2");
    let both = [("1.wasm", Some(&named), 1), ("2.wasm", Some(&first), 0)];
    bench.handlers.send_replace(registered(&both));
    bench
        .problem("a", "1.wasm and 2.wasm: each of them gets")
        .await;
    assert_eq!(properties(&named), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_left_alone_gets_no_secret_if_the_name_belongs_to_another() {
    let second = FakeHandler::new("udev@2");
    let bench = start(&[with_secret()], &[]);
    let mut set = HandlerSet::clone(&registered(&[("a.wasm", Some(&second), 1)]));
    let owner = |is_there| TrustedSource {
        source: "z.wasm".to_owned(),
        is_there,
    };
    set.trusted.insert("udev".to_owned(), owner(false));
    bench.handlers.send_replace(Arc::new(set.clone()));
    let told = "comes from a.wasm, and its name belongs to z.wasm, which is gone: a.wasm gets none";
    bench.problem("a", told).await;
    second.say("a", complete(&[shared("x")]));
    bench.has("a", &["x"]).await;
    // Not even if it has that name: it is another file.
    let same = TrustedSource {
        source: "a.wasm".to_owned(),
        is_there: false,
    };
    set.trusted.insert("udev".to_owned(), same);
    bench.handlers.send_replace(Arc::new(set.clone()));
    idle().await;
    assert_eq!(properties(&second), [0]);
    let named = FakeHandler::named("udev@2");
    let mut set = HandlerSet::clone(&registered(&[("a.wasm", Some(&named), 1)]));
    set.trusted.insert("udev".to_owned(), owner(false));
    bench.handlers.send_replace(Arc::new(set));
    idle().await;
    assert_eq!(properties(&named), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_source_is_offline_keeps_its_devices_and_is_then_forgotten() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.serve(&[]);
    bench.statuses(&["udev.wasm: Offline"]).await;
    pass(299).await;
    assert_eq!(bench.has_now("a"), ["1"]);
    pass(2).await;
    bench.has("a", &[]).await;
    bench.statuses(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn new_bytes_that_say_unchanged_at_first_have_no_device() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    let new = FakeHandler::new("udev@2");
    bench.serve(&[("udev.wasm", &new)]);
    idle().await;
    new.say("a", found(Devices::Unchanged));
    bench.has("a", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_under_a_new_name_takes_over_from_the_old_one() {
    let (old, new) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start(&[configured("a", "udev", "")], &[("1.wasm", &old)]);
    idle().await;
    old.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.serve(&[("2.wasm", &new)]);
    bench
        .statuses(&["1.wasm: Offline", "2.wasm: Waiting"])
        .await;
    idle().await;
    let mut better = local("1");
    better.physical_id = Some("usb-1".to_owned());
    new.say("a", complete(&[better]));
    wait_for(&bench.devices, |snapshot| {
        let view = snapshot.configurations.get(&key("a"));
        let mut devices = view.into_iter().flat_map(|view| view.devices.values());
        devices.any(|view| {
            view.device
                .as_ref()
                .is_some_and(|device| device.physical_id.is_some())
        })
    })
    .await;
    let report = Arc::clone(&bench.report.borrow());
    assert_eq!(report.configurations[&key("a")].problems, []);
}

#[tokio::test(start_paused = true)]
async fn a_removed_handler_comes_back_at_once_with_new_bytes() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", fault());
    bench.statuses(&["udev.wasm: Offline"]).await;
    pass(301).await;
    bench.statuses(&["udev.wasm: Removed"]).await;
    let better = FakeHandler::new("udev@2");
    bench.serve(&[("udev.wasm", &better)]);
    bench.statuses(&["udev.wasm: Waiting"]).await;
    idle().await;
    better.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_opens_the_session_anew_and_says_why() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "x")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.configure(&[configured("a", "udev", "y")]);
    idle().await;
    let regranted = FakeHandler::new("udev@1");
    bench.serve(&[("udev.wasm", &regranted)]);
    idle().await;
    let replaced = FakeHandler::new("udev@2");
    bench.serve(&[("udev.wasm", &replaced)]);
    idle().await;
    assert_eq!(udev.opened(), [r#"a "x" First"#, r#"a "y" Changed"#]);
    assert_eq!(regranted.opened(), [r#"a "y" Changed"#]);
    assert_eq!(replaced.opened(), [r#"a "y" First"#]);
    assert_eq!(bench.has_now("a"), ["1"], "nothing is withdrawn by a swap");
    bench.statuses(&["udev.wasm: Active"]).await;

    let seen = bench.devices.clone();
    let before = Arc::clone(&seen.borrow());
    replaced.say("a", complete(&[local("1")]));
    idle().await;
    assert!(
        Arc::ptr_eq(&before, &seen.borrow()),
        "the same devices are not news"
    );
}

/// Returns a source that does not load.
fn broken(source: &str) -> (String, LoadedSource) {
    let error = LoadError::new(source, "is not a component", false);
    let loaded = LoadedSource {
        error: Some(error),
        ..LoadedSource::default()
    };
    (source.to_owned(), loaded)
}

#[tokio::test(start_paused = true)]
async fn what_the_first_source_lacks_waits_for_the_one_that_loads_last() {
    let (one, two) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start_with(&[configured("a", "udev", "")], &[], &earlier("a", &["x"]));
    let mut set = HandlerSet::clone(&handler_set(&[("1.wasm", &one)]));
    set.complete = false;
    set.sources
        .extend([("2.wasm".to_owned(), LoadedSource::default())]);
    bench.handlers.send_replace(Arc::new(set));
    idle().await;
    let departed = Discovery {
        devices: Devices::Complete(Vec::new()),
        departed: vec!["x".to_owned()],
        left_out: LeftOuts::default(),
    };
    one.say("a", report(Outcome::Discovered(departed)));
    idle().await;
    bench.serve(&[("1.wasm", &one), ("2.wasm", &two)]);
    idle().await;
    assert_eq!(bench.has_now("a"), ["x*"]);
    two.say("a", complete(&[shared("x")]));
    bench.has("a", &["x"]).await;
}

#[tokio::test(start_paused = true)]
async fn once_a_silent_source_is_removed_what_the_others_lack_is_missing() {
    let (one, two) = (FakeHandler::new("udev@1"), FakeHandler::named("udev@2"));
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("1.wasm", &one), ("2.wasm", &two)],
        &earlier("a", &["x"]),
    );
    idle().await;
    two.say("a", complete(&[shared("y")]));
    bench.has("a", &["x*", "y"]).await;
    bench.serve(&[("2.wasm", &two)]);
    pass(301).await;
    assert_eq!(bench.has_now("a"), ["x?*", "y"]);
    pass(301).await;
    assert_eq!(bench.has_now("a"), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_never_loads_keeps_devices_of_an_earlier_run_for_five_minutes_whoever_answers_then()
 {
    let udev = FakeHandler::new("udev@1");
    let bench = start_with(
        &[configured("a", "udev", ""), configured("b", "udev", "")],
        &[("1.wasm", &udev)],
        &earlier("b", &["x"]),
    );
    let mut set = HandlerSet::clone(&handler_set(&[("1.wasm", &udev)]));
    set.sources.extend([broken("bad.wasm")]);
    bench.handlers.send_replace(Arc::new(set));
    idle().await;
    for configuration in ["a", "b"] {
        udev.say(configuration, complete(&[shared("y")]));
    }
    bench.has("b", &["x*", "y"]).await;
    tokio::time::advance(Duration::from_secs(299)).await;
    idle().await;
    // The answer and the end of the five minutes come at once.
    udev.say("a", complete(&[shared("y")]));
    tokio::time::advance(Duration::from_millis(1002)).await;
    idle().await;
    assert_eq!(bench.has_now("b"), ["x?*", "y"]);
    pass(301).await;
    assert_eq!(bench.has_now("b"), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn explanations_of_all_sessions_share_their_room() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    let wordy = || {
        let one = Explanation {
            subject: "x".repeat(1 << 20),
            rule: String::new(),
            reason: String::new(),
        };
        Report {
            explained: vec![one; 20],
            explained_dropped: 1,
            ..complete(&[])
        }
    };
    // Waits for the number of kept explanations and of further ones.
    let kept = async |configuration: &'static str, expected: (usize, u64)| {
        wait_for(&bench.report, |report| {
            let view = report.configurations.get(&key(configuration));
            let session = view.and_then(|view| view.sessions.first());
            session.is_some_and(|one| (one.skipped.len(), one.skipped_dropped) == expected)
        })
        .await;
    };
    udev.say("a", wordy());
    kept("a", (15, 6)).await;
    let both = ["a", "b"].map(|name| configured(name, "udev", ""));
    bench.configure(&both);
    idle().await;
    udev.say("a", wordy());
    kept("a", (7, 14)).await;
    udev.say("b", wordy());
    kept("b", (7, 14)).await;
}
