use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;

/// A starting state, and the plan to follow.
type Way = (fn() -> ClusterState, fn(&ClusterState) -> Plan);

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn labels(name: &str) -> Value {
    json!({"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "akri", "app.kubernetes.io/version": "0.13.26"})
}

fn set(name: &str) -> DaemonSet {
    read(json!({
        "metadata": {"name": format!("{name}-daemonset"), "namespace": "akri", "labels": labels(name),
            "annotations": {"meta.helm.sh/release-name": "akri"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": [], "nodeSelector": {"kubernetes.io/os": "linux"}}}},
        "status": {"currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2},
    }))
}

fn pod(name: &str, node: &str) -> Pod {
    read(
        json!({"metadata": {"name": format!("{name}-{node}"), "namespace": "akri", "labels": labels(name)}, "spec": {"nodeName": node, "containers": []}}),
    )
}

fn own_definitions() -> Vec<CustomResourceDefinition> {
    crate::crd::definitions().unwrap()
}

/// Returns a definition as Akri has it, with fewer fields.
fn definition(ours: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut theirs = serde_json::to_value(ours).unwrap();
    theirs["spec"]["versions"][0]
        .as_object_mut()
        .unwrap()
        .remove("additionalPrinterColumns");
    read(theirs)
}

/// Returns a cluster in which Akri runs; node c is away.
fn akris() -> ClusterState {
    let mark = |node: &str| {
        json!({"manager": format!("{node}-fin"), "operation": "Apply", "apiVersion": "akri.sh/v0", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:finalizers": {format!("v:\"{node}\""): {}}}}})
    };
    let object = |kind: &str, name: &str, spec: Value| {
        read(
            json!({"apiVersion": "akri.sh/v0", "kind": kind, "metadata": {"name": name, "namespace": "default", "resourceVersion": "7",
            "finalizers": ["a"], "managedFields": [mark("a"), {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {}}}]}, "spec": spec}),
        )
    };
    let instance = |name: &str| {
        object(
            "Instance",
            name,
            json!({"configurationName": "cams", "cdiName": "x", "capacity": 1, "nodes": ["a"], "deviceUsage": {format!("{name}-0"): "a"}}),
        )
    };
    ClusterState {
        daemon_sets: vec![
            set("akri-agent"),
            set("akri-udev-discovery"),
            read(
                json!({"metadata": {"name": "lidar", "namespace": "x", "labels": {"app.kubernetes.io/part-of": "akri",
                "app.kubernetes.io/component": "discovery-handler"}}}),
            ),
            read(json!({"metadata": {"name": "other", "namespace": "x"}})),
        ],
        deployments: vec![
            read(
                json!({"metadata": {"name": "akri-controller-deployment", "namespace": "akri", "resourceVersion": "7"},
                "spec": {"replicas": 2, "selector": {}, "template": {}}}),
            ),
            read(json!({"metadata": {"name": "other", "namespace": "x"}})),
        ],
        webhooks: vec![read(
            json!({"metadata": {"name": "akri-webhook-configuration", "resourceVersion": "7"},
            "webhooks": [{"name": "a", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "objectSelector": {"matchLabels": {"x": "y"}}}]}),
        )],
        pods: vec![
            pod("akri-agent", "a"),
            pod("akri-agent", "c"),
            pod("akri-controller", "a"),
        ],
        ready_nodes: BTreeSet::from(["a".to_owned()]),
        definitions: own_definitions().into_iter().map(definition).collect(),
        own_definitions: own_definitions(),
        configurations: vec![object(
            "Configuration",
            "cams",
            json!({"discoveryHandler": {"name": "onvif"}}),
        )],
        instances: vec![instance("cams-1"), instance("cams-2")],
    }
}

fn merge<T: Serialize + DeserializeOwned>(objects: &mut [T], edit: &Edit) -> usize {
    let mut merged = 0;
    for object in objects {
        let mut value = serde_json::to_value(&*object).unwrap();
        let metadata = &value["metadata"];
        if metadata["name"] == edit.name && metadata["namespace"] == json!(edit.namespace) {
            json_patch::merge(&mut value, &edit.patch);
            *object = read(value);
            merged += 1;
        }
    }
    merged
}

/// Executes a step with at most `most` writes, and returns the number of writes.
fn run(seen: &mut ClusterState, step: &Step, most: usize) -> usize {
    match &step.action {
        Action::Patch(edits) => {
            let done = edits.iter().take(most).map(|edit| {
                let merged = match edit.resource.kind.as_str() {
                    "DaemonSet" => merge(&mut seen.daemon_sets, edit),
                    "Deployment" => merge(&mut seen.deployments, edit),
                    "ValidatingWebhookConfiguration" => merge(&mut seen.webhooks, edit),
                    "Configuration" => merge(&mut seen.configurations, edit),
                    "Instance" => merge(&mut seen.instances, edit),
                    other => panic!("{other}"),
                };
                assert_eq!(merged, 1, "{edit:?}");
            });
            done.count()
        }
        Action::Wait => {
            assert!(
                seen.daemon_sets
                    .iter()
                    .filter(|one| is_of(one.meta(), &[Part::Agent]))
                    .all(is_stopped)
            );
            let ready = seen.ready_nodes.clone();
            seen.pods.retain(|pod| !is_waited_for(pod, &ready));
            0
        }
        Action::Define(ours) => {
            let done = ours.iter().take(most).map(|ours| {
                let theirs = seen
                    .definitions
                    .iter_mut()
                    .find(|theirs| theirs.name_any() == ours.name_any());
                *theirs.unwrap() = ours.clone();
            });
            done.count()
        }
    }
}

/// Follows the plan until nothing is left or `most` writes are done, and returns the number of writes.
fn follow(seen: &mut ClusterState, plan: impl Fn(&ClusterState) -> Plan, most: usize) -> usize {
    let mut done = 0;
    for step in &plan(seen).steps {
        done += run(seen, step, most - done);
        if done == most {
            return done;
        }
    }
    assert_eq!(plan(seen).steps.len(), 0, "{:#?}", plan(seen).steps);
    done
}

fn state(seen: &ClusterState) -> Value {
    json!([
        seen.daemon_sets,
        seen.deployments,
        seen.webhooks,
        seen.configurations,
        seen.instances
    ])
}

#[test]
fn akri_is_stopped_before_its_marks_are_removed_and_its_other_handlers_go_on() {
    let plan = from_akri(&akris());
    let texts: Vec<&str> = plan.steps.iter().map(|step| step.text.as_str()).collect();
    let beginnings = [
        "Keep the API server from asking Akri's webhook akri-webhook-configuration,",
        "Stop the DaemonSets akri/akri-agent-daemonset, akri/akri-udev-discovery-daemonset:",
        "Scale the Deployment akri/akri-controller-deployment to 0",
        "Wait until the pods",
        "Remove the finalizers and field managers of Akri's agents from 1 Configuration",
        "Remove the finalizers and field managers of Akri's agents from 2 Instances",
        "Replace the definitions",
    ];
    assert_eq!(texts.len(), beginnings.len(), "{texts:#?}");
    for (text, beginning) in texts.iter().zip(beginnings) {
        assert!(text.starts_with(beginning), "{text}");
    }
    assert!(
        plan.found[0].starts_with(
            "Akri 0.13.26: DaemonSet akri/akri-agent-daemonset, 2 pods, Helm release akri"
        ),
        "{:?}",
        plan.found
    );
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("DaemonSet x/lidar continues")),
        "{:#?}",
        plan.notes
    );
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("akri/akri-agent-c")),
        "{:#?}",
        plan.notes
    );
}

#[test]
fn whoever_is_interrupted_anywhere_ends_with_the_same() {
    let ways: [Way; 2] = [
        (akris, from_akri),
        (
            || {
                let mut seen = akris();
                follow(&mut seen, from_akri, usize::MAX);
                seen
            },
            to_akri,
        ),
    ];
    for (start, plan) in ways {
        let mut whole = start();
        let writes = follow(&mut whole, plan, usize::MAX);
        assert!(writes >= 6, "{writes}");
        for cut in 0..writes {
            let mut seen = start();
            follow(&mut seen, plan, cut);
            follow(&mut seen, plan, usize::MAX);
            assert_eq!(state(&seen), state(&whole), "after {cut} writes");
        }
    }
}

#[test]
fn akri_gets_back_what_was_stopped_as_it_was() {
    let mut seen = akris();
    follow(&mut seen, from_akri, usize::MAX);
    assert_eq!(seen.deployments[0].spec.replicas, Some(0));
    follow(&mut seen, to_akri, usize::MAX);
    let (before, after) = (akris(), seen);
    assert_eq!(after.webhooks, before.webhooks);
    assert_eq!(after.daemon_sets, before.daemon_sets);
    assert_eq!(after.deployments[0].spec, before.deployments[0].spec);
    let manager = after.instances[0].managed_fields()[0].manager.as_deref();
    assert_eq!(manager, Some("a"));
}

#[test]
fn the_objects_of_agents_of_akri_that_run_are_left_alone() {
    let plan = to_akri(&akris());
    assert!(
        plan.steps.is_empty() && plan.blockers.is_empty(),
        "{plan:#?}"
    );
}

#[test]
fn where_nothing_of_akri_is_nothing_is_done() {
    let own = |spec: Value| {
        read(
            json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "finalizers": ["orphan"]}, "spec": spec}),
        )
    };
    let seen = ClusterState {
        daemon_sets: vec![read(json!({"metadata": {"name": "other"}}))],
        definitions: own_definitions(),
        own_definitions: own_definitions(),
        configurations: vec![own(json!({"discoveryHandler": {"name": "udev"}}))],
        ..ClusterState::default()
    };
    for plan in [
        from_akri(&seen),
        from_akri(&ClusterState::default()),
        to_akri(&ClusterState::default()),
    ] {
        assert!(
            plan.steps.is_empty() && plan.blockers.is_empty(),
            "{plan:#?}"
        );
    }
}

#[test]
fn it_does_not_go_back_while_leafhost_runs_or_akri_could_not_read_a_configuration() {
    let mut seen = akris();
    seen.daemon_sets.push(read(json!({"metadata": {"name": "leafhost-agent", "namespace": "leafhost",
        "labels": {"app.kubernetes.io/name": "leafhost-agent"}, "annotations": {"meta.helm.sh/release-name": "lh"}}})));
    let blockers = to_akri(&seen).blockers;
    assert!(
        blockers[0].contains("helm uninstall lh --namespace leafhost"),
        "{blockers:?}"
    );
    seen.daemon_sets.pop();
    let mut agent = pod("leafhost-agent", "a");
    agent.metadata.labels = Some(BTreeMap::from([(
        "app.kubernetes.io/name".into(),
        "leafhost-agent".into(),
    )]));
    seen.pods = vec![agent];
    assert!(to_akri(&seen).blockers[0].contains("leafhost-agent-a"));
    seen.pods.clear();
    assert_eq!(to_akri(&seen).blockers, [""; 0]);
    follow(&mut seen, from_akri, usize::MAX);
    seen.configurations[0].data["spec"]["brokerSpec"] =
        json!({"brokerPodSpec": {"containers": "none"}});
    let blockers = to_akri(&seen).blockers;
    assert!(blockers[0].starts_with("Akri's agents stop at Configuration default/cams: spec.brokerSpec.brokerPodSpec.containers: "), "{blockers:?}");
}

#[test]
fn an_operator_is_told_what_helm_would_delete_and_which_fields_are_unknown() {
    let mut seen = akris();
    let configuration = &mut seen.configurations[0];
    configuration.metadata.annotations = Some(BTreeMap::from([(
        "meta.helm.sh/release-name".into(),
        "akri".into(),
    )]));
    configuration.data["spec"]["instanceServiceSpec"] = json!({"porst": []});
    let notes = from_akri(&seen).notes;
    for words in [
        "The Helm release akri has created the Configurations default/cams: helm uninstall",
        "spec.instanceServiceSpec.porst: ",
    ] {
        assert!(
            notes.iter().any(|note| note.contains(words)),
            "{words}: {notes:#?}"
        );
    }
}
