//! Tests of the loader task with fake files.

use std::time::Duration;

use leafhost_core::backoff;
use leafhost_fakes::{FakeLoader, Files, file, version, wait_for};

use super::*;

mod neighbours;

struct Bench {
    files: Arc<Files>,
    loader: Arc<FakeLoader>,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start(files: Files) -> Bench {
    let (files, loader) = (Arc::new(files), Arc::new(FakeLoader::default()));
    let source: Arc<dyn HandlerSource> = Arc::<Files>::clone(&files);
    let store: Arc<dyn LoaderStore> = Arc::<Files>::clone(&files);
    let (task, handlers) = LoaderTask::new(source, store, Arc::<FakeLoader>::clone(&loader));
    let shutdown = CancellationToken::new();
    Bench {
        files,
        loader,
        handlers,
        task: tokio::spawn(task.run(shutdown.clone())),
        shutdown,
    }
}

/// Formats each source as `<source>: <handler>[, <error>]`.
fn shown(set: &HandlerSet) -> Vec<String> {
    set.sources
        .iter()
        .map(|(name, loaded)| {
            let handler = loaded.handler.as_ref();
            let serves = handler.map_or("nothing", |handler| handler.facts().digest.0.as_str());
            let error = loaded
                .error
                .as_ref()
                .map_or(String::new(), |error| format!(", {}", error.message));
            format!("{name}: {serves}{error}")
        })
        .collect()
}

impl Bench {
    async fn serves(&self, expected: &[&str]) {
        wait_for(&self.handlers, |set| set.complete && shown(set) == expected).await;
    }

    /// Waits until these versions are stored as accepted.
    async fn accepts(&self, expected: &[&str]) {
        let accepted = || {
            let accepted = self.files.accepted.lock().unwrap();
            let files = accepted.values().map(|(file, _)| version(file).digest.0);
            files.collect::<Vec<_>>()
        };
        let wait = async {
            while accepted() != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_mins(1), wait).await;
        assert!(waited.is_ok(), "{:?}", accepted());
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_is_loaded_replaced_and_removed() {
    let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
    bench.serves(&["a.wasm: udev@1"]).await;
    bench
        .files
        .put(&[file("a.wasm", "udev@2"), file("b.wasm", "echo@1")]);
    bench.serves(&["a.wasm: udev@2", "b.wasm: echo@1"]).await;
    bench.files.put(&[file("b.wasm", "echo@1")]);
    bench.serves(&["b.wasm: echo@1"]).await;
    assert_eq!(bench.loader.loads.lock().unwrap().len(), 3);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_load_leaves_the_last_good_version_serving() {
    for garbage in ["broken", "panic"] {
        let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
        bench.serves(&["a.wasm: udev@1"]).await;
        bench.files.put(&[file("a.wasm", garbage)]);
        let set = wait_for(&bench.handlers, |set| shown(set).concat().contains(", ")).await;
        assert!(
            shown(&set).concat().starts_with("a.wasm: udev@1, "),
            "{set:?}"
        );
        bench.accepts(&["udev@1"]).await;
        bench.files.put(&[file("a.wasm", "udev@1")]);
        bench.serves(&["a.wasm: udev@1"]).await;
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_start_the_accepted_version_serves_while_the_newest_does_not() {
    let files = Files::new(&[file("a.wasm", "broken")]);
    files.accept(&file("a.wasm", "udev@1"), "udev");
    let bench = start(files);
    bench.serves(&["a.wasm: udev@1, is not a component"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_accepted_version_is_tried_again_too_whatever_takes_the_broken_ones_place() {
    let files = Files::new(&[file("a.wasm", "broken")]);
    files.accept(&file("a.wasm", "udev@1"), "udev");
    let bench = start(files);
    *bench.loader.busy.lock().unwrap() = 3;
    bench.serves(&["a.wasm: nothing, is not a component"]).await;
    let mut other = file("a.wasm", "broken");
    other.grants = Some("udev: {}".into());
    bench.files.put(&[other]);
    bench.serves(&["a.wasm: udev@1, is not a component"]).await;
    tokio::time::sleep(leafhost_core::timeouts::BACKOFF_LAST * 2).await;
    let loads = bench.loader.loads.lock().unwrap().clone();
    let of_accepted = loads.iter().filter(|load| *load == "a.wasm=udev@1");
    assert_eq!(of_accepted.count(), 4, "{loads:?}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn which_source_was_first_is_known_before_it_is_loaded_and_when_a_newcomer_is() {
    let files = Files::new(&[file("z.wasm", "broken")]);
    files.accept(&file("z.wasm", "broken"), "udev");
    files.put(&[file("a.wasm", "udev@2"), file("z.wasm", "broken")]);
    let bench = start(files);
    let set = wait_for(&bench.handlers, |set| set.complete).await;
    let numbers = set.sources.values().map(|loaded| {
        let known = loaded.registration.clone().unwrap();
        (known.handler, known.number)
    });
    let is = |number| ("udev".to_owned(), number);
    assert_eq!(numbers.collect::<Vec<_>>(), [is(1), is(0)]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_sources_of_a_handler_the_one_whose_own_name_is_first_has_the_name() {
    let first = file("z.wasm", "udev@1");
    let bench = start(Files::new(std::slice::from_ref(&first)));
    bench.serves(&["z.wasm: udev@1"]).await;
    bench.files.put(&[file("a.wasm", "udev@2"), first]);
    bench.serves(&["a.wasm: udev@2", "z.wasm: udev@1"]).await;
    let set = Arc::clone(&bench.handlers.borrow());
    let digests = set.by_name().into_values().map(|udev| &udev.facts().digest);
    assert_eq!(digests.map(|one| &one.0).collect::<Vec<_>>(), ["udev@2"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_start_the_newest_version_wins_over_the_accepted_one() {
    let files = Files::new(&[file("a.wasm", "udev@2")]);
    files.accept(&file("a.wasm", "udev@1"), "udev");
    let bench = start(files);
    bench.serves(&["a.wasm: udev@2"]).await;
    bench.accepts(&["udev@2"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_accepted_version_that_still_lies_there_is_loaded_once() {
    let files = Files::new(&[file("a.wasm", "udev@1")]);
    files.accept(&file("a.wasm", "udev@1"), "udev");
    let bench = start(files);
    bench.serves(&["a.wasm: udev@1"]).await;
    assert_eq!(*bench.files.accepts.lock().unwrap(), 0, "it is kept");
    assert_eq!(*bench.loader.loads.lock().unwrap(), ["a.wasm=udev@1"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn versions_that_have_served_before_do_not_wait_for_those_that_have_not() {
    let mut lying = vec![file("y.wasm", "broken"), file("z.wasm", "udev@1")];
    lying.extend(["a", "b", "c", "d"].map(|name| file(&format!("{name}.wasm"), "new@1")));
    let files = Files::new(&lying);
    files.accept(&file("y.wasm", "echo@1"), "echo");
    files.accept(&file("z.wasm", "udev@1"), "udev");
    let bench = start(files);
    wait_for(&bench.handlers, |set| set.complete).await;
    let mut loads = bench.loader.loads.lock().unwrap().clone();
    loads[..2].sort();
    assert_eq!(loads[..2], ["y.wasm=echo@1", "z.wasm=udev@1"]);
    assert_eq!(loads.len(), 7);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_too_many_files_those_that_serve_or_have_served_are_not_left_out() {
    let crowd = |count| (0..count).map(|number| file(&format!("a{number:03}.wasm"), "new@1"));
    let served = file("y.wasm", "echo@1");
    let files = Files::new(&[]);
    files.accept(&served, "echo");
    files.put(&crowd(110).chain([served.clone()]).collect::<Vec<_>>());
    let bench = start(files);
    let told = |set: &HandlerSet| {
        let problems = set.problems.iter();
        problems
            .map(|problem| problem.source.clone())
            .collect::<Vec<_>>()
    };
    let set = wait_for(&bench.handlers, |set| set.complete).await;
    assert_eq!(set.sources.len(), MOST_HANDLERS);
    assert!(set.sources.contains_key("y.wasm"));
    assert_eq!(told(&set), ["a099.wasm, a100.wasm, a101.wasm and 8 more"]);

    bench
        .files
        .put(&crowd(40).chain([served]).collect::<Vec<_>>());
    wait_for(&bench.handlers, |set| set.sources.len() == 41).await;
    bench.files.put(&crowd(60).collect::<Vec<_>>());
    let set = wait_for(&bench.handlers, |set| {
        set.complete && set.sources.len() == 60
    })
    .await;
    assert_eq!(told(&set), Vec::<String>::new());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_is_tried_again_with_backoff() {
    let bench = {
        let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
        *bench.loader.busy.lock().unwrap() = 3;
        bench
    };
    let started = Instant::now();
    bench.serves(&["a.wasm: udev@1"]).await;
    let took = started.elapsed().as_secs_f64();
    assert!((0.75 * 7.0..7.5).contains(&took), "{took}");
    assert_eq!(bench.loader.loads.lock().unwrap().len(), 4);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_file_are_held_no_longer_than_it_is_loaded() {
    let bench = start(Files::new(&[
        file("a.wasm", "udev@1"),
        file("b.wasm", "broken"),
        file("c.wasm", "echo@1"),
    ]));
    *bench.loader.busy.lock().unwrap() = 1;
    let held = || {
        let there = bench.files.there.lock().unwrap();
        let accepted = bench.files.accepted.lock().unwrap();
        there
            .iter()
            .map(|file| {
                let kept = usize::from(accepted.contains_key(&file.name));
                Arc::strong_count(&file.bytes) - 1 - kept
            })
            .collect::<Vec<_>>()
    };
    let released = async || {
        while held() != [0, 0, 0] {
            tokio::task::yield_now().await;
        }
    };
    wait_for(&bench.handlers, |set| set.complete).await;
    // One waits for its retry.
    released().await;
    bench
        .serves(&[
            "a.wasm: udev@1",
            "b.wasm: nothing, is not a component",
            "c.wasm: echo@1",
        ])
        .await;
    released().await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_cannot_be_read_is_tried_again_while_what_was_there_serves() {
    let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
    bench.serves(&["a.wasm: udev@1"]).await;
    let newer = [file("a.wasm", "udev@2")];
    bench.files.put(&newer);
    bench.files.there.lock().unwrap().clear();
    bench.serves(&["a.wasm: udev@1, is missing"]).await;
    bench.accepts(&["udev@1"]).await;
    *bench.files.there.lock().unwrap() = newer.to_vec();
    bench.serves(&["a.wasm: udev@2"]).await;
    bench.accepts(&["udev@2"]).await;

    bench.files.put(&[file("a.wasm", "udev@3")]);
    bench.files.there.lock().unwrap().clear();
    bench.serves(&["a.wasm: udev@2, is missing"]).await;
    let since = Instant::now();
    bench.files.put(&[file("a.wasm", "udev@4")]);
    bench.serves(&["a.wasm: udev@4"]).await;
    assert!(
        since.elapsed() < backoff::wait(1),
        "another version does not wait for it"
    );
    let loads = bench.loader.loads.lock().unwrap().clone();
    assert_eq!(loads, ["a.wasm=udev@1", "a.wasm=udev@2", "a.wasm=udev@4"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_was_replaced_while_it_loaded_never_serves() {
    let mut bench = start(Files::new(&[file("a.wasm", "udev@1")]));
    while bench.loader.running.lock().unwrap().0 == 0 {
        tokio::task::yield_now().await;
    }
    bench.files.put(&[file("a.wasm", "udev@2")]);
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "a.wasm: udev@2") {
        bench.handlers.changed().await.unwrap();
        seen.extend(shown(&bench.handlers.borrow_and_update()));
    }
    assert_eq!(seen, ["a.wasm: nothing", "a.wasm: udev@2"]);
    bench.accepts(&["udev@2"]).await;
    assert_eq!(bench.loader.loads.lock().unwrap().len(), 2);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn two_files_are_loaded_at_once_and_no_more() {
    let files: Vec<_> = (0..6)
        .map(|n| file(&format!("{n}.wasm"), &format!("h{n}@1")))
        .collect();
    let bench = start(Files::new(&files));
    wait_for(&bench.handlers, |set| {
        set.complete && set.sources.len() == 6
    })
    .await;
    assert_eq!(bench.loader.running.lock().unwrap().1, 2);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_set_is_complete_only_when_every_file_has_been_tried() {
    let mut bench = start(Files::new(&[
        file("a.wasm", "udev@1"),
        file("b.wasm", "broken"),
    ]));
    let mut seen = Vec::new();
    loop {
        bench.handlers.changed().await.unwrap();
        let set = Arc::clone(&bench.handlers.borrow_and_update());
        seen.push((set.complete, shown(&set).len()));
        if set.complete {
            break;
        }
    }
    assert!(seen.len() > 1, "{seen:?}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn changed_grants_are_a_new_handler() {
    let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
    bench.serves(&["a.wasm: udev@1"]).await;
    let old = bench.handlers.borrow().sources["a.wasm"]
        .handler
        .clone()
        .unwrap();
    let mut granted = file("a.wasm", "udev@1");
    granted.grants = Some("udev: {}".into());
    bench.files.put(&[granted.clone()]);
    wait_for(&bench.handlers, |set| {
        let new = set.sources["a.wasm"].handler.as_ref().unwrap();
        !Arc::ptr_eq(new, &old)
    })
    .await;
    let is_stored = || bench.files.accepted()["a.wasm"].version == version(&granted);
    while !is_stored() {
        tokio::task::yield_now().await;
    }
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_has_died_of_is_loaded_after_the_others_and_alone() {
    let files = Files::new(&["a", "b", "c", "d"].map(|name| {
        let handler = format!("{name}@1");
        file(&format!("{name}.wasm"), &handler)
    }));
    *files.deaths.lock().unwrap() = BTreeMap::from([("a@1".into(), 1), ("b@1".into(), 2)]);
    let begin = Instant::now();
    let bench = start(files);
    let set = wait_for(&bench.handlers, |set| set.complete).await;
    let shown = shown(&set).join("\n");
    assert!(
        shown.contains("a.wasm: nothing, the agent has died 1 time in a row")
            && shown.contains("b.wasm: nothing, the agent has died 2 times")
            && shown.contains("c.wasm: c@1"),
        "{shown}"
    );
    assert!(begin.elapsed().as_secs() < 1, "nobody waits for them");
    bench
        .serves(&["a.wasm: a@1", "b.wasm: b@1", "c.wasm: c@1", "d.wasm: d@1"])
        .await;
    assert!(begin.elapsed() > backoff::wait(3), "{:?}", begin.elapsed());
    let loading = bench.files.loading.lock().unwrap().clone();
    let alone = |digest: &str| {
        let mut with = loading
            .iter()
            .filter(|all| all.iter().any(|one| one == digest));
        with.all(|all| all.len() == 1)
    };
    assert!(alone("a@1") && alone("b@1") && !alone("c@1"), "{loading:?}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_has_died_of_three_times_is_offline_until_another_version_takes_its_place() {
    let files = Files::new(&[file("a.wasm", "udev@2"), file("b.wasm", "echo@1")]);
    files.accept(&file("a.wasm", "udev@1"), "udev");
    files.accept(&file("b.wasm", "echo@1"), "echo");
    *files.deaths.lock().unwrap() = BTreeMap::from([("udev@2".into(), 3), ("echo@1".into(), 3)]);
    let bench = start(files);
    let set = wait_for(&bench.handlers, |set| {
        set.complete && shown(set).concat().contains("udev@1, ")
    })
    .await;
    for (name, source) in &set.sources {
        let error = source.error.as_ref().unwrap();
        assert!(source.given_up && !error.transient, "{name}");
        assert!(error.message.contains("3 times in a row"), "{error}");
    }
    tokio::time::sleep(leafhost_core::timeouts::BACKOFF_LAST * 2).await;
    assert_eq!(*bench.loader.loads.lock().unwrap(), ["a.wasm=udev@1"]);
    bench
        .files
        .put(&[file("a.wasm", "udev@3"), file("b.wasm", "echo@2")]);
    bench.serves(&["a.wasm: udev@3", "b.wasm: echo@2"]).await;
    assert!(!bench.handlers.borrow().sources["a.wasm"].given_up);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_being_loaded_is_remembered_until_it_ends_and_a_stop_is_no_death() {
    let bench = start(Files::new(&[
        file("a.wasm", "udev@1"),
        file("b.wasm", "broken"),
        file("c.wasm", "panic"),
    ]));
    wait_for(&bench.handlers, |set| set.complete).await;
    bench.files.put(&[file("a.wasm", "udev@2")]);
    while bench.loader.running.lock().unwrap().0 == 0 {
        tokio::task::yield_now().await;
    }
    let files = Arc::clone(&bench.files);
    bench.end().await;
    let mut loading = files.loading.lock().unwrap().clone();
    loading.dedup();
    let told: Vec<String> = loading.iter().map(|all| all.join(" ")).collect();
    assert_eq!(told[0], "udev@1 broken");
    assert_eq!(told[told.len() - 3..], ["", "udev@2", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_used_serves_as_it_was_accepted_also_after_a_start() {
    for partial in [false, true] {
        let files = Files::new(&[]);
        files.accept(&file("a.wasm", "udev@1"), "udev");
        // If the folder is missing, no file is listed.
        let listed = (!partial).then(|| ("a.wasm".to_owned(), None));
        files.set.send_replace(Arc::new(SourceSet {
            complete: true,
            partial,
            files: listed.into_iter().collect(),
            ..SourceSet::default()
        }));
        let bench = start(files);
        bench.serves(&["a.wasm: udev@1"]).await;
        bench.accepts(&["udev@1"]).await;
        if partial {
            // The file was in another folder, and is gone.
            bench.files.set.send_replace(Arc::new(SourceSet {
                complete: true,
                partial,
                gone: ["a.wasm".to_owned()].into(),
                ..SourceSet::default()
            }));
        } else {
            bench.files.put(&[]);
        }
        bench.serves(&[]).await;
        bench.accepts(&[]).await;
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_serves_and_is_reported_and_tried_again() {
    let bench = start(Files::new(&[file("a.wasm", "udev@1")]));
    *bench.files.full.lock().unwrap() = true;
    let is_reported = |set: &Arc<HandlerSet>| !set.problems.is_empty();
    wait_for(&bench.handlers, is_reported).await;
    bench.serves(&["a.wasm: udev@1"]).await;
    *bench.files.full.lock().unwrap() = false;
    wait_for(&bench.handlers, |set| set.problems.is_empty()).await;
    bench.accepts(&["udev@1"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_keeps_its_place_while_it_is_the_same_handler() {
    let bench = start(Files::new(&[file("b.wasm", "udev@1")]));
    bench.serves(&["b.wasm: udev@1"]).await;
    let places = |set: &HandlerSet| {
        let of = |loaded: &LoadedSource| {
            let known = loaded.registration.clone()?;
            Some((known.handler, known.number))
        };
        set.sources.values().map(of).collect::<Vec<_>>()
    };
    let is = |handler: &str, number| Some((handler.to_owned(), number));
    let put = async |files: [&str; 2], expected: [Option<(String, u64)>; 2]| {
        let [a, b] = files;
        bench.files.put(&[file("a.wasm", a), file("b.wasm", b)]);
        wait_for(&bench.handlers, |set| places(set) == expected).await;
    };
    put(["echo@1", "udev@2"], [is("echo", 0), is("udev", 0)]).await;
    put(["udev@9", "udev@3"], [is("udev", 1), is("udev", 0)]).await;
    put(["udev@9", "echo@1"], [is("udev", 1), is("echo", 0)]).await;
    put(["udev@9", "udev@4"], [is("udev", 1), is("udev", 2)]).await;
    bench.accepts(&["udev@9", "udev@4"]).await;
    let stored = bench.files.accepted();
    assert_eq!(stored["b.wasm"].registration.number, 2);
    bench.end().await;
}
