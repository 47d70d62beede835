use super::super::template::TemplateKind;
use super::*;
use crate::brokers::tests::fixture::{instance, manifest};

fn created(wanted: Wanted) -> (String, Value) {
    (wanted.key.to_string(), wanted.body)
}

fn mk_template(spec: &Value, has_claim: bool) -> Template<'_> {
    Template {
        kind: TemplateKind::Pod,
        spec,
        made_of: "digest".to_owned(),
        slots: 1,
        has_claim,
    }
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": "akri.sh/v0", "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true}])
}

#[test]
fn a_pod_has_akris_name_labels_and_owner_and_asks_for_its_instance() {
    let spec = json!({
        "containers": [
            {"name": "a", "resources": {"limits": {PLACEHOLDER: "1", "cpu": "1"}, "requests": {PLACEHOLDER: "1"}}},
            {"name": "b"},
        ],
        "initContainers": [{"name": "i", "resources": {"limits": {PLACEHOLDER: 1}}}],
    });
    for (shared, name) in [
        (true, "node.a-cams-x-8120fe-pod"),
        (false, "cams-x-8120fe-pod"),
    ] {
        let instance = instance("cams.x-8120fe", shared, &["node.a"], 1);
        let (key, body) = created(pod(&instance, "node.a", &mk_template(&spec, false)));
        assert_eq!(key, format!("Pod n/{name}"));
        assert_eq!(
            body,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": name, "namespace": "n",
                    "labels": {"app": name, "controller": "akri.sh", "akri.sh/configuration": "cams",
                        "akri.sh/instance": "cams.x-8120fe", "akri.sh/target-node": "node.a"},
                    "annotations": {"leafhost.dev/made-of": "digest"},
                    "ownerReferences": owner("Instance", "cams.x-8120fe", "uid-cams.x-8120fe"),
                },
                "spec": {
                    "containers": [
                        {"name": "a", "resources": {"limits": {"akri.sh/cams.x-8120fe": "1", "cpu": "1"}, "requests": {"akri.sh/cams.x-8120fe": "1"}}},
                        {"name": "b"},
                    ],
                    "initContainers": [{"name": "i", "resources": {"limits": {"akri.sh/cams.x-8120fe": 1}}}],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node.a"]}]},
                    ]}}},
                },
            })
        );
    }
}

#[test]
fn a_pod_runs_on_its_node_only_whatever_its_own_terms_are() {
    let node = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
    let own = json!({"key": "zone", "operator": "Exists"});
    for (terms, bound) in [
        (json!(null), json!([{"matchFields": [node]}])),
        (
            json!([{"matchExpressions": [own]}, {"matchFields": [own]}]),
            json!([{"matchExpressions": [own], "matchFields": [node]}, {"matchFields": [own, node]}]),
        ),
    ] {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let mut pod = json!({"affinity": {"podAffinity": {}, "nodeAffinity": {required: {"nodeSelectorTerms": terms}}}});
        bind(&mut pod, "a");
        let affinity = &pod["affinity"];
        assert_eq!(
            affinity["nodeAffinity"][required]["nodeSelectorTerms"],
            bound
        );
        assert_eq!(affinity["podAffinity"], json!({}));
    }
    for wrong in [
        json!("x"),
        json!({"affinity": []}),
        json!({"affinity": {"nodeAffinity": 1}}),
    ] {
        let mut pod = wrong.clone();
        bind(&mut pod, "a");
        assert_eq!(pod, wrong);
    }
}

#[test]
fn a_job_is_named_after_the_generation_and_its_pods_have_two_labels_more() {
    let instance = instance("cams-8120fe", true, &["a", "b"], 1);
    let spec = json!({"backoffLimit": 2, "ttlSecondsAfterFinished": 5, "template": {
        "metadata": {"labels": {"mine": "1"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"limits": {PLACEHOLDER: "1"}}}]}}});
    let (key, body) = created(job(&instance, 3, &mk_template(&spec, false)));
    assert_eq!(key, "Job n/cams-8120fe-3-job");
    assert_eq!(body["apiVersion"], "batch/v1");
    assert_eq!(
        body["metadata"]["labels"],
        json!({"app": "cams-8120fe-3-job", "controller": "akri.sh", "akri.sh/configuration": "cams", "akri.sh/instance": "cams-8120fe"})
    );
    assert_eq!(
        body["spec"],
        json!({"backoffLimit": 2, "template": {
            "metadata": {"labels": {"mine": "1", "akri.sh/configuration": "cams", "akri.sh/instance": "cams-8120fe"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"limits": {"akri.sh/cams-8120fe": "1"}}}]}}})
    );
}

#[test]
fn a_service_has_one_label_and_selects_the_pods_of_its_owner() {
    let instance = instance("cams.x-8120fe", true, &["a"], 1);
    let manifest = manifest(&json!({}));
    let spec = json!({"ports": [{"port": 80}], "selector": {"mine": "1"}});
    for (of, name, label, value, owner) in [
        (
            Owner::instance(&instance),
            "cams-x-8120fe-svc",
            "akri.sh/instance",
            "cams.x-8120fe",
            owner("Instance", "cams.x-8120fe", "uid-cams.x-8120fe"),
        ),
        (
            Owner::configuration(&manifest),
            "cams-svc",
            "akri.sh/configuration",
            "cams",
            owner("Configuration", "cams", "config"),
        ),
    ] {
        let (key, body) = created(service(of, &spec, "digest"));
        assert_eq!(key, format!("Service n/{name}"));
        let metadata = &body["metadata"];
        assert_eq!(
            metadata["labels"],
            json!({"app": name, "controller": "akri.sh", label: value})
        );
        assert_eq!(metadata["ownerReferences"], owner);
        assert_eq!(
            body["spec"],
            json!({"ports": [{"port": 80}], "selector": {"mine": "1", "controller": "akri.sh", label: value}})
        );
    }
}

#[test]
fn a_name_that_is_too_long_for_a_label_is_shortened_there() {
    let name = "c".repeat(80);
    let instance = instance(&name, true, &["a"], 1);
    let (key, body) = created(pod(
        &instance,
        &"n".repeat(90),
        &mk_template(&json!({}), false),
    ));
    assert_eq!(key.len(), "Pod n/".len() + 90 + 1 + 80 + 4);
    let labels = body["metadata"]["labels"].as_object().unwrap();
    assert!(
        labels
            .values()
            .all(|value| value.as_str().unwrap().len() <= 63),
        "{labels:?}"
    );
}

#[test]
fn with_a_claim_the_containers_that_ask_for_the_device_name_it() {
    let instance = instance("cams.x-8120fe", true, &["node.a"], 1);
    let spec = json!({
        "containers": [{"name": "a", "resources": {"limits": {PLACEHOLDER: "1", "cpu": "1"}, "claims": [{"name": "own"}]}}, {"name": "b"}],
        "resourceClaims": [{"name": "own", "resourceClaimName": "own"}],
    });
    let (_, body) = created(pod(&instance, "node.a", &mk_template(&spec, true)));
    let spec = &body["spec"];
    assert_eq!(
        spec["containers"],
        json!([{"name": "a", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "own"}, {"name": "akri-device"}]}}, {"name": "b"}])
    );
    assert_eq!(
        spec["resourceClaims"],
        json!([
            {"name": "own", "resourceClaimName": "own"},
            {"name": "akri-device", "resourceClaimTemplateName": "cams-x-8120fe-claims"},
        ])
    );
    let mut template = mk_template(&body, true);
    let (key, made) = created(claims(&instance, &template));
    assert_eq!(key, "ResourceClaimTemplate n/cams-x-8120fe-claims");
    let request = &made["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(request["deviceClassName"], "cams.akri.sh");
    let expression = request["selectors"][0]["cel"]["expression"]
        .as_str()
        .unwrap();
    assert!(
        expression.ends_with("instance == \"cams.x-8120fe\""),
        "{expression}"
    );
    assert_eq!(request["capacity"], Value::Null);
    template.slots = 2;
    let (_, made) = created(claims(&instance, &template));
    let request = &made["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(request["capacity"], json!({"requests": {"slots": "2"}}));
}
