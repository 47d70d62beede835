use jiff::Timestamp;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::handler::Registration;
use leafhost_core::left_out::LeftOut;
use leafhost_core::node_report::ObjectName;
use leafhost_core::ports::{
    ConfigurationSet, InstanceSet, LeftOutConfiguration, LoadError, SourceProblem,
};
use leafhost_core::session::{CallStats, Explanation};
use leafhost_discovery::loader::HandlerSet;
use leafhost_discovery::{DiscoveryReport, SessionReport};
use leafhost_fakes::{FakeHandler, key};

use super::*;
use crate::document::Identity;
use crate::reconcile::ReconcileReport;

/// Board, with the senders of its state.
struct Board {
    handlers: watch::Sender<Arc<HandlerSet>>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    report: watch::Sender<Arc<DiscoveryReport>>,
    _others: (
        watch::Sender<ReconcileReport>,
        watch::Sender<Arc<InstanceSet>>,
    ),
    state: AgentState,
}

fn mk_board() -> Board {
    let (handlers, handlers_shown) = watch::channel(Arc::default());
    let (devices, devices_shown) = watch::channel(Arc::default());
    let (report, report_shown) = watch::channel(Arc::default());
    let (reconcile, reconcile_shown) = watch::channel(ReconcileReport::default());
    let (instances, instances_shown) = watch::channel(Arc::default());
    Board {
        handlers,
        devices,
        report,
        _others: (reconcile, instances),
        state: AgentState {
            identity: Arc::new(Identity::default()),
            handlers: handlers_shown,
            devices: devices_shown,
            report: report_shown,
            reconcile: reconcile_shown,
            offers: watch::channel(Arc::default()).1,
            kubelet: None,
            claims: None,
            instances: instances_shown,
            unreported: watch::channel(None).1,
        },
    }
}

fn refused(missing: &str) -> LoadError {
    LoadError {
        source_name: "x.wasm".into(),
        message: "is refused".into(),
        missing_grants: vec![missing.into()],
        transient: false,
    }
}

fn registered(name: &str, source: &str, status: &'static str, second: i64) -> HandlerReport {
    HandlerReport {
        name: name.into(),
        source: source.into(),
        status,
        since: Timestamp::from_second(second).unwrap(),
        devices: 0,
        last_error: Some("trap: unreachable".into()),
    }
}

fn handler_set(sources: Vec<(&str, LoadedSource)>, problems: Vec<SourceProblem>) -> HandlerSet {
    let owned = |(name, source): (&str, LoadedSource)| (name.to_owned(), source);
    HandlerSet {
        complete: true,
        sources: sources.into_iter().map(owned).collect(),
        problems,
        ..HandlerSet::default()
    }
}

fn reported(reason: &str, message: &str) -> ReportedProblem {
    ReportedProblem {
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn object(name: &str) -> ObjectName {
    ObjectName {
        namespace: "leafhost".into(),
        name: name.into(),
        uid: format!("uid of {name}"),
    }
}

#[test]
fn an_external_handler_has_an_endpoint_and_neither_version_nor_digest() {
    let board = mk_board();
    let serving = LoadedSource {
        handler: Some(FakeHandler::external("onvif@1", "/run/onvif.sock") as _),
        ..LoadedSource::default()
    };
    let refused = LoadedSource {
        error: Some(refused("network")),
        ..LoadedSource::default()
    };
    let sources = vec![
        ("onvif@onvif.sock", serving),
        ("opcua@10.0.0.1:80", refused),
    ];
    board
        .handlers
        .send_replace(Arc::new(handler_set(sources, Vec::new())));
    let handlers = board.state.node_report().handlers;
    let onvif = &handlers["onvif"].sources["onvif@onvif.sock"];
    assert_eq!(onvif.endpoint.as_deref(), Some("/run/onvif.sock"));
    assert_eq!((&onvif.version, &onvif.digest), (&None, &None));
    assert_eq!(handlers["opcua"].sources.len(), 1, "{handlers:?}");
}

#[test]
fn each_handler_is_reported_by_its_name_with_its_sources() {
    let board = mk_board();
    let serving = |text| LoadedSource {
        handler: Some(FakeHandler::new(text) as _),
        ..LoadedSource::default()
    };
    let kept = LoadedSource {
        error: Some(refused("udev")),
        ..serving("udev@1")
    };
    let dead = LoadedSource {
        error: Some(refused("net")),
        registration: Some(Registration {
            handler: "opcua".into(),
            number: 0,
        }),
        ..LoadedSource::default()
    };
    let unknown = LoadedSource {
        error: Some(refused("net")),
        ..LoadedSource::default()
    };
    let shadowed = SourceProblem {
        path: "onvif.wasm.gz".into(),
        ..SourceProblem::new("ConfigMap leafhost/b", "is not used")
    };
    let sources = vec![
        ("a.wasm", kept),
        ("b.wasm", dead),
        ("thermo.wasm.gz", unknown),
        ("onvif.wasm", serving("onvif@2")),
        ("second.wasm", serving("onvif@3")),
    ];
    board
        .handlers
        .send_replace(Arc::new(handler_set(sources, vec![shadowed])));
    board.report.send_replace(Arc::new(DiscoveryReport {
        handlers: vec![
            registered("onvif", "onvif.wasm", "Offline", 1),
            registered("onvif", "second.wasm", "Active", 2),
            registered("udev", "a.wasm", "Waiting", 3),
            registered("gone", "gone.wasm", "Removed", 4),
        ],
        ..DiscoveryReport::default()
    }));
    let handlers = board.state.node_report().handlers;
    let shown: Vec<_> = handlers
        .iter()
        .map(|(name, one)| {
            let since = one.since.map(Timestamp::as_second);
            (name.as_str(), one.phase, since, one.sources.len())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("gone", HandlerPhase::Offline, Some(4), 1),
            ("onvif", HandlerPhase::Active, Some(2), 2),
            ("opcua", HandlerPhase::Offline, None, 1),
            ("thermo", HandlerPhase::Offline, None, 1),
            ("udev", HandlerPhase::Waiting, Some(3), 1),
        ]
    );
    let udev = &handlers["udev"].sources["a.wasm"];
    assert_eq!(
        (udev.version.as_deref(), &udev.missing_grants[..]),
        (Some("1"), &["udev".to_owned()][..])
    );
    assert_eq!(
        udev.problem,
        Some(reported(HANDLER_REFUSED, "cannot load x.wasm: is refused"))
    );
    let onvif = &handlers["onvif"].sources;
    assert_eq!(
        onvif["onvif.wasm"].problem,
        Some(reported(
            "InvalidSource",
            "ConfigMap leafhost/b: onvif.wasm.gz: is not used"
        ))
    );
    assert_eq!(onvif["second.wasm"].problem, None);
    assert_eq!(
        handlers["gone"].sources["gone.wasm"].problem,
        Some(reported("DiscoveryFailed", "trap: unreachable"))
    );
}

#[test]
fn what_is_wrong_with_a_config_map_as_a_whole_is_reported_under_its_name() {
    let board = mk_board();
    let problem = |path: &str, message: &str| SourceProblem {
        path: path.into(),
        ..SourceProblem::new("ConfigMap leafhost/onvif", message)
    };
    let problems = vec![
        problem("notes.txt", "is not a handler"),
        problem("", "later"),
    ];
    let set = handler_set(Vec::new(), problems);
    board.handlers.send_replace(Arc::new(set));
    let handlers = board.state.node_report().handlers;
    let onvif = &handlers["onvif"];
    assert_eq!(onvif.phase, HandlerPhase::Offline);
    assert_eq!(
        onvif.sources["ConfigMap leafhost/onvif"].problem,
        Some(reported(
            "InvalidSource",
            "ConfigMap leafhost/onvif: notes.txt: is not a handler"
        ))
    );
}

#[test]
fn a_problem_of_a_config_map_names_that_object_and_not_the_one_whose_component_serves() {
    let board = mk_board();
    let shadowed = SourceProblem {
        path: "udev.wasm.gz".into(),
        ..SourceProblem::new("ConfigMap leafhost/b", "is not used")
    };
    let whole = SourceProblem::new("ConfigMap leafhost/c", "has no handler");
    let serving = LoadedSource {
        handler: Some(FakeHandler::new("udev@1") as _),
        ..LoadedSource::default()
    };
    let broken = LoadedSource {
        error: Some(refused("net")),
        ..LoadedSource::default()
    };
    let mut set = handler_set(
        vec![("udev.wasm", serving), ("x.wasm", broken)],
        vec![shadowed, whole],
    );
    for (source, name) in [
        ("udev.wasm", "a"),
        ("x.wasm", "a"),
        ("ConfigMap leafhost/b", "b"),
        ("ConfigMap leafhost/c", "c"),
    ] {
        set.objects.insert(source.into(), object(name));
    }
    board.handlers.send_replace(Arc::new(set));
    let handlers = board.state.node_report().handlers;
    for (handler, source, name) in [
        ("udev", "udev.wasm", "b"),
        ("x", "x.wasm", "a"),
        ("c", "ConfigMap leafhost/c", "c"),
    ] {
        let source = &handlers[handler].sources[source];
        assert_eq!(source.object, Some(object(name)), "{source:?}");
    }
}

#[test]
fn a_resource_that_cannot_be_offered_is_a_problem_of_its_configuration() {
    let problem = Problem::InvalidResourceName {
        resource: "akri.sh/cams".into(),
        error: "is too long".into(),
    };
    let keys = [key("cam"), key("cams")];
    let configurations = keys
        .clone()
        .map(|key| (key, ConfigurationReport::default()));
    let problems = Problems::of(&[problem], &configurations.into());
    let problem = &problems.configurations[&keys[1]];
    assert!(problem.message.contains("is too long"));
    assert_eq!(problem.reason, "InvalidResourceName");
    assert_eq!(problems.configurations.len(), 1);
}

#[test]
fn a_component_that_is_text_and_was_never_loaded_is_a_source_with_its_object() {
    let board = mk_board();
    let mut text = SourceProblem::new("ConfigMap leafhost/mine", "is text");
    text.path = "mine.wasm".into();
    let mut set = handler_set(vec![], vec![text]);
    let objects = [("ConfigMap leafhost/mine".to_owned(), object("mine"))];
    set.objects = objects.into();
    board.handlers.send_replace(Arc::new(set));
    let handlers = board.state.node_report().handlers;
    let source = &handlers["mine"].sources["mine.wasm"];
    let problem = source.problem.as_ref().unwrap();
    assert_eq!(problem.reason, "InvalidSource");
    assert_eq!(source.object, Some(object("mine")));
}

#[test]
fn a_configuration_is_reported_at_the_handler_that_it_names_also_if_there_is_none() {
    let board = mk_board();
    let skipped = Explanation {
        subject: "10.0.0.9".into(),
        rule: "ipAddresses".into(),
        reason: "is excluded".into(),
    };
    let called = ConfigurationReport {
        handler: "onvif".into(),
        sessions: vec![Arc::new(SessionReport {
            source: "onvif.wasm".into(),
            error: Some("no interface".into()),
            failures: 1,
            skipped: vec![skipped],
            skipped_dropped: 4,
            left_out: vec![LeftOut {
                id: "a".into(),
                reason: "no grant for /dev/a".into(),
            }],
            left_out_dropped: 1,
            call: CallStats {
                denied: vec!["connect to 10.0.0.9:80".into()],
                ..CallStats::default()
            },
            ..SessionReport::default()
        })],
        ..ConfigurationReport::default()
    };
    let lost = ConfigurationReport {
        handler: "onwif".into(),
        problems: vec![Problem::HandlerNotFound {
            configuration: key("lost"),
            handler: "onwif".into(),
            known: vec!["onvif".into()],
            refused: Vec::new(),
        }],
        ..ConfigurationReport::default()
    };
    board.report.send_replace(Arc::new(DiscoveryReport {
        configurations: [(key("cams"), called), (key("lost"), lost)].into(),
        ..DiscoveryReport::default()
    }));
    let handlers = board.state.node_report().handlers;
    let cams = &handlers["onvif"].configurations[&key("cams")];
    assert_eq!((cams.devices, cams.skipped, cams.denied), (0, 5, 3));
    let first = cams.first_skipped.as_deref();
    assert_eq!(first, Some("10.0.0.9 (ipAddresses): is excluded"));
    let first = cams.first_denied.as_deref();
    assert_eq!(first, Some("device a: no grant for /dev/a"));
    assert!(
        cams.problem
            .as_ref()
            .unwrap()
            .message
            .contains("no interface"),
        "{cams:?}"
    );
    assert_eq!(handlers["onwif"].phase, HandlerPhase::Offline);
    let lost = &handlers["onwif"].configurations[&key("lost")];
    let problem = lost.problem.as_ref().unwrap();
    assert_eq!(problem.reason, "HandlerNotFound");
    assert!(problem.message.contains("onwif"), "{lost:?}");
}

#[test]
fn a_configuration_that_is_left_out_is_reported_at_its_handler_with_the_cap() {
    let board = mk_board();
    let left_out = |handler: &str| LeftOutConfiguration {
        handler: handler.into(),
        generation: Some(7),
        cap: "500 Configurations of a namespace".into(),
    };
    let left_out = [(key("a"), left_out("udev")), (key("b"), left_out(""))];
    board.report.send_replace(Arc::new(DiscoveryReport {
        set: Arc::new(ConfigurationSet {
            left_out: left_out.into(),
            ..ConfigurationSet::default()
        }),
        ..DiscoveryReport::default()
    }));
    let handlers = board.state.node_report().handlers;
    assert_eq!(handlers.keys().collect::<Vec<_>>(), ["udev"]);
    let reported = &handlers["udev"].configurations[&key("a")];
    assert_eq!(reported.generation, Some(7));
    let problem = reported.problem.as_ref().unwrap();
    assert_eq!(problem.reason, "TooManyConfigurations");
    assert!(
        problem
            .message
            .contains("beyond the limit of 500 Configurations of a namespace")
    );
}

#[test]
fn of_very_many_handlers_those_with_a_source_are_reported_and_each_namespace_has_its_turn() {
    let board = mk_board();
    let serving = LoadedSource {
        handler: Some(FakeHandler::new("udev@1") as _),
        ..LoadedSource::default()
    };
    let sources = vec![("udev.wasm", serving)];
    board
        .handlers
        .send_replace(Arc::new(handler_set(sources, Vec::new())));
    let names = (0..500).map(|n| ("aaa", format!("a{n}")));
    let names = names.chain([("zzz", "z".to_owned())]);
    let configurations = names.map(|(namespace, handler)| {
        let report = ConfigurationReport {
            handler: handler.clone(),
            ..ConfigurationReport::default()
        };
        (ConfigurationKey::new(namespace, &handler).unwrap(), report)
    });
    board.report.send_replace(Arc::new(DiscoveryReport {
        configurations: configurations.collect(),
        ..DiscoveryReport::default()
    }));
    let handlers = board.state.node_report().handlers;
    assert_eq!(handlers.len(), MAX_REPORTS);
    assert!(handlers.contains_key("udev") && handlers.contains_key("z"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reported_before_everything_was_loaded_and_called() {
    let board = mk_board();
    let (sender, mut reports) = watch::channel(Arc::default());
    let publishing = tokio::spawn(publish(board.state.clone(), sender));
    let loaded = LoadedSource {
        handler: Some(FakeHandler::new("udev@1") as _),
        ..LoadedSource::default()
    };
    board.handlers.send_replace(Arc::new(handler_set(
        vec![("udev.wasm", loaded)],
        Vec::new(),
    )));
    board
        .devices
        .send_modify(|devices| Arc::make_mut(devices).read = true);
    // The handler is loaded, and not registered yet.
    tokio::time::sleep(FIRST_CALLS / 4).await;
    assert!(!reports.borrow_and_update().complete);
    let configuration = ConfigurationReport {
        handler: "udev".into(),
        ..ConfigurationReport::default()
    };
    let mut report = DiscoveryReport {
        handlers: vec![registered("udev", "udev.wasm", "Waiting", 1)],
        configurations: [(key("cams"), configuration)].into(),
        ..DiscoveryReport::default()
    };
    board.report.send_replace(Arc::new(report.clone()));
    tokio::time::sleep(FIRST_CALLS / 2).await;
    assert!(!reports.borrow_and_update().complete);
    report.handlers = vec![registered("udev", "udev.wasm", "Active", 2)];
    let session = Arc::new(SessionReport {
        source: "udev.wasm".into(),
        ..SessionReport::default()
    });
    report
        .configurations
        .get_mut(&key("cams"))
        .unwrap()
        .sessions = vec![session];
    board.report.send_replace(Arc::new(report.clone()));
    let first = reports
        .wait_for(|report| report.complete)
        .await
        .unwrap()
        .clone();
    assert_eq!(first.handlers["udev"].phase, HandlerPhase::Active);
    // A change of nothing that is reported causes no report.
    board.report.send_replace(Arc::new(report));
    tokio::time::sleep(SPACING * 3).await;
    assert!(!reports.has_changed().unwrap());
    publishing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_answer_holds_the_report_up_only_for_a_while() {
    let board = mk_board();
    let (sender, mut reports) = watch::channel(Arc::default());
    let publishing = tokio::spawn(publish(board.state.clone(), sender));
    board
        .handlers
        .send_replace(Arc::new(handler_set(Vec::new(), Vec::new())));
    board
        .devices
        .send_modify(|devices| Arc::make_mut(devices).read = true);
    let configuration = ConfigurationReport {
        handler: "udev".into(),
        ..ConfigurationReport::default()
    };
    board.report.send_replace(Arc::new(DiscoveryReport {
        handlers: vec![registered("udev", "udev.wasm", "Waiting", 1)],
        configurations: [(key("cams"), configuration)].into(),
        ..DiscoveryReport::default()
    }));
    let started = tokio::time::Instant::now();
    reports.wait_for(|report| report.complete).await.unwrap();
    assert!(started.elapsed() >= FIRST_CALLS);
    publishing.abort();
}
