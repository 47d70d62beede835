//! Tests of the status document.

use jiff::Timestamp;
use leafhost_core::device::Device;
use leafhost_core::device_view::DeviceView;
use leafhost_core::ports::{ConfigurationSet, LoadError, SourceProblem};
use leafhost_core::presence::Absent;
use leafhost_fakes::{FakeHandler, configured, key};

use super::*;
use crate::status::ProblemView;

#[derive(Default)]
struct Parts {
    handlers: HandlerSet,
    devices: DeviceSnapshot,
    report: DiscoveryReport,
    reconcile: ReconcileReport,
    offers: CdiReport,
    instances: InstanceSet,
    kubelet: Option<KubeletBoard>,
}

fn document(parts: Parts) -> Status {
    let board = AgentState {
        claims: None,
        identity: Arc::new(Identity {
            problems: vec![Problem::NoPodman, Problem::NoUdevd],
            ..Identity::default()
        }),
        handlers: watch::channel(Arc::new(parts.handlers)).1,
        devices: watch::channel(Arc::new(parts.devices)).1,
        report: watch::channel(Arc::new(parts.report)).1,
        reconcile: watch::channel(parts.reconcile).1,
        offers: watch::channel(Arc::new(parts.offers)).1,
        kubelet: parts.kubelet,
        instances: watch::channel(Arc::new(parts.instances)).1,
        unreported: watch::channel(None).1,
    };
    board.status()
}

/// Guards against borrowing the same value twice, which waits for ever if a change waits in between.
#[test]
fn problems_are_counted_while_handlers_and_reports_change() {
    let (handlers, report) = (
        watch::Sender::new(Arc::default()),
        watch::Sender::new(Arc::default()),
    );
    let board = AgentState {
        identity: Arc::default(),
        handlers: handlers.subscribe(),
        devices: watch::channel(Arc::default()).1,
        report: report.subscribe(),
        reconcile: watch::channel(ReconcileReport::default()).1,
        offers: watch::channel(Arc::default()).1,
        kubelet: None,
        claims: None,
        instances: watch::channel(Arc::default()).1,
        unreported: watch::channel(None).1,
    };
    let (counted, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..20_000 {
            board.count_problems();
            board.waits_for();
            board.status();
        }
        counted.send(()).unwrap();
    });
    let limit = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while end.try_recv().is_err() {
        assert!(
            limit > std::time::Instant::now(),
            "the reader waits for ever"
        );
        // On a thread of its own, so that a lock that is never released does not block this one.
        let (handlers, report) = (handlers.clone(), report.clone());
        let changed = std::thread::spawn(move || {
            for _ in 0..1_000 {
                handlers.send_replace(Arc::default());
                report.send_replace(Arc::default());
            }
        });
        while !changed.is_finished() && limit > std::time::Instant::now() {
            std::thread::yield_now();
        }
    }
}

fn source(handler: Option<Arc<FakeHandler>>, error: Option<&str>) -> LoadedSource {
    LoadedSource {
        handler: handler.map(|handler| handler as _),
        error: error.map(|message| LoadError {
            source_name: "x.wasm".to_owned(),
            message: message.to_owned(),
            missing_grants: vec!["udev".to_owned()],
            transient: false,
        }),
        registration: None,
        given_up: false,
    }
}

fn registered(name: &str, source: &str, status: &'static str) -> HandlerReport {
    HandlerReport {
        name: name.to_owned(),
        source: source.to_owned(),
        status,
        since: Timestamp::UNIX_EPOCH,
        devices: 3,
        last_error: Some("trap: unreachable".to_owned()),
    }
}

#[test]
fn each_source_is_shown_with_what_serves_and_what_does_not() {
    let handlers = HandlerSet {
        complete: true,
        sources: BTreeMap::from([
            (
                "a.wasm".to_owned(),
                source(Some(FakeHandler::new("echo@2")), None),
            ),
            (
                "b.wasm".to_owned(),
                source(Some(FakeHandler::new("udev@1")), Some("is garbage")),
            ),
            ("c.wasm".to_owned(), source(None, Some("is garbage"))),
            ("d.wasm".to_owned(), source(None, None)),
        ]),
        ..HandlerSet::default()
    };
    let report = DiscoveryReport {
        handlers: vec![
            registered("echo", "a.wasm", "Active"),
            registered("gone", "e.wasm", "Offline"),
            registered("udev", "b.wasm", "Waiting"),
        ],
        ..DiscoveryReport::default()
    };
    let status = document(Parts {
        handlers,
        report,
        ..Parts::default()
    });
    let shown: Vec<_> = status
        .handlers
        .iter()
        .map(|view| {
            let error = view.last_error.as_deref().unwrap_or_default();
            format!(
                "{}|{}|{}|{}|{error}",
                view.name, view.source, view.status, view.version
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "|c.wasm|Refused||cannot load x.wasm: is garbage",
            "|d.wasm|Loading||",
            "echo|a.wasm|Active|2|trap: unreachable",
            "gone|e.wasm|Offline||trap: unreachable",
            "udev|b.wasm|Waiting|1|cannot load x.wasm: is garbage",
        ]
    );
    assert_eq!(status.handlers[4].missing_grants, ["udev"]);
    assert_eq!(status.handlers[4].digest, "udev@1");
}

#[test]
fn that_there_is_no_udevd_is_a_problem_only_where_a_handler_in_use_needs_it() {
    for (loaded, named, expected) in [
        ("udev", "udev", true),
        ("udev", "onvif", false),
        ("onvif", "onvif", false),
        ("onvif", "udev", false),
    ] {
        let handler = Some(FakeHandler::new(loaded));
        let used = ConfigurationReport {
            handler: named.to_owned(),
            ..ConfigurationReport::default()
        };
        let status = document(Parts {
            handlers: HandlerSet {
                sources: [("a.wasm".to_owned(), source(handler, None))].into(),
                ..HandlerSet::default()
            },
            report: DiscoveryReport {
                configurations: [(key("a"), used)].into(),
                ..DiscoveryReport::default()
            },
            ..Parts::default()
        });
        let mut problems = status.problems.iter();
        let told = problems.any(|problem| problem.reason == "NoUdevd");
        assert_eq!(told, expected, "{loaded} is loaded, {named} is named");
    }
}

#[test]
fn properties_of_many_mebibytes_are_left_out_and_that_is_said() {
    let instances = |count: usize| {
        let instance = |number: usize| {
            let instance: Instance = serde_json::from_value(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": format!("cams-{number:06x}"), "namespace": "default"},
                "spec": {"configurationName": "cams", "deviceUsage": {"a-0": ""},
                    "brokerProperties": {"LONG": "x".repeat(32 << 10)}},
            }))
            .unwrap();
            (instance.key(), Arc::new(instance))
        };
        InstanceSet::read((0..count).map(instance).collect())
    };
    for (count, left_out) in [(200, false), (300, true)] {
        let status = document(Parts {
            instances: instances(count),
            ..Parts::default()
        });
        assert_eq!(status.instances.len(), count);
        let spec = &status.instances[0].spec;
        assert_eq!(spec.broker_properties.is_empty(), left_out);
        assert_eq!(
            (&*spec.configuration_name, spec.device_usage.len()),
            ("cams", 1)
        );
        let mut problems = status.problems.iter();
        let told = problems.any(|problem| problem.reason == "StatusTruncated");
        assert_eq!(told, left_out);
        assert!(serde_json::to_vec(&status).unwrap().len() < 10 << 20);
    }
}

#[test]
fn a_configuration_whose_resource_the_kubelet_does_not_get_says_so() {
    let resource = |problem: Option<&str>| leafhost_kubelet::ResourceReport {
        socket: String::new(),
        state: problem.map_or(State::Listed, |_| State::Failed),
        registrations: 1,
        problem: problem.map(str::to_owned),
    };
    let name = |name: &str| leafhost_kubelet::ResourceName::new(name).unwrap();
    let plugins = leafhost_kubelet::Report {
        resources: BTreeMap::from([
            (
                name("akri.sh/a"),
                resource(Some("cannot create the socket (EMFILE)")),
            ),
            (name("akri.sh/b"), resource(None)),
        ]),
        ..leafhost_kubelet::Report::default()
    };
    let kubelet = KubeletBoard {
        root: "/var/lib/kubelet".into(),
        plugins: watch::channel(Arc::new(plugins)).1,
        slots: watch::channel(Arc::default()).1,
    };
    let configurations = ["a", "b"].map(|name| (key(name), ConfigurationReport::default()));
    let status = document(Parts {
        report: DiscoveryReport {
            configurations: configurations.into(),
            ..DiscoveryReport::default()
        },
        kubelet: Some(kubelet),
        ..Parts::default()
    });
    let problems: Vec<_> = status
        .configurations
        .iter()
        .map(|one| messages(&one.problems))
        .collect();
    let told = "pods do not get akri.sh/a: cannot create the socket (EMFILE)";
    assert_eq!(problems, [vec![told], vec![]]);
}

fn messages(problems: &[ProblemView]) -> Vec<&str> {
    let problems = problems.iter();
    problems.map(|problem| problem.message.as_str()).collect()
}

fn problem(source: &str, configuration: Option<&str>) -> SourceProblem {
    SourceProblem {
        source: source.to_owned(),
        line: Some(3),
        path: "spec.capacity".to_owned(),
        message: "is 0, must be 1 to 1000".to_owned(),
        configuration: configuration.map(key),
    }
}

#[test]
fn a_problem_is_shown_where_it_belongs() {
    let report = DiscoveryReport {
        configurations: BTreeMap::from([(key("a"), ConfigurationReport::default())]),
        set: Arc::new(ConfigurationSet {
            problems: vec![
                problem("a.yaml", Some("a")),
                problem("b.yaml", Some("b")),
                problem("c.yaml", None),
            ],
            ..ConfigurationSet::default()
        }),
        ..DiscoveryReport::default()
    };
    let handlers = HandlerSet {
        problems: vec![problem("x.wasm", None)],
        ..HandlerSet::default()
    };
    let reconcile = ReconcileReport {
        problems: vec![Problem::InstancesNotWritten {
            error: "cannot write".to_owned(),
            more: 0,
        }],
        ..ReconcileReport::default()
    };
    let offers = CdiReport {
        problems: vec![
            Problem::InvalidCdiClass {
                configuration: key("a"),
            },
            Problem::CdiSpecNotWritten {
                configuration: None,
                error: "cannot read /etc/cdi".to_owned(),
            },
        ],
        ..CdiReport::default()
    };
    let status = document(Parts {
        handlers,
        report,
        reconcile,
        offers,
        ..Parts::default()
    });
    assert_eq!(
        messages(&status.problems)[1..],
        [
            "x.wasm:3: spec.capacity: is 0, must be 1 to 1000",
            "c.yaml:3: spec.capacity: is 0, must be 1 to 1000",
            "cannot write",
            "cannot read /etc/cdi",
        ]
    );
    let shown: Vec<_> = status
        .configurations
        .iter()
        .map(|view| {
            let problems = view.problems.iter();
            let reasons: Vec<_> = problems.map(|problem| problem.reason.as_str()).collect();
            (view.name.as_str(), reasons)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("a", vec!["InvalidSource", "InvalidCdiClass"]),
            ("b", vec!["InvalidSource"]),
        ]
    );
    assert_eq!(
        status.configurations[0].problems[0],
        ProblemView {
            reason: "InvalidSource".to_owned(),
            subject: "Configuration default/a".to_owned(),
            message: "a.yaml:3: spec.capacity: is 0, must be 1 to 1000".to_owned(),
        }
    );
}

fn mk_warned(file: &str, configuration: Option<&str>) -> Arc<ConfigurationSet> {
    Arc::new(ConfigurationSet {
        warnings: vec![problem(file, configuration)],
        ..ConfigurationSet::default()
    })
}

#[test]
fn a_warning_is_shown_at_its_configuration_and_is_no_problem() {
    let report = DiscoveryReport {
        configurations: BTreeMap::from([(key("a"), ConfigurationReport::default())]),
        set: mk_warned("a.yaml", Some("a")),
        ..DiscoveryReport::default()
    };
    let status = document(Parts {
        report,
        ..Parts::default()
    });
    let [view] = status.configurations.as_slice() else {
        panic!("{:?}", status.configurations);
    };
    assert_eq!(view.problems, []);
    assert_eq!(view.warnings[0].reason, "NoEffect");
    assert_eq!(
        messages(&view.warnings),
        ["a.yaml:3: spec.capacity: is 0, must be 1 to 1000"]
    );
}

#[test]
fn a_file_that_is_not_read_is_a_note_and_no_problem() {
    let report = DiscoveryReport {
        set: mk_warned("a.json", None),
        ..DiscoveryReport::default()
    };
    let handlers = HandlerSet {
        warnings: vec![problem("b.yaml", None)],
        ..HandlerSet::default()
    };
    let status = document(Parts {
        handlers,
        report,
        ..Parts::default()
    });
    let mut problems = status.problems.iter();
    assert!(problems.all(|problem| problem.reason != "NoEffect"));
    assert_eq!(status.configurations, []);
    let subjects: Vec<&str> = status.notes.iter().map(|note| &*note.subject).collect();
    assert_eq!(subjects, ["source a.json", "source b.yaml"]);
}

fn devices(
    name: &str,
    devices: &[(&str, Option<&str>, Health)],
) -> (ConfigurationKey, Arc<ConfigurationDevices>) {
    let views = devices.iter().map(|(id, physical, health)| {
        let mut device = Device::new(*id, false);
        device.physical_id = physical.map(str::to_owned);
        device.health = health.clone();
        let view = DeviceView {
            missing_since: None,
            device: Some(Arc::new(device)),
        };
        (view.device.as_ref().unwrap().key(), view)
    });
    let view = ConfigurationDevices {
        configured: Arc::new(configured(name, "udev", "")),
        devices: views.collect(),
        absent: Absent::GONE,
    };
    (key(name), Arc::new(view))
}

#[test]
fn hardware_found_by_two_configurations_is_named_in_both() {
    let configurations = BTreeMap::from([
        devices(
            "a",
            &[
                ("cam", Some("usb-1"), Health::Healthy),
                ("other", Some("usb-2"), Health::Healthy),
            ],
        ),
        devices(
            "b",
            &[("video0", Some("usb-1"), Health::Unhealthy("hot".into()))],
        ),
    ]);
    let reports = configurations
        .keys()
        .map(|key| (key.clone(), ConfigurationReport::default()));
    let status = document(Parts {
        report: DiscoveryReport {
            configurations: reports.collect(),
            ..DiscoveryReport::default()
        },
        devices: DeviceSnapshot {
            configurations,
            ..DeviceSnapshot::default()
        },
        ..Parts::default()
    });
    let shown: Vec<_> = status
        .configurations
        .iter()
        .map(|view| {
            (
                view.devices,
                view.unhealthy,
                messages(&view.problems).join("|"),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (2, 0, "1 device was found by other Configurations, too: \"cam\" is the hardware \"usb-1\", which default/b found; it may be handed out twice".to_owned()),
            (1, 1, "1 device was found by other Configurations, too: \"video0\" is the hardware \"usb-1\", which default/a found; it may be handed out twice".to_owned()),
        ]
    );
}

#[test]
fn hardware_that_everybody_finds_is_told_in_few_words() {
    let ids: Vec<String> = (0..50).map(|id| format!("{id:02}")).collect();
    let found: Vec<_> = ids
        .iter()
        .map(|id| (id.as_str(), Some(id.as_str()), Health::Healthy))
        .collect();
    let names: Vec<String> = (0..40).map(|name| format!("c{name:02}")).collect();
    let snapshot = DeviceSnapshot {
        configurations: names.iter().map(|name| devices(name, &found)).collect(),
        ..DeviceSnapshot::default()
    };
    let problems: Vec<_> = found_twice(&snapshot).collect();
    assert_eq!(problems.len(), 40);
    assert_eq!(
        problems[0].to_string(),
        "50 devices were found by other Configurations, too: \"00\" is the hardware \"00\", which default/c01, default/c02, default/c03 \
         and 36 more found; it may be handed out twice"
    );
}
