use std::sync::Arc;

use leafhost_core::cluster::NodeState;
use leafhost_core::node_report::{ObjectName, ReportedHandler, ReportedSource};
use leafhost_core::resource_names::Reservation;
use serde_json::json;

use super::*;

/// A cluster whose nodes are Ready, with Configurations of handler `onvif`.
struct Cluster {
    nodes: NodeSet,
    configurations: ConfigurationStates,
    reports: ReportSet,
    instances: InstanceSet,
    names: ResourceNames,
    brokers: Vec<Problem>,
    restarts: Vec<Problem>,
    classes: Classes,
}

fn key(name: &str) -> ConfigurationKey {
    ConfigurationKey::new("default", name).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn problem(reason: &str, message: &str) -> ReportedProblem {
    ReportedProblem {
        reason: reason.into(),
        message: message.into(),
    }
}

impl Cluster {
    fn new(nodes: &[&str]) -> Self {
        let mut cluster = Self {
            nodes: NodeSet::default(),
            configurations: ConfigurationStates::default(),
            reports: ReportSet::default(),
            instances: InstanceSet::default(),
            names: ResourceNames::default(),
            brokers: Vec::new(),
            restarts: Vec::new(),
            classes: Classes::new(),
        };
        for node in nodes {
            let there = NodeState::default();
            cluster.nodes.nodes.insert((*node).into(), there);
        }
        cluster.configure(key("cams"), "u1", 100);
        cluster
    }

    fn configure(&mut self, key: ConfigurationKey, uid: &str, created: i64) {
        let state = ConfigurationState {
            uid: uid.into(),
            generation: 2,
            created: Some(at(created)),
            handler: "onvif".into(),
            ..ConfigurationState::default()
        };
        self.configurations
            .configurations
            .insert(key, Arc::new(state));
    }

    fn report(
        &mut self,
        node: &str,
        handler: &str,
        generation: i64,
        problem: Option<ReportedProblem>,
    ) {
        let reported = ReportedConfiguration {
            generation: Some(generation),
            problem,
            ..ReportedConfiguration::default()
        };
        let handler = (node.to_owned(), handler.to_owned());
        let report = self.reports.handlers.entry(handler).or_default();
        Arc::make_mut(report)
            .configurations
            .insert(key("cams"), reported);
    }

    fn instance(&mut self, name: &str, nodes: &[&str]) {
        let instance: leafhost_core::instance::Instance = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "default"},
            "spec": {"configurationName": "cams", "nodes": nodes},
        }))
        .unwrap();
        self.instances
            .instances
            .insert(instance.key(), Arc::new(instance));
    }

    fn fold(&self) -> Folded {
        let seen = ClusterState {
            nodes: &self.nodes,
            configurations: &self.configurations,
            reports: &self.reports,
            instances: &self.instances,
            names: &self.names,
            brokers: &self.brokers,
            restarts: &self.restarts,
            classes: &self.classes,
        };
        fold(&seen, at(1000))
    }

    fn status(&self) -> ConfigurationStatus {
        self.fold().statuses.remove(&key("cams")).unwrap()
    }

    /// Returns `ready`, and each condition with its status and reason.
    fn shown(&self) -> String {
        let status = self.status();
        let conditions = status.conditions.iter();
        let conditions =
            conditions.map(|one| format!(" {:?}={:?}/{}", one.kind, one.status, one.reason));
        format!("{}{}", status.ready, conditions.collect::<String>())
    }

    fn message(&self, kind: ConditionType) -> String {
        let conditions = self.status().conditions;
        let mut conditions = conditions.into_iter();
        conditions.find(|one| one.kind == kind).unwrap().message
    }
}

#[test]
fn brokers_that_cannot_be_made_are_a_condition_and_an_event_of_their_configuration() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.report("a", "onvif", 2, None);
    let works = cluster.shown();
    let refused = |name| Problem::BrokerNotWritten {
        configuration: key(name),
        object: format!("Pod default/{name}-1-pod"),
        error: "exceeded quota".into(),
        more: 0,
    };
    cluster.brokers = vec![refused("cams"), refused("others")];
    assert_eq!(
        cluster.shown(),
        format!("{works} BrokersMade=False/BrokerNotWritten")
    );
    let message = cluster.message(ConditionType::BrokersMade);
    let told = "Pod default/cams-1-pod: exceeded quota";
    assert!(message.contains(told), "{message}");
    let events = cluster.fold().events;
    let reasons: Vec<&str> = events.keys().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(reasons, ["BrokerNotWritten"]);
}

#[test]
fn pods_that_are_not_restarted_although_it_is_asked_for_are_a_condition_and_an_event() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.report("a", "onvif", 2, None);
    let works = cluster.shown();
    let denied = |name| Problem::PodsNotRestarted {
        configuration: key(name),
        error: format!("no right to end the pods of {name}"),
    };
    cluster.restarts = vec![denied("others"), denied("cams")];
    assert_eq!(
        cluster.shown(),
        format!("{works} PodsRestarted=False/PodsNotRestarted")
    );
    let message = cluster.message(ConditionType::PodsRestarted);
    assert!(
        message.contains("the pods of cams") && message.contains("controller.restartPods=true"),
        "{message}"
    );
    let events = cluster.fold().events;
    let reasons: Vec<&str> = events.keys().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(reasons, ["PodsNotRestarted"]);
}

#[test]
fn what_is_skipped_or_denied_is_a_condition_and_an_event_where_devices_are_missing() {
    let mut cluster = Cluster::new(&["a", "b"]);
    for node in ["a", "b"] {
        cluster.report(node, "onvif", 2, None);
    }
    let works = cluster.shown();
    let mut set = |devices, skipped: usize, denied: usize| {
        for node in ["a", "b"] {
            let place = (node.to_owned(), "onvif".to_owned());
            let report = Arc::make_mut(cluster.reports.handlers.get_mut(&place).unwrap());
            let one = report.configurations.get_mut(&key("cams")).unwrap();
            one.devices = devices;
            one.skipped = skipped;
            one.first_skipped = (skipped > 0).then(|| "10.0.0.9 (url): no answer".into());
            one.denied = denied;
            one.first_denied = (denied > 0).then(|| "no entry of `network.tcp` has it".into());
        }
        let shown = cluster.shown();
        let events = cluster.fold().events;
        let events: Vec<_> = events.into_values().collect();
        (shown, events)
    };
    let skipped = || format!("{works} DevicesLeftOut=True/Skipped");
    assert_eq!(set(1, 0, 0), (works.clone(), vec![]));
    assert_eq!(set(1, 2, 0), (skipped(), vec![]));
    let (shown, events) = set(0, 2, 0);
    assert_eq!(shown, skipped());
    assert_eq!(
        events,
        ["4 skipped, first on a, b: 10.0.0.9 (url): no answer"]
    );
    let (shown, events) = set(1, 2, 1);
    assert_eq!(shown, format!("{works} DevicesLeftOut=True/Denied"));
    let told = "2 denied, first on a, b: no entry of `network.tcp` has it; if it is wanted, grant it in onvif.grants.yaml";
    assert!(events[0].starts_with(told), "{events:?}");
    assert!(events[0].contains("; 4 skipped, first "), "{events:?}");
    assert_eq!(events.len(), 1);
    let (_, events) = set(1, 0, 1);
    assert!(events[0].starts_with(told), "{events:?}");
    assert!(!events[0].contains("skipped"), "{events:?}");
}

#[test]
fn each_problem_is_told_by_the_condition_that_it_concerns() {
    for (reason, shown) in [
        (
            "",
            "1/1 HandlerAvailable=True/HandlerFound DetailsValid=True/DetailsAccepted Discovering=True/HandlerAnswers",
        ),
        (
            "HardwareShared",
            "1/1 HandlerAvailable=True/HandlerFound DetailsValid=True/DetailsAccepted Discovering=True/HandlerAnswers",
        ),
        (
            "OfANewerAgent",
            "1/1 HandlerAvailable=True/HandlerFound DetailsValid=True/DetailsAccepted Discovering=True/HandlerAnswers",
        ),
        (
            "TooManyConfigurations",
            "0/1 HandlerAvailable=Unknown/TooManyConfigurations DetailsValid=Unknown/TooManyConfigurations Discovering=False/TooManyConfigurations",
        ),
        (
            "HandlerNotFound",
            "0/1 HandlerAvailable=False/HandlerNotFound DetailsValid=Unknown/HandlerNotFound Discovering=False/HandlerNotFound",
        ),
        (
            "HandlerLoading",
            "0/1 HandlerAvailable=Unknown/HandlerLoading DetailsValid=Unknown/HandlerLoading Discovering=Unknown/HandlerLoading",
        ),
        (
            "InvalidDetails",
            "0/1 HandlerAvailable=True/HandlerFound DetailsValid=False/InvalidDetails Discovering=False/InvalidDetails",
        ),
        (
            "DiscoveryFailed",
            "0/1 HandlerAvailable=True/HandlerFound DetailsValid=True/DetailsAccepted Discovering=False/DiscoveryFailed",
        ),
        (
            "PropertyUnavailable",
            "0/1 HandlerAvailable=True/HandlerFound DetailsValid=True/DetailsAccepted Discovering=False/PropertyUnavailable",
        ),
    ] {
        let mut cluster = Cluster::new(&["a"]);
        let reported = (!reason.is_empty()).then(|| problem(reason, "no"));
        cluster.report("a", "onvif", 2, reported);
        assert_eq!(
            cluster.shown(),
            format!("{shown} NameTaken=False/NameFree"),
            "{reason}"
        );
    }
    assert_eq!(
        Cluster::new(&["a"]).shown(),
        "0/0 HandlerAvailable=Unknown/NoReport DetailsValid=Unknown/NoReport Discovering=Unknown/NoReport NameTaken=False/NameFree"
    );
}

#[test]
fn a_problem_names_the_nodes_that_have_it_and_what_most_of_them_say() {
    let mut cluster = Cluster::new(&["a", "b", "c", "d", "e", "f"]);
    for node in ["a", "b", "c", "d", "e", "f"] {
        let text = if node == "a" {
            "no cable"
        } else {
            "no network"
        };
        cluster.report(
            node,
            "onvif",
            2,
            (node != "f").then(|| problem("DiscoveryFailed", text)),
        );
    }
    assert_eq!(cluster.status().ready, "1/6");
    assert_eq!(
        cluster.message(ConditionType::Discovering),
        "on 5 of 6 nodes (a, b, c and 2 more): no network"
    );
    let events = cluster.fold().events;
    let regarding = Regarding::Configuration(key("cams"), "u1".into());
    let message = cluster.message(ConditionType::Discovering);
    let expected = ((regarding, "DiscoveryFailed".to_owned()), message);
    assert_eq!(events, [expected].into());
}

#[test]
fn reports_count_only_of_nodes_that_are_ready_and_of_the_handler_and_generation_that_are_meant() {
    let mut cluster = Cluster::new(&["a", "down"]);
    let failed = || Some(problem("DiscoveryFailed", "no"));
    let down = cluster.nodes.nodes.get_mut("down").unwrap();
    down.not_ready_since = Some(at(1));
    cluster.report("down", "onvif", 2, failed());
    cluster.report("deleted", "onvif", 2, failed());
    cluster.report("a", "earlier", 2, failed());
    assert_eq!(cluster.status().ready, "0/0");
    cluster.report("a", "onvif", 1, failed());
    // The shown status stays until a node has read the newest version.
    assert!(cluster.fold().statuses.is_empty());
    cluster.report("a", "onvif", 1, Some(problem("InvalidSource", "no")));
    assert!(cluster.shown().contains("DetailsValid=False/InvalidSource"));
    cluster.report("a", "onvif", 2, None);
    assert_eq!(cluster.status().ready, "1/1");
    assert_eq!(cluster.status().observed_generation, 2);
    assert_eq!(cluster.fold().events.len(), 0);
}

#[test]
fn devices_are_the_instances_that_a_node_sees_which_is_ready() {
    let mut cluster = Cluster::new(&["a", "b"]);
    cluster.instance("cams-1", &["a", "b"]);
    cluster.instance("cams-2", &["b"]);
    cluster.instance("cams-3", &["gone"]);
    assert_eq!(cluster.status().devices, 2);
}

#[test]
fn the_younger_of_two_configurations_with_one_name_is_told_that_it_is_taken() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.report("a", "onvif", 2, None);
    let older = ConfigurationKey::new("zoo", "cams").unwrap();
    cluster.configure(older.clone(), "u0", 99);
    assert!(cluster.shown().ends_with("NameTaken=True/NameTaken"));
    assert_eq!(cluster.status().ready, "0/1");
    assert!(
        cluster
            .message(ConditionType::NameTaken)
            .contains("zoo/cams, which had it first")
    );
    let other = cluster.fold().statuses.remove(&older).unwrap();
    assert_eq!(other.conditions[3].status, Truth::False);
}

#[test]
fn a_name_that_is_reserved_is_taken_from_older_configurations_and_by_what_instances_are_named() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.report("a", "onvif", 2, None);
    let reserve = |cluster: &mut Cluster, name: &str, namespace: &str, second: i64| {
        let reservation = Reservation {
            namespace: namespace.into(),
            created: Some(at(second)),
        };
        cluster.names.insert(name.into(), reservation);
    };
    // The Configuration that had the name was deleted a moment ago.
    reserve(&mut cluster, "cams", "zoo", 500);
    let message = |cluster: &Cluster| cluster.message(ConditionType::NameTaken);
    assert!(message(&cluster).contains("default/cams has the name of zoo/cams"));
    reserve(&mut cluster, "cams", "default", 500);
    assert!(cluster.shown().ends_with("NameTaken=False/NameFree"));
    let squatter = ConfigurationKey::new("zoo", "cams-8120fe").unwrap();
    cluster.configure(squatter.clone(), "u0", 99);
    let other = cluster.fold().statuses.remove(&squatter).unwrap();
    assert_eq!(other.conditions[3].status, Truth::True);
    assert_eq!(other.ready_nodes, 0);
    let told = "has the name of an Instance of default/cams, which had it first";
    assert!(other.conditions[3].message.contains(told));
    cluster.instance("cams-8120fe", &["a"]);
    assert!(cluster.shown().ends_with("NameTaken=False/NameFree"));
    // The squatter reserved the name before.
    reserve(&mut cluster, "cams-8120fe", "zoo", 400);
    assert!(cluster.shown().starts_with("1/1 "));
    assert!(
        cluster
            .shown()
            .ends_with("NameTaken=True/InstanceNameTaken")
    );
    assert!(
        message(&cluster).contains("Instance default/cams-8120fe has the name of zoo/cams-8120fe")
    );
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.report("a", "onvif", 2, Some(problem("DiscoveryFailed", "no")));
    let mut shown = cluster.status();
    for condition in &mut shown.conditions {
        condition.last_transition_time = at(1);
    }
    let state = cluster
        .configurations
        .configurations
        .get_mut(&key("cams"))
        .unwrap();
    Arc::make_mut(state).status = Some(shown.clone());
    assert_eq!(cluster.status(), shown);
    cluster.report("a", "onvif", 2, Some(problem("InvalidDetails", "no")));
    let times = |status: ConfigurationStatus| {
        let conditions = status.conditions.into_iter();
        conditions
            .map(|one| one.last_transition_time.as_second())
            .collect::<Vec<_>>()
    };
    assert_eq!(times(cluster.status()), [1, 1000, 1, 1]);
}

#[test]
fn a_config_map_whose_handler_is_refused_has_an_event_and_one_whose_handler_fails_has_none() {
    let mut cluster = Cluster::new(&["a", "b"]);
    let object = ObjectName {
        namespace: "leafhost".into(),
        name: "onvif".into(),
        uid: "u7".into(),
    };
    let mut report = |node: &str, reason: &str| {
        let source = ReportedSource {
            problem: Some(problem(reason, "needs the grant net")),
            object: Some(object.clone()),
            ..ReportedSource::default()
        };
        let handler = ReportedHandler {
            sources: [("onvif.wasm".to_owned(), source)].into(),
            ..ReportedHandler::default()
        };
        let handlers = &mut cluster.reports.handlers;
        handlers.insert((node.into(), "onvif".into()), Arc::new(handler));
    };
    report("a", HANDLER_REFUSED);
    report("b", "DiscoveryFailed");
    let events = cluster.fold().events;
    let events: Vec<_> = events
        .iter()
        .map(|((regarding, _), message)| (regarding, &**message))
        .collect();
    let regarding = Regarding::ConfigMap(object);
    assert_eq!(
        events,
        [(&regarding, "on 1 of 2 nodes (a): needs the grant net")]
    );
}

#[test]
fn devices_of_the_scheduler_have_conditions_of_their_own() {
    let mut cluster = Cluster::new(&["node-a", "node-b"]);
    let kinds = |cluster: &Cluster| {
        let conditions = cluster
            .status()
            .conditions
            .into_iter()
            .map(|one| (one.kind, one));
        conditions.collect::<BTreeMap<_, _>>()
    };
    cluster.report("node-a", "onvif", 2, None);
    assert!(!kinds(&cluster).contains_key(&ConditionType::DeviceClassMade));
    let state = ConfigurationState {
        backend: Backend::Dra,
        ..(*cluster.configurations.configurations[&key("cams")]).clone()
    };
    let all = &mut cluster.configurations.configurations;
    all.insert(key("cams"), Arc::new(state));
    let is_told = kinds(&cluster).contains_key(&ConditionType::DeviceClassMade);
    assert!(!is_told, "it is not known yet");
    cluster.classes.insert(key("cams"), Ok(()));
    let told = kinds(&cluster);
    let made = &told[&ConditionType::DeviceClassMade];
    assert_eq!(made.status, Truth::True);
    assert!(made.message.contains("cams.akri.sh"), "{}", made.message);
    assert!(!told.contains_key(&ConditionType::DraUnavailable));

    let unavailable = problem("DraUnavailable", "the kubelet does not know the driver");
    cluster.report("node-b", "onvif", 2, Some(unavailable));
    let unmade = Problem::ClassNotMade {
        configuration: key("cams"),
        class: "cams.akri.sh".to_owned(),
        why: "somebody else's".to_owned(),
    };
    cluster.classes.insert(key("cams"), Err(unmade));
    let told = kinds(&cluster);
    assert_eq!(told[&ConditionType::DeviceClassMade].status, Truth::False);
    let unavailable = &told[&ConditionType::DraUnavailable];
    assert_eq!(unavailable.status, Truth::True);
    assert!(
        unavailable.message.contains("node-b"),
        "{}",
        unavailable.message
    );
    assert_eq!(told[&ConditionType::Discovering].status, Truth::True);
    assert_eq!(cluster.status().ready, "1/2");
    let reasons: Vec<String> = cluster
        .fold()
        .events
        .into_keys()
        .map(|(_, reason)| reason)
        .collect();
    assert_eq!(reasons, ["ClassNotMade", "DraUnavailable"]);
}
