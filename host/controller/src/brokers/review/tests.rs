use serde_json::json;

use super::super::template::PLACEHOLDER;
use super::*;
use crate::brokers::tests::fixture::{instance, manifest};

mod attacks;

const INSTANCE: &str = "cams-8120fe";

fn pod_spec() -> Value {
    json!({
        "containers": [{"name": "c", "image": "broker:1", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {PLACEHOLDER: "1", "cpu": 0.5}}, "ports": [{"containerPort": 80}],
            "readinessProbe": {"httpGet": {"port": 80}}, "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "securityContext": {"allowPrivilegeEscalation": false}}],
        "volumes": [{"name": "data"}, {"name": "secret", "secret": {"secretName": "s"}}],
        "tolerations": [{"key": "edge", "operator": "Exists"}], "hostNetwork": false, "hostUsers": false,
    })
}

fn configuration() -> Manifest {
    manifest(&json!({
        "brokerSpec": {"brokerPodSpec": pod_spec()},
        "instanceServiceSpec": {"ports": [{"port": 80}]},
        "configurationServiceSpec": {"ports": [{"port": 80}]},
    }))
}

fn with_job() -> Manifest {
    let mut pod = pod_spec();
    pod["restartPolicy"] = json!("Never");
    manifest(
        &json!({"brokerSpec": {"brokerJobSpec": {"template": {"spec": pod}, "backoffLimit": 0}}}),
    )
}

fn device() -> Instance {
    instance(INSTANCE, true, &["a", "b"], 2)
}

/// Returns the pod as the API server presents it for review.
fn pod() -> Value {
    pod_of(&configuration())
}

fn pod_of(manifest: &Manifest) -> Value {
    let template = Template::of(manifest).unwrap();
    let mut pod = body::pod(&device(), "b", &template).body;
    let spec = &mut pod["spec"];
    merge(
        spec,
        &json!({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "securityContext": {},
        "terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "serviceAccountName": "default", "serviceAccount": "default",
        "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "nodeSelector": {"zone": "edge"}, "imagePullSecrets": [{"name": "r"}]}),
    );
    spec.as_object_mut().unwrap().remove("hostNetwork");
    let added = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    push(&mut spec["tolerations"], added);
    spec["volumes"][0]["emptyDir"] = json!({});
    spec["volumes"][1]["secret"]["defaultMode"] = json!(420);
    push(
        &mut spec["volumes"],
        json!({"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}),
    );
    let container = &mut spec["containers"][0];
    merge(
        container,
        &json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"}),
    );
    container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = json!("v1");
    container["resources"] = json!({"limits": {"akri.sh/cams-8120fe": "1", "cpu": "500m", "memory": "1Gi"},
        "requests": {"akri.sh/cams-8120fe": "1", "cpu": "100m"}});
    container["ports"][0]["protocol"] = json!("TCP");
    merge(
        &mut container["readinessProbe"],
        &json!({"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}),
    );
    merge(
        &mut container["readinessProbe"]["httpGet"],
        &json!({"path": "/", "scheme": "HTTP"}),
    );
    let mount = json!({"name": "kube-api-access-x", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    push(&mut container["volumeMounts"], mount);
    merge(
        &mut pod["metadata"],
        &json!({"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": []}),
    );
    pod["metadata"]["annotations"][LIMIT_RANGER] = json!("set");
    pod
}

fn job() -> Value {
    let manifest = with_job();
    let template = Template::of(&manifest).unwrap();
    let mut job = body::job(&device(), 7, &template).body;
    let spec = &mut job["spec"];
    merge(
        spec,
        &json!({"completions": 1, "parallelism": 1, "completionMode": "NonIndexed", "suspend": false, "manualSelector": false,
        "podReplacementPolicy": "TerminatingOrFailed", "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}}),
    );
    let template = &mut spec["template"];
    merge(
        &mut template["metadata"]["labels"],
        &json!({"batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j",
        "controller-uid": "u", "job-name": "j"}),
    );
    merge(
        &mut template["spec"],
        &json!({"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "securityContext": {},
        "terminationGracePeriodSeconds": 30}),
    );
    job
}

fn service(of_instance: bool) -> Value {
    let (manifest, device) = (configuration(), device());
    let (owner, spec) = if of_instance {
        (
            Owner::instance(&device),
            &manifest.spec.instance_service_spec,
        )
    } else {
        (
            Owner::configuration(&manifest),
            &manifest.spec.configuration_service_spec,
        )
    };
    let spec = spec.as_ref().unwrap();
    let mut service = body::service(owner, spec, &made_of(spec)).body;
    merge(
        &mut service["spec"],
        &json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"}),
    );
    merge(
        &mut service["spec"]["ports"][0],
        &json!({"protocol": "TCP", "targetPort": 80}),
    );
    service
}

fn merge(into: &mut Value, from: &Value) {
    let fields = from.as_object().unwrap().clone();
    into.as_object_mut().unwrap().extend(fields);
}

fn push(list: &mut Value, entry: Value) {
    list.as_array_mut().unwrap().push(entry);
}

fn review(kind: Kind, object: &Value, manifest: Option<&Manifest>) -> Result<(), String> {
    let written = BrokerWrite {
        kind,
        object: object.clone(),
        before: None,
    };
    written.review(Some(&device()), manifest)
}

fn refused(what: &str, done: Result<(), String>, by: &str) {
    let error = done.expect_err(what);
    assert!(error.starts_with(by), "{what}: {error}");
}

#[test]
fn what_the_controller_makes_is_right_with_all_that_the_api_server_adds() {
    let (pods, jobs) = (configuration(), with_job());
    assert_eq!(review(Kind::Pod, &pod(), Some(&pods)), Ok(()));
    assert_eq!(review(Kind::Job, &job(), Some(&jobs)), Ok(()));
    for of_instance in [true, false] {
        let service = service(of_instance);
        assert_eq!(
            review(Kind::Service, &service, Some(&pods)),
            Ok(()),
            "{of_instance}"
        );
    }
}

#[test]
fn nothing_is_made_for_a_configuration_that_does_not_ask_for_it() {
    let deleted = |mut manifest: Manifest| {
        manifest.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
        manifest
    };
    let mut again = configuration();
    again.metadata.uid = Some("again".into());
    let without = manifest(&json!({}));
    for (what, kind, object, manifest, by) in [
        (
            "no Configuration",
            Kind::Pod,
            pod(),
            None,
            "there is no such Configuration",
        ),
        (
            "one that is being deleted",
            Kind::Pod,
            pod(),
            Some(deleted(configuration())),
            "the Configuration is being deleted",
        ),
        (
            "no broker",
            Kind::Pod,
            pod(),
            Some(without.clone()),
            "the Configuration asks for no Pod",
        ),
        (
            "a job",
            Kind::Pod,
            pod(),
            Some(with_job()),
            "the Configuration asks for no Pod",
        ),
        (
            "a pod",
            Kind::Job,
            job(),
            Some(configuration()),
            "the Configuration asks for no Job",
        ),
        (
            "no service",
            Kind::Service,
            service(true),
            Some(without.clone()),
            "the Configuration asks for no such service",
        ),
        (
            "no service of its own",
            Kind::Service,
            service(false),
            Some(without),
            "the Configuration asks for no such service",
        ),
        (
            "a Configuration of that name",
            Kind::Pod,
            pod(),
            Some(again.clone()),
            "the Instance belongs to another Configuration",
        ),
        (
            "a Configuration of that name",
            Kind::Service,
            service(false),
            Some(again),
            "metadata.ownerReferences:",
        ),
    ] {
        refused(what, review(kind, &object, manifest.as_ref()), by);
    }
    let pod = pod();
    let written = BrokerWrite {
        kind: Kind::Pod,
        object: pod.clone(),
        before: None,
    };
    refused(
        "no Instance",
        written.review(None, Some(&configuration())),
        "metadata.ownerReferences: there is no such Instance",
    );
    let mut leaving = device();
    leaving.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
    refused(
        "an Instance that is being deleted",
        written.review(Some(&leaving), Some(&configuration())),
        "the Instance is being deleted",
    );
    let unseen = instance(INSTANCE, true, &["a"], 2);
    refused(
        "a node that does not see it",
        written.review(Some(&unseen), Some(&configuration())),
        "metadata.name:",
    );
}

#[test]
fn a_service_that_is_changed_keeps_what_others_have_given_it() {
    let manifest = configuration();
    let mut before = service(false);
    before["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
    before["metadata"]["labels"]["site"] = json!("a");
    before["metadata"]["annotations"] =
        json!({"example.com/pool": "b", "leafhost.dev/made-of": "before"});
    before["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]);
    before["spec"]["ports"][0]["port"] = json!(81);
    let mut after = service(false);
    for field in ["finalizers", "labels"] {
        after["metadata"][field] = before["metadata"][field].clone();
    }
    after["metadata"]["annotations"]["example.com/pool"] = json!("b");
    let owner = before["metadata"]["ownerReferences"][0].clone();
    push(&mut after["metadata"]["ownerReferences"], owner);
    let review = |after: &Value| {
        let written = BrokerWrite {
            kind: Kind::Service,
            object: after.clone(),
            before: Some(before.clone()),
        };
        written.review(None, Some(&manifest))
    };
    assert_eq!(review(&after), Ok(()));
    for (place, value, by) in [
        ("/metadata/finalizers", json!([]), "metadata.finalizers:"),
        ("/metadata/labels/site", json!("b"), "metadata.labels:"),
        (
            "/metadata/annotations/example.com~1pool",
            json!("c"),
            "metadata.annotations:",
        ),
        (
            "/metadata/annotations/leafhost.dev~1made-of",
            json!("before"),
            "metadata.annotations:",
        ),
        (
            "/metadata/ownerReferences/1",
            json!({"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "v"}),
            "metadata.ownerReferences:",
        ),
        ("/spec/ports/0/port", json!(81), "spec.ports[0].port:"),
    ] {
        let mut after = after.clone();
        set(&mut after, place, value);
        refused(place, review(&after), by);
    }
}

/// Sets a value at a JSON pointer; null removes the field.
fn set(object: &mut Value, place: &str, value: Value) {
    let (parent, name) = place.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/");
    match object.pointer_mut(parent).unwrap() {
        Value::Array(list) => match list.get_mut(name.parse::<usize>().unwrap()) {
            Some(entry) => *entry = value,
            None => list.push(value),
        },
        Value::Object(fields) if value.is_null() => drop(fields.remove(&name)),
        Value::Object(fields) => drop(fields.insert(name, value)),
        other => panic!("{place}: {other}"),
    }
}
