use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_report::{HandlerPhase, ObjectName, ReportedProblem, ReportedSource};

use super::*;
use crate::reconciler::Write;
use crate::reports::reported;

fn mk_owner(node: &str) -> Owner {
    Owner {
        node: node.to_owned(),
        uid: Some("node-uid".to_owned()),
    }
}

fn mk_report(handlers: &[&str]) -> NodeReport {
    let handler = |name: &&str| ((*name).to_owned(), ReportedHandler::default());
    NodeReport {
        complete: true,
        handlers: handlers.iter().map(handler).collect(),
    }
}

/// Returns the object as the API server stores it.
fn mk_found(owner: &Owner) -> DiscoveryHandler {
    let (_, mut found) = owner.objects(&mk_report(&["udev"])).pop_first().unwrap();
    found.metadata.uid = Some("u1".into());
    found.metadata.resource_version = Some("7".into());
    found
}

#[test]
fn names_are_the_nodes_and_the_handlers_or_have_a_digest() {
    let long = format!("{0}.{0}.{0}.{0}", "n".repeat(60));
    for (node, handler, expected) in [
        ("edge-1", "debugEcho", "edge-1.debugecho"),
        ("edge-1.lan", "mock-gpu", "edge-1.lan.mock-gpu"),
        ("edge-1", "a_b", "edge-1.a-b-"),
        ("edge-1", "a.-b", "edge-1.a--b-"),
        ("edge-1", "lan.udev", "edge-1.lan-udev-"),
        ("edge-1", "", "edge-1."),
        ("edge-1", "日本", "edge-1."),
        (&long, "日本", &long[..236]),
        (&long, "debugEcho", &long[..240]),
    ] {
        let objects = mk_owner(node).objects(&mk_report(&[handler]));
        let (name, object) = objects.first_key_value().unwrap();
        assert!(name.starts_with(expected), "{name}");
        assert!(is_node_name(name), "{name}");
        let exact = !expected.ends_with(['-', '.']) && node != long;
        assert!(!exact || name == expected, "{name}");
        assert_eq!(object.spec.handler, handler);
        assert_eq!(object.spec.node, node);
    }
}

#[test]
fn handlers_whose_names_differ_in_case_have_an_object_each() {
    let objects = mk_owner("n").objects(&mk_report(&["Onvif", "onvif", "ONVIF"]));
    assert_eq!(objects.len(), 3);
    assert!(objects.contains_key("n.onvif"));
}

#[test]
fn an_object_is_written_only_where_it_differs() {
    let owner = mk_owner("n");
    let found = mk_found(&owner);
    let wanted = owner
        .objects(&mk_report(&["udev"]))
        .remove("n.udev")
        .unwrap();
    assert_eq!(owner.write(Some(&found), Some(&wanted)), None);
    assert_eq!(
        owner.write(None, Some(&wanted)),
        Some(Write::Create(Box::new(wanted.clone())))
    );
    assert_eq!(
        owner.write(Some(&found), None),
        Some(Write::Delete("u1".into()))
    );
    let edits: [fn(&mut DiscoveryHandler); 5] = [
        |object| object.metadata.labels = None,
        |object| object.metadata.owner_references = None,
        |object| object.spec.handler = "other".into(),
        |object| object.spec.node = "other".into(),
        |object| object.status = None,
    ];
    for edit in edits {
        let mut edited = found.clone();
        edit(&mut edited);
        assert_eq!(
            owner.write(Some(&edited), Some(&wanted)),
            Some(Write::Replace(Box::new(found.clone())))
        );
    }
    let mut foreign = found.clone();
    foreign.spec.node = "other".into();
    assert_eq!(owner.write(Some(&foreign), None), None);
    let mut annotated = found.clone();
    annotated
        .annotations_mut()
        .insert("note".into(), "mine".into());
    assert_eq!(owner.write(Some(&annotated), Some(&wanted)), None);
}

#[test]
fn the_time_of_a_phase_is_that_of_the_first_agent_that_saw_it() {
    let owner = mk_owner("n");
    let at = |second| jiff::Timestamp::from_second(second).ok();
    let mut report = mk_report(&["udev"]);
    let udev = report.handlers.get_mut("udev").unwrap();
    udev.since = at(100);
    let mut found = mk_found(&owner);
    found.status = owner.objects(&report)["n.udev"].status.clone();
    let udev = report.handlers.get_mut("udev").unwrap();
    udev.since = at(200);
    let wanted = owner.objects(&report);
    assert_eq!(owner.write(Some(&found), wanted.get("n.udev")), None);
    report.handlers.get_mut("udev").unwrap().phase = HandlerPhase::Active;
    let wanted = owner.objects(&report);
    let Some(Write::Replace(object)) = owner.write(Some(&found), wanted.get("n.udev")) else {
        panic!("not written");
    };
    let status = object.status.unwrap();
    assert_eq!(
        (status.phase, status.since.as_deref()),
        (HandlerPhase::Active, Some("1970-01-01T00:03:20Z"))
    );
}

fn mk_problem(message: String) -> ReportedProblem {
    ReportedProblem {
        reason: "DiscoveryFailed".into(),
        message,
    }
}

#[test]
fn the_status_counts_everything_and_lists_what_has_a_problem_first() {
    let mut reported = ReportedHandler::default();
    for n in 0..=MAX_CONFIGURATIONS {
        let key = ConfigurationKey::new("default", &format!("c{n:04}")).unwrap();
        let configuration = ReportedConfiguration {
            devices: 2,
            problem: (n == MAX_CONFIGURATIONS).then(|| mk_problem("x".repeat(9000))),
            ..ReportedConfiguration::default()
        };
        reported.configurations.insert(key, configuration);
    }
    let all = status(&reported);
    assert_eq!(
        (all.devices, all.configurations.len()),
        (4002, MAX_CONFIGURATIONS)
    );
    let last = all.configurations.last().unwrap();
    assert_eq!(last.name, "c2000");
    let problem = last.configuration.problem.as_ref().unwrap();
    assert!(problem.message.len() <= MAX_TEXT + 3);
    assert_eq!(problem.reason, "DiscoveryFailed");
    assert_eq!(all.problem.as_ref(), Some(&problem.message));
    let source = ReportedSource {
        problem: Some(mk_problem("refused".into())),
        ..ReportedSource::default()
    };
    reported.sources.insert("udev.wasm".into(), source);
    assert_eq!(status(&reported).problem.as_deref(), Some("refused"));
}

fn text_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(all) => all.iter().map(text_of).sum(),
        serde_json::Value::Object(all) => all.values().map(text_of).sum(),
        _ => 0,
    }
}

#[test]
fn whoever_has_many_problems_leaves_those_of_others_in_the_report() {
    let mut reported = ReportedHandler::default();
    let mut add = |namespace: &str, n: usize, problem| {
        let key = ConfigurationKey::new(namespace, &format!("c{n:04}")).unwrap();
        let configuration = ReportedConfiguration {
            problem,
            ..ReportedConfiguration::default()
        };
        reported.configurations.insert(key, configuration);
    };
    for n in 0..MAX_CONFIGURATIONS + 10 {
        add("aaa", n, Some(mk_problem("no".into())));
    }
    for n in 0..10 {
        add("zzz", n, None);
    }
    let listed = status(&reported).configurations;
    let of_zzz = listed.iter().filter(|one| one.namespace == "zzz");
    assert_eq!((listed.len(), of_zzz.count()), (MAX_CONFIGURATIONS, 10));
}

#[test]
fn what_others_write_is_read_within_the_bounds_that_agents_keep() {
    let owner = mk_owner("n");
    let mut object = mk_found(&owner);
    let long = "x".repeat(20_000);
    let source = |n: usize| SourceReport {
        name: format!("{n:03}{long}"),
        source: ReportedSource {
            endpoint: Some(long.clone()),
            missing_grants: vec![long.clone(); 100],
            ..ReportedSource::default()
        },
        ..SourceReport::default()
    };
    object.status.as_mut().unwrap().sources = (0..100).map(source).collect();
    let read = reported(object);
    assert_eq!(read.sources.len(), MAX_SOURCES);
    let (name, source) = read.sources.first_key_value().unwrap();
    assert!(name.len() < 600 && source.endpoint.as_ref().unwrap().len() < 600);
    assert_eq!(source.missing_grants.len(), MAX_GRANTS);
}

#[test]
fn what_is_denied_and_what_is_skipped_is_counted_and_named_where_nothing_else_is_wrong() {
    let mk = |devices, first_skipped: Option<&str>, first_denied: Option<&str>| {
        let configuration = ReportedConfiguration {
            devices,
            skipped: first_skipped.map_or(0, |_| 3),
            first_skipped: first_skipped.map(str::to_owned),
            denied: first_denied.map_or(0, |_| 2),
            first_denied: first_denied.map(str::to_owned),
            ..ReportedConfiguration::default()
        };
        let key = ConfigurationKey::new("default", "cams").unwrap();
        let handler = ReportedHandler {
            configurations: [(key, configuration)].into(),
            ..ReportedHandler::default()
        };
        let status = status(&handler);
        (status.skipped, status.denied, status.problem)
    };
    let told = |text: &str| Some(text.to_owned());
    assert_eq!(mk(1, Some("x"), None), (3, 0, None));
    assert_eq!(mk(0, Some("x"), None), (3, 0, told("skipped: x")));
    assert_eq!(mk(1, Some("x"), Some("y")), (3, 2, told("denied: y")));
}

/// The policies refuse larger objects.
#[test]
fn an_object_with_the_most_and_longest_texts_has_no_more_than_256_kib_of_them() {
    let mut report = mk_report(&["udev"]);
    let reported = report.handlers.get_mut("udev").unwrap();
    for n in 0..MAX_CONFIGURATIONS {
        let name = format!("{}{n:04}", "c".repeat(232));
        let configuration = ReportedConfiguration {
            devices: 4096,
            skipped: 1000,
            first_skipped: Some("\"s".repeat(9000)),
            denied: 1000,
            first_denied: Some("\"d".repeat(9000)),
            generation: Some(1000),
            problem: Some(mk_problem("\"x".repeat(9000))),
        };
        let key = ConfigurationKey::new(&"n".repeat(63), &name).unwrap();
        reported.configurations.insert(key, configuration);
    }
    for count in [1, 10, 100] {
        for n in 0..count {
            let source = ReportedSource {
                endpoint: Some("e".repeat(9000)),
                version: Some("v".repeat(9000)),
                digest: Some("d".repeat(64)),
                missing_grants: vec!["g".repeat(9000); 100],
                problem: Some(mk_problem("\"x".repeat(9000))),
                object: Some(ObjectName {
                    namespace: "n".repeat(63),
                    name: "c".repeat(253),
                    uid: "u".repeat(36),
                }),
            };
            let name = format!("{n}{}", "s".repeat(9000));
            report
                .handlers
                .get_mut("udev")
                .unwrap()
                .sources
                .insert(name, source);
        }
        let status = mk_owner("n").objects(&report)["n.udev"].status.clone();
        let status = serde_json::to_value(status).unwrap();
        let sources = status["sources"].as_array().unwrap();
        assert_eq!(sources.len(), count.min(MAX_SOURCES));
        assert!(sources.iter().map(text_of).all(|size| size <= 16 << 10));
        let all = text_of(&status);
        assert!(all <= 256 << 10, "{all}");
    }
}

#[test]
fn two_thousand_configurations_with_usual_names_are_all_listed() {
    let mut reported = ReportedHandler::default();
    for n in 0..MAX_CONFIGURATIONS {
        let key = ConfigurationKey::new("production-eu", &format!("usb-cameras-of-line-{n:04}"));
        let configuration = ReportedConfiguration::default();
        reported.configurations.insert(key.unwrap(), configuration);
    }
    assert_eq!(status(&reported).configurations.len(), MAX_CONFIGURATIONS);
}

#[test]
fn the_controller_reads_what_agents_write() {
    let key = ConfigurationKey::new("default", "cams").unwrap();
    let configuration = ReportedConfiguration {
        devices: 2,
        skipped: 1,
        first_skipped: Some("\"x\" (rule): why".into()),
        denied: 2,
        first_denied: Some("no entry of `network.tcp` has it".into()),
        generation: Some(3),
        problem: Some(mk_problem("no".into())),
    };
    let source = ReportedSource {
        version: Some("1".into()),
        missing_grants: vec!["net".into()],
        problem: Some(mk_problem("refused".into())),
        object: Some(ObjectName {
            namespace: "leafhost".into(),
            name: "onvif".into(),
            uid: "u".into(),
        }),
        ..ReportedSource::default()
    };
    let handler = ReportedHandler {
        phase: HandlerPhase::Active,
        since: jiff::Timestamp::from_second(100).ok(),
        sources: [("onvif.wasm".to_owned(), source)].into(),
        configurations: [(key, configuration)].into(),
    };
    let mut report = mk_report(&[]);
    report.handlers.insert("onvif".into(), handler.clone());
    let mut objects = mk_owner("n").objects(&report);
    assert_eq!(reported(objects.remove("n.onvif").unwrap()), handler);
}
