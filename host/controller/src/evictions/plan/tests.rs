use std::sync::Arc;

use leafhost_core::cluster::NodeState;
use leafhost_core::instance::Instance;
use leafhost_core::node_report::{ReportedConfiguration, ReportedHandler, ReportedProblem};
use leafhost_core::status_store::ConfigurationState;
use serde_json::json;

use super::*;

/// Configuration `cams` in namespace `n`, with a pod `n/p` that uses a device on node `a`, and a pod `n/q` on node `b`.
#[derive(Clone)]
struct Cluster {
    nodes: NodeSet,
    configurations: ConfigurationStates,
    reports: ReportSet,
    instances: InstanceSet,
}

fn key() -> ConfigurationKey {
    ConfigurationKey::new("n", "cams").unwrap()
}

fn instance() -> InstanceKey {
    InstanceKey::new("n", "cams-1")
}

fn pod(name: &str) -> PodKey {
    PodKey::read(&format!("n/{name}")).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Cluster {
    fn new() -> Self {
        let state = ConfigurationState {
            uid: "u".into(),
            handler: "udev".into(),
            restarts_pods: true,
            ..ConfigurationState::default()
        };
        let object: Instance = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "cams-1", "namespace": "n", "uid": "i", "resourceVersion": "7"},
            "spec": {"configurationName": "cams", "capacity": 2, "shared": true, "nodes": ["a", "b"],
                "deviceUsage": {"cams-1-0": "a", "cams-1-1": "C:cams-0:b"}},
            "status": {"nodes": {"a": {"health": "Healthy", "holders": {"cams-1-0": "n/p"}},
                "b": {"health": "Healthy", "holders": {"cams-1-1": "n/q"}}}},
        }))
        .unwrap();
        let mut cluster = Self {
            nodes: NodeSet::default(),
            configurations: ConfigurationStates::default(),
            reports: ReportSet::default(),
            instances: InstanceSet::read([(object.key(), Arc::new(object))].into()),
        };
        cluster
            .configurations
            .configurations
            .insert(key(), Arc::new(state));
        for node in ["a", "b"] {
            cluster
                .nodes
                .nodes
                .insert(node.into(), NodeState::default());
            cluster.report(node, None);
        }
        cluster
    }

    fn report(&mut self, node: &str, reason: Option<&str>) {
        let problem = reason.map(|reason| ReportedProblem {
            reason: reason.into(),
            message: String::new(),
        });
        let reported = ReportedConfiguration {
            problem,
            ..ReportedConfiguration::default()
        };
        let handler = ReportedHandler {
            configurations: [(key(), reported)].into(),
            ..ReportedHandler::default()
        };
        let place = (node.to_owned(), "udev".to_owned());
        self.reports.handlers.insert(place, Arc::new(handler));
    }

    fn configure(&mut self, edit: impl Fn(&mut ConfigurationState)) {
        let all = &mut self.configurations.configurations;
        edit(Arc::make_mut(all.get_mut(&key()).unwrap()));
    }

    fn edit(&mut self, edit: impl Fn(&mut Instance)) {
        let all = &mut self.instances.instances;
        edit(Arc::make_mut(all.get_mut(&instance()).unwrap()));
    }

    fn delete(&mut self) {
        self.instances.instances.clear();
    }

    fn leave(&mut self, node: &str) {
        self.edit(|instance| {
            instance.spec.nodes.retain(|one| one != node);
            instance.status.nodes.remove(node);
        });
    }

    fn world(&self) -> World<'_> {
        World {
            nodes: &self.nodes,
            configurations: &self.configurations,
            reports: &self.reports,
            instances: &self.instances,
        }
    }
}

/// Returns the pods that are due after each of these states of the cluster has lasted for [`WAIT`].
fn due(states: &[&Cluster]) -> Vec<String> {
    let (mut losses, mut now, mut found) = (Losses::default(), Instant::now(), Vec::new());
    for state in states {
        losses.update(&state.world(), now, at(100));
        now += WAIT;
        let (due, _) = losses.due(now);
        found = due.keys().map(ToString::to_string).collect();
    }
    found
}

/// Change of a cluster.
type Change = fn(&mut Cluster);

#[test]
fn pods_are_due_if_their_node_no_longer_sees_the_device_and_the_handler_answers() {
    let none: [&str; 0] = [];
    let (both, one) = (["n/p", "n/q"], ["n/p"]);
    let table: [(&str, Change, &[&str]); 15] = [
        ("nothing changes", |_| (), &none),
        ("the Instance is deleted", Cluster::delete, &both),
        ("a node leaves it", |all| all.leave("a"), &one),
        (
            "the pod has ended",
            |all| {
                all.edit(|one| {
                    let state = one.status.nodes.get_mut("a").unwrap();
                    state.holders.clear();
                });
            },
            &none,
        ),
        (
            "the handler fails on a node",
            |all| {
                all.report("b", Some("DiscoveryFailed"));
                all.delete();
            },
            &one,
        ),
        (
            "the handler is removed from a node",
            |all| {
                all.report("b", Some("HandlerRemoved"));
                all.delete();
            },
            &one,
        ),
        (
            "a problem that prevents no discovery",
            |all| {
                all.report("b", Some("HardwareShared"));
                all.delete();
            },
            &both,
        ),
        (
            "another handler, which has not reported yet",
            |all| {
                all.configure(|state| state.handler = "onvif".into());
                all.delete();
            },
            &none,
        ),
        (
            "no report of the node",
            |all| {
                let place = ("b".to_owned(), "udev".to_owned());
                all.reports.handlers.remove(&place);
                all.delete();
            },
            &one,
        ),
        (
            "a node that is not Ready",
            |all| {
                let state = all.nodes.nodes.get_mut("b").unwrap();
                state.not_ready_since = Some(at(90));
                all.delete();
            },
            &one,
        ),
        (
            "a node that is gone",
            |all| {
                all.nodes.nodes.remove("b");
                all.delete();
            },
            &one,
        ),
        (
            "the Configuration is gone",
            |all| {
                all.configurations.configurations.clear();
                all.delete();
            },
            &none,
        ),
        (
            "the Configuration is being deleted",
            |all| {
                all.configure(|state| state.is_deleting = true);
                all.delete();
            },
            &none,
        ),
        (
            "the Configuration was created again",
            |all| {
                all.configure(|state| state.uid = "other".into());
                all.delete();
            },
            &none,
        ),
        (
            "the annotation was removed",
            |all| {
                all.configure(|state| state.restarts_pods = false);
                all.delete();
            },
            &none,
        ),
    ];
    let before = Cluster::new();
    for (what, change, expected) in table {
        let mut after = before.clone();
        change(&mut after);
        assert_eq!(due(&[&before, &after]), expected, "{what}");
    }
}

#[test]
fn a_device_that_comes_back_in_time_and_one_that_was_lost_before_evict_nobody() {
    let before = Cluster::new();
    let mut gone = before.clone();
    gone.delete();
    assert_eq!(due(&[&before, &gone, &before]), <[&str; 0]>::default());
    // The controller has not seen the pods use it.
    assert_eq!(due(&[&gone]), <[&str; 0]>::default());
    let mut silent = before.clone();
    silent.configure(|state| state.restarts_pods = false);
    assert_eq!(due(&[&silent, &gone]), <[&str; 0]>::default());
    // A handler that fails later only delays the eviction.
    let mut failing = gone.clone();
    for node in ["a", "b"] {
        failing.report(node, Some("DiscoveryFailed"));
    }
    assert_eq!(due(&[&before, &gone, &failing]), <[&str; 0]>::default());
    assert_eq!(due(&[&before, &gone, &failing, &gone]), ["n/p", "n/q"]);
    // A handler that failed when the devices were withdrawn has not missed them.
    assert_eq!(due(&[&before, &failing, &gone]), <[&str; 0]>::default());
}

#[test]
fn devices_have_time_to_come_back_after_their_handler_has_failed() {
    let (before, mut losses, begun) = (Cluster::new(), Losses::default(), Instant::now());
    losses.update(&before.world(), begun, at(50));
    let mut gone = before.clone();
    gone.delete();
    losses.update(&gone.world(), begun, at(100));
    let mut failing = gone.clone();
    for node in ["a", "b"] {
        failing.report(node, Some("DiscoveryFailed"));
    }
    losses.update(&failing.world(), begun, at(100));
    assert_eq!(losses.due(begun + WAIT).1, None);
    let now = begun + WAIT * 2;
    losses.update(&gone.world(), now, at(120));
    let (due, next) = losses.due(now);
    assert_eq!((due.len(), next), (0, Some(now + WAIT)));
}

#[test]
fn a_pod_is_due_after_a_while_until_its_loss_is_settled() {
    let (before, mut losses, begun) = (Cluster::new(), Losses::default(), Instant::now());
    losses.update(&before.world(), begun, at(50));
    let mut gone = before.clone();
    gone.delete();
    losses.update(&gone.world(), begun, at(100));
    let (due, next) = losses.due(begun);
    assert_eq!((due.len(), next), (0, Some(begun + WAIT)));
    let now = begun + WAIT;
    losses.update(&gone.world(), now, at(110));
    let (due, next) = losses.due(now);
    assert_eq!(next, None);
    let loss = Loss {
        configuration: key(),
        instance: instance(),
        node: "a".into(),
        since: at(100),
    };
    assert_eq!(due.get(&pod("p")), Some(&loss));
    losses.settle(&pod("p"), "b");
    assert_eq!(losses.due(now).0.len(), 2);
    losses.settle(&pod("p"), "a");
    let (due, _) = losses.due(now);
    assert_eq!(due.into_keys().collect::<Vec<_>>(), [pod("q")]);
}

#[test]
fn only_a_pod_that_has_used_the_device_and_may_be_created_elsewhere_is_evicted() {
    let loss = Loss {
        configuration: key(),
        instance: instance(),
        node: "a".into(),
        since: at(100),
    };
    let state = PodState {
        uid: "p".into(),
        node: Some("a".into()),
        created: Some(at(99)),
        owner: Some("ReplicaSet".into()),
        ..PodState::default()
    };
    let owned = |kind: &str| PodState {
        owner: Some(kind.into()),
        ..state.clone()
    };
    let other = Some("another pod has its name");
    for (pod, expected) in [
        (state.clone(), None),
        (owned("StatefulSet"), None),
        (owned("Job"), None),
        (
            owned("DaemonSet"),
            Some("its DaemonSet would create it again on the same node"),
        ),
        (owned("Node"), Some("nothing would create it again")),
        (
            PodState {
                owner: None,
                ..state.clone()
            },
            Some("nothing would create it again"),
        ),
        (
            PodState {
                is_mirror: true,
                ..owned("Node")
            },
            Some("it is a static pod"),
        ),
        (
            PodState {
                is_broker: true,
                ..state.clone()
            },
            Some("it is a broker"),
        ),
        (
            PodState {
                is_ending: true,
                ..state.clone()
            },
            Some("it ends already"),
        ),
        (
            PodState {
                node: Some("b".into()),
                ..state.clone()
            },
            other,
        ),
        (
            PodState {
                node: None,
                ..state.clone()
            },
            other,
        ),
        // Created within the second of the loss, or later.
        (
            PodState {
                created: Some(at(100)),
                ..state.clone()
            },
            other,
        ),
        (
            PodState {
                created: None,
                ..state.clone()
            },
            other,
        ),
    ] {
        assert_eq!(reason_to_stay(&pod, &loss), expected, "{pod:?}");
    }
}
