//! Tests of the discovery task on paused time, with sessions that answer as told.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::{Device, DeviceKey};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::LeftOuts;
use leafhost_core::ports::ConfiguredDiscovery;
use leafhost_core::presence::Presence;
use leafhost_core::session::{Devices, Discovery, Explanation, Outcome, Property, Report};
use leafhost_fakes::{
    FakeHandler, complete, configuration_set, configured, configured_as, found, idle, key, report,
    wait_for,
};

use self::sources::registered;
use super::*;

struct Bench {
    configurations: watch::Sender<Arc<ConfigurationSet>>,
    handlers: watch::Sender<Arc<HandlerSet>>,
    instances: watch::Sender<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    report: watch::Receiver<Arc<DiscoveryReport>>,
    metrics: Arc<Metrics>,
    registry: prometheus_client::registry::Registry,
    _task: tokio_util::task::AbortOnDropHandle<Result<(), SourceEnded>>,
}

fn start(configurations: &[ConfiguredDiscovery], handlers: &[(&str, &Arc<FakeHandler>)]) -> Bench {
    start_with(
        configurations,
        handlers,
        &InstanceSet::read(BTreeMap::new()),
    )
}

fn start_with(
    configurations: &[ConfiguredDiscovery],
    handlers: &[(&str, &Arc<FakeHandler>)],
    instances: &InstanceSet,
) -> Bench {
    let clock = Clock::new(Timestamp::UNIX_EPOCH);
    start_at(clock, configurations, handlers, instances)
}

fn start_at(
    clock: Clock,
    configurations: &[ConfiguredDiscovery],
    handlers: &[(&str, &Arc<FakeHandler>)],
    instances: &InstanceSet,
) -> Bench {
    let (configurations, c) = watch::channel(configuration_set(configurations.to_vec()));
    let (handlers, h) = watch::channel(handler_set(handlers));
    let (instances, stored) = watch::channel(Arc::new(instances.clone()));
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    let config = DiscoveryConfig {
        node: "node-a".to_owned(),
        eviction: Duration::from_mins(5),
        clock,
    };
    let (task, devices, report) = DiscoveryTask::new(config, Arc::clone(&metrics), c, h, stored);
    let task = tokio::spawn(task.run(CancellationToken::new()));
    Bench {
        configurations,
        handlers,
        instances,
        devices,
        report,
        metrics,
        registry,
        _task: tokio_util::task::AbortOnDropHandle::new(task),
    }
}

/// Returns Instances of shared devices of an earlier run.
fn earlier(configuration: &str, ids: &[&str]) -> InstanceSet {
    let instance = |id: &&str| {
        let instance: leafhost_core::instance::Instance = serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": format!("{configuration}-{id}"), "namespace": "default"},
            "spec": {"configurationName": configuration, "shared": true, "nodes": ["node-a"], "leafhost": {"id": id}},
        }))
        .unwrap();
        (instance.key(), Arc::new(instance))
    };
    InstanceSet::read(ids.iter().map(instance).collect())
}

fn handler_set(handlers: &[(&str, &Arc<FakeHandler>)]) -> Arc<HandlerSet> {
    let numbered = handlers.iter().zip(0..);
    let sources: Vec<_> = numbered
        .map(|((source, handler), number)| (*source, Some(*handler), number))
        .collect();
    registered(&sources)
}

impl Bench {
    fn configure(&self, configurations: &[ConfiguredDiscovery]) {
        self.configurations
            .send_replace(configuration_set(configurations.to_vec()));
    }

    fn serve(&self, handlers: &[(&str, &Arc<FakeHandler>)]) {
        self.handlers.send_replace(handler_set(handlers));
    }

    /// Waits for handlers in the form `<source>: <status>`.
    async fn statuses(&self, expected: &[&str]) {
        wait_for(&self.report, |report| {
            let shown = |handler: &HandlerReport| format!("{}: {}", handler.source, handler.status);
            report.handlers.iter().map(shown).collect::<Vec<_>>() == expected
        })
        .await;
    }

    /// Waits for the ids of a Configuration's devices, with `?` after missing ones and `*` after those not seen since the start.
    async fn has(&self, configuration: &str, expected: &[&str]) {
        wait_for(&self.devices, |snapshot| {
            shown(snapshot, configuration) == expected
        })
        .await;
    }

    fn has_now(&self, configuration: &str) -> Vec<String> {
        shown(&self.devices.borrow(), configuration)
    }

    async fn problem(&self, configuration: &str, words: &str) {
        let key = key(configuration);
        wait_for(&self.report, |report| {
            let view = report.configurations.get(&key);
            view.is_some_and(|view| {
                view.problems
                    .iter()
                    .any(|problem| problem.to_string().contains(words))
            })
        })
        .await;
    }
}

fn shown(snapshot: &DeviceSnapshot, configuration: &str) -> Vec<String> {
    let Some(view) = snapshot.configurations.get(&key(configuration)) else {
        return Vec::new();
    };
    let shown = |(key, view): (&DeviceKey, &leafhost_core::device_view::DeviceView)| {
        let missing = if view.missing_since.is_some() {
            "?"
        } else {
            ""
        };
        let unseen = if view.device.is_none() { "*" } else { "" };
        format!("{}{missing}{unseen}", key.id)
    };
    view.devices.iter().map(shown).collect()
}

fn local(id: &str) -> Device {
    Device::new(id, false)
}

fn shared(id: &str) -> Device {
    Device::new(id, true)
}

fn fault() -> Report {
    let fault = Fault::new(FaultReason::Trap, "unreachable");
    report(Outcome::Faulted(fault))
}

async fn pass(seconds: u64) {
    idle().await;
    tokio::time::advance(Duration::from_secs(seconds)).await;
    idle().await;
}

#[tokio::test(start_paused = true)]
async fn one_failing_session_beside_healthy_ones_leaves_the_handler_active() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(
        &[
            configured("a", "udev", ""),
            configured("b", "udev", ""),
            configured("c", "udev", ""),
        ],
        &[("udev.wasm", &udev)],
    );
    bench.statuses(&["udev.wasm: Waiting"]).await;
    idle().await;
    assert!(udev.say("a", complete(&[local("1")])));
    assert!(udev.say("b", complete(&[local("2")])));
    for _ in 0..20 {
        assert!(udev.say("c", fault()));
    }
    bench.has("a", &["1"]).await;
    bench.has("b", &["2"]).await;
    wait_for(&bench.report, |report| {
        let views = report.configurations.get(&key("c"));
        let mut views = views.into_iter().flat_map(|view| &view.sessions);
        views.any(|view| view.failures == 20 && view.result.label() == "trap")
    })
    .await;
    bench.statuses(&["udev.wasm: Active"]).await;
    pass(3600).await;
    bench.statuses(&["udev.wasm: Active"]).await;
    assert_eq!(bench.has_now("a"), ["1"]);
    let faults = r#"leafhost_handler_faults_total{handler="udev",reason="trap"} 20"#;
    assert!(leafhost_metrics::render(&bench.registry).contains(faults));
}

#[tokio::test(start_paused = true)]
async fn devices_stay_while_offline_go_at_the_removal_and_come_back_with_the_retry() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.statuses(&["udev.wasm: Active"]).await;
    udev.say("a", fault());
    bench.statuses(&["udev.wasm: Offline"]).await;
    pass(299).await;
    assert_eq!(bench.has_now("a"), ["1"]);
    pass(2).await;
    bench.statuses(&["udev.wasm: Removed"]).await;
    bench.has("a", &[]).await;
    bench.problem("a", "calls it again at").await;
    assert!(
        !udev.say("a", complete(&[local("1")])),
        "its session has ended"
    );
    pass(300).await;
    bench.statuses(&["udev.wasm: Waiting"]).await;
    idle().await;
    assert_eq!(udev.opened(), [r#"a "" First"#, r#"a "" First"#]);
    udev.say("a", complete(&[local("1")]));
    bench.statuses(&["udev.wasm: Active"]).await;
    bench.has("a", &["1"]).await;
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_handler_are_answers_and_withdraw_nothing() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", report(Outcome::Unavailable("no bus".into())));
    bench.statuses(&["udev.wasm: Active"]).await;
    udev.say("a", complete(&[local("1")]));
    udev.say(
        "a",
        report(Outcome::InvalidDetails(vec![FieldProblem::new(
            "x", "is wrong",
        )])),
    );
    wait_for(&bench.report, |report| {
        !report.configurations[&key("a")].invalid_details.is_empty()
    })
    .await;
    bench.statuses(&["udev.wasm: Active"]).await;
    assert_eq!(bench.has_now("a"), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn deleting_configurations_ends_sessions_and_leads_back_to_waiting() {
    let udev = FakeHandler::new("udev@1");
    let (a, b) = (configured("a", "udev", ""), configured("b", "udev", ""));
    let bench = start(&[a.clone(), b.clone()], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    udev.say("b", complete(&[local("2")]));
    bench.has("a", &["1"]).await;
    bench.has("b", &["2"]).await;
    bench.configure(&[b]);
    bench.has("a", &[]).await;
    bench.statuses(&["udev.wasm: Active"]).await;
    idle().await;
    assert!(!udev.say("a", complete(&[])), "its session has ended");
    assert!(!leafhost_metrics::render(&bench.registry).contains(r#"configuration="a""#));
    bench.configure(&[]);
    bench.statuses(&["udev.wasm: Waiting"]).await;
}

#[tokio::test]
async fn an_answer_to_an_older_order_is_dropped() {
    let udev = FakeHandler::new("udev@1");
    let (_keep, c) = watch::channel(Arc::default());
    let (_keep, h) = watch::channel(Arc::default());
    let (_keep, stored) = watch::channel(Arc::default());
    let config = DiscoveryConfig {
        node: "node-a".to_owned(),
        eviction: Duration::from_mins(5),
        clock: Clock::new(Timestamp::UNIX_EPOCH),
    };
    let (mut task, ..) = DiscoveryTask::new(
        config,
        Arc::new(Metrics::new(
            &mut prometheus_client::registry::Registry::default(),
        )),
        c,
        h,
        stored,
    );
    task.handler_set = handler_set(&[("udev.wasm", &udev)]);
    let answer = |generation| Answer {
        id: SessionId {
            configuration: key("a"),
            handler: HandlerKey {
                name: "udev".to_owned(),
                source: "udev.wasm".to_owned(),
            },
        },
        generation,
        report: Box::new(complete(&[local("1")])),
    };
    let devices = |task: &DiscoveryTask| {
        let session = &task.served[&key("a")].sessions["udev.wasm"];
        session.devices.tracked().len()
    };
    for details in ["x", "y"] {
        task.configuration_set = configuration_set([configured("a", "udev", details)]);
        task.sync();
    }
    let newest = task.generation;
    task.answered(answer(newest - 1));
    assert_eq!(devices(&task), 0);
    task.answered(answer(newest));
    assert_eq!(devices(&task), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_the_details_changed_is_dropped() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "x")], &[("udev.wasm", &udev)]);
    idle().await;
    // Both are there before any task runs again: the answer belongs to `x`.
    udev.say("a", complete(&[local("old")]));
    bench.configure(&[configured("a", "udev", "y")]);
    idle().await;
    udev.say("a", complete(&[local("new")]));
    bench.has("a", &["new"]).await;
    assert_eq!(udev.opened(), [r#"a "x" First"#, r#"a "y" Changed"#]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_no_other_source_of_the_name_says_that_a_device_has_departed() {
    let (own, other) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("1.wasm", &other), ("2.wasm", &own)],
        &earlier("a", &["x", "y"]),
    );
    idle().await;
    other.say(
        "a",
        report(Outcome::Discovered(Discovery {
            devices: Devices::Complete(Vec::new()),
            departed: vec!["x".to_owned(), "y".to_owned()],
            left_out: LeftOuts::default(),
        })),
    );
    idle().await;
    bench.has("a", &["x*", "y*"]).await;
    own.say("a", complete(&[shared("x")]));
    bench.has("a", &["x"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_gone_leaves_no_series_behind() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("1.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    assert!(leafhost_metrics::render(&bench.registry).contains("\"udev\""));
    bench.serve(&[]);
    pass(301).await;
    bench.has("a", &[]).await;
    assert!(!leafhost_metrics::render(&bench.registry).contains("\"udev\""));
}

#[tokio::test(start_paused = true)]
async fn details_the_handler_refuses_are_shown_and_it_is_not_called() {
    let udev = FakeHandler::new("udev@1");
    let problems = vec![FieldProblem::new("udevRules[0]", "has no operator")];
    udev.validations
        .lock()
        .unwrap()
        .push_back(Ok(problems.clone()));
    let bench = start(&[configured("a", "udev", "x")], &[("udev.wasm", &udev)]);
    wait_for(&bench.report, |report| {
        report
            .configurations
            .get(&key("a"))
            .is_some_and(|view| view.invalid_details == problems)
    })
    .await;
    assert_eq!(udev.opened(), Vec::<String>::new());
    bench.statuses(&["udev.wasm: Active"]).await;
    bench.configure(&[configured("a", "udev", "y")]);
    wait_for(&bench.report, |report| {
        report.configurations[&key("a")].invalid_details.is_empty()
    })
    .await;
    idle().await;
    assert_eq!(udev.opened().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fault_while_validating_is_a_failure_and_is_tried_again() {
    let udev = FakeHandler::new("udev@1");
    let fault = Fault::new(FaultReason::CpuBudget, "2 s");
    udev.validations.lock().unwrap().push_back(Err(fault));
    let bench = start(&[configured("a", "udev", "x")], &[("udev.wasm", &udev)]);
    bench.statuses(&["udev.wasm: Offline"]).await;
    pass(1).await;
    assert_eq!(udev.opened().len(), 1);
    udev.say("a", complete(&[]));
    bench.statuses(&["udev.wasm: Active"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_nobody_has_is_named_with_those_there_are() {
    let (udev, echo) = (FakeHandler::new("udev@1"), FakeHandler::new("debugEcho@1"));
    let bench = start(
        &[configured("a", "udve", "")],
        &[("e.wasm", &echo), ("u.wasm", &udev)],
    );
    bench
        .problem(
            "a",
            "no handler is named \"udve\"; there are debugEcho, udev",
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn without_its_properties_the_handler_is_not_called_and_devices_stay() {
    let udev = FakeHandler::new("udev@1");
    let whole = configured("a", "udev", "");
    let mut lacking = whole.clone();
    lacking.properties = Err(FieldProblem::new(
        "spec.discoveryHandler.discoveryProperties[0]",
        "Secret x is missing",
    ));
    let bench = start(std::slice::from_ref(&whole), &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.configure(std::slice::from_ref(&lacking));
    bench.problem("a", "Secret x is missing").await;
    idle().await;
    // A problem that the source reports with its file is not repeated.
    let mut told = ConfigurationSet::clone(&configuration_set([lacking]));
    told.problems.push(leafhost_core::ports::SourceProblem {
        source: "a.yaml".into(),
        line: None,
        path: "spec.discoveryHandler.discoveryProperties[0]".into(),
        message: "Secret x is missing".into(),
        configuration: Some(key("a")),
    });
    bench.configurations.send_replace(Arc::new(told));
    wait_for(&bench.report, |report| {
        report.set.problems.len() == 1 && report.configurations[&key("a")].problems.is_empty()
    })
    .await;
    assert!(!udev.say("a", complete(&[])), "its session has ended");
    bench.statuses(&["udev.wasm: Waiting"]).await;
    pass(3600).await;
    assert_eq!(bench.has_now("a"), ["1"]);
    bench.configure(&[whole]);
    idle().await;
    assert_eq!(udev.opened().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_breaks_down_is_a_failure_and_starts_again() {
    let udev = FakeHandler::new("udev@1");
    *udev.panics.lock().unwrap() = 2;
    let bench = start(
        &[configured("a", "udev", ""), configured("b", "udev", "")],
        &[("udev.wasm", &udev)],
    );
    bench.statuses(&["udev.wasm: Offline"]).await;
    pass(1).await;
    idle().await;
    assert_eq!(udev.opened().len(), 4);
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.statuses(&["udev.wasm: Active"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_be_used_for_now_finds_its_devices_again() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench
        .configurations
        .send_replace(Arc::new(ConfigurationSet {
            complete: true,
            problems: vec![leafhost_core::ports::SourceProblem {
                source: "a.yaml".into(),
                line: None,
                path: String::new(),
                message: "is not YAML".into(),
                configuration: Some(key("a")),
            }],
            ..ConfigurationSet::default()
        }));
    wait_for(&bench.devices, |snapshot| {
        snapshot.configurations.is_empty() && snapshot.presence(&key("a")) == Presence::Unknown
    })
    .await;
    bench.configure(&[configured("a", "udev", "")]);
    bench.has("a", &["1*"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_shared_device_goes_when_its_grace_is_over() {
    let echo = FakeHandler::new("debugEcho@1");
    let short = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "b", "annotations": {"leafhost.dev/grace": "30s"}},
        "spec": {"discoveryHandler": {"name": "debugEcho"}},
    }));
    let bench = start(
        &[configured("a", "debugEcho", ""), short],
        &[("e.wasm", &echo)],
    );
    idle().await;
    for configuration in ["a", "b"] {
        echo.say(configuration, complete(&[shared("1"), local("2")]));
        bench.has(configuration, &["1", "2"]).await;
        echo.say(configuration, complete(&[]));
    }
    bench.has("a", &["1?"]).await;
    bench.has("b", &["1?", "2?"]).await;
    pass(29).await;
    assert_eq!(bench.has_now("b"), ["1?", "2?"]);
    pass(2).await;
    assert_eq!(bench.has_now("b"), Vec::<String>::new());
    assert_eq!(bench.has_now("a"), ["1?"]);
    pass(270).await;
    assert_eq!(bench.has_now("a"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_misspelt_handler_name_withdraws_nothing_for_five_minutes() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    pass(1000).await;
    bench.configure(&[configured("a", "udve", "")]);
    bench.statuses(&["udev.wasm: Waiting"]).await;
    bench.has("a", &["1*"]).await;
    pass(200).await;
    assert_eq!(bench.has_now("a"), ["1*"]);
    pass(101).await;
    assert_eq!(bench.has_now("a"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_not_read_yet_deletes_nothing() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    bench.configurations.send_replace(Arc::default());
    wait_for(&bench.devices, |snapshot| !snapshot.absent.is_gone()).await;
    assert_eq!(bench.has_now("a"), ["1"]);
}

mod budget;
mod counts;
mod left_out;
mod restart;
mod sources;
