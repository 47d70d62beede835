use std::collections::BTreeMap;

use leafhost_core::attribute::{self, AttributeValue};
use leafhost_core::configuration::{self as core_configuration, Manifest};
use leafhost_core::device::Health;
use leafhost_core::instance as core_instance;
use leafhost_core::node_report::{
    HandlerPhase, ObjectName, ReportedConfiguration, ReportedProblem, ReportedSource,
};
use leafhost_core::status_store::{Condition, ConditionType, ConfigurationStatus, Truth};
use serde_json::{Value, json};

use super::*;

mod generated;

fn schema(kind: &str) -> Value {
    let definitions = definitions().unwrap();
    let definition = definitions
        .iter()
        .find(|definition| definition.spec.names.kind == kind)
        .unwrap();
    let schema = definition.spec.versions[0].schema.as_ref().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.as_ref().unwrap()).unwrap()
}

/// Returns the fields of an object that the API server would drop.
fn pruned(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Vec::new();
    }
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                let path = format!("{path}.{name}");
                if path == ".metadata" || path == ".apiVersion" || path == ".kind" {
                    return Vec::new();
                }
                match (
                    schema["properties"].get(name),
                    &schema["additionalProperties"],
                ) {
                    (None, Value::Null) => vec![path],
                    (Some(schema), _) | (None, schema) => pruned(schema, value, &path),
                }
            })
            .collect(),
        Value::Array(items) => items
            .iter()
            .flat_map(|item| pruned(&schema["items"], item, path))
            .collect(),
        _ => Vec::new(),
    }
}

fn mk_manifest() -> Value {
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cameras"},
        "spec": {
            "discoveryHandler": {"name": "onvif", "discoveryDetails": "a: 1", "discoveryProperties": [
                {"name": "a", "value": "x"},
                {"name": "b", "valueFrom": {"secretKeyRef":
                    {"name": "s", "namespace": "n", "key": "k", "optional": true}}},
                {"name": "c", "valueFrom": {"configMapKeyRef":
                    {"name": "s", "namespace": "n", "key": "k", "optional": true}}},
                {"name": "d"},
            ]},
            "capacity": 2,
            "brokerSpec": {"brokerPodSpec": {"containers": [{"name": "c", "image": "i"}]}},
            "instanceServiceSpec": {"ports": [{"port": 0}]},
            "configurationServiceSpec": {"ports": [{"port": 0}]},
            "brokerProperties": {"A": "1"},
        },
    })
}

/// Returns an Instance with every field set, so that a new field does not compile until it is added here.
fn mk_instance() -> core_instance::Instance {
    let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let attributes = [
        ("a", AttributeValue::String("x".into())),
        ("b", AttributeValue::Int(-1)),
        ("c", AttributeValue::Bool(true)),
        ("d", AttributeValue::Version("1.2.3".into())),
    ];
    let status = core_instance::NodeStatus {
        health: Health::Unhealthy("hot".into()),
        is_unreadable: false,
        missing_since: Some("2026-01-01T00:00:00Z".into()),
        missing_uptime: Some(core_instance::Uptime {
            boot: "b".into(),
            seconds: 1,
        }),
        holders: map("cameras-8120fe-0", "default/pod"),
    };
    core_instance::Instance {
        api_version: "akri.sh/v0".into(),
        kind: "Instance".into(),
        metadata: core_instance::InstanceMetadata {
            name: "cameras-8120fe".into(),
            namespace: "default".into(),
            ..Default::default()
        },
        spec: core_instance::InstanceSpec {
            configuration_name: "cameras".into(),
            cdi_name: "akri.sh/cameras=8120fe".into(),
            capacity: 2,
            broker_properties: map("A", "1"),
            shared: true,
            nodes: vec!["n".into()],
            device_usage: map("cameras-8120fe-0", "C:cameras-0:n"),
            leafhost: Some(core_instance::Leafhost {
                id: "foo0".into(),
                attributes: attributes
                    .map(|(name, value)| (name.to_owned(), value))
                    .into(),
                capacity: map("memory", "1Gi"),
                physical_id: Some("p".into()),
                reserved: BTreeMap::from([(
                    "cams-1-0".to_owned(),
                    core_instance::Reserved {
                        pod: "default/viewer".into(),
                        places: vec![0],
                        uses: vec![core_instance::Use {
                            container: "main".into(),
                            of: 1,
                            request: "camera".into(),
                            ..core_instance::Use::default()
                        }],
                    },
                )]),
            }),
        },
        status: core_instance::InstanceStatus {
            used: Some(1),
            nodes: [("n".to_owned(), status)].into(),
        },
    }
}

fn mk_discovery_handler() -> DiscoveryHandler {
    let spec = DiscoveryHandlerSpec {
        node: "n".into(),
        handler: "onvif".into(),
    };
    let mut object = DiscoveryHandler::new("n.onvif", spec);
    let text = || Some("text".to_owned());
    let problem = || {
        Some(ReportedProblem {
            reason: "Reason".into(),
            message: "text".into(),
        })
    };
    object.status = Some(DiscoveryHandlerStatus {
        phase: HandlerPhase::Offline,
        since: Some("2026-01-01T00:00:00Z".into()),
        devices: 1,
        skipped: 2,
        denied: 1,
        problem: text(),
        sources: vec![SourceReport {
            name: "onvif.wasm".into(),
            kind: SourceKind::External,
            source: ReportedSource {
                endpoint: text(),
                version: text(),
                digest: text(),
                missing_grants: vec!["udev".into()],
                problem: problem(),
                object: Some(ObjectName::default()),
            },
        }],
        configurations: vec![ConfigurationReport {
            namespace: "default".into(),
            name: "cameras".into(),
            configuration: ReportedConfiguration {
                devices: 1,
                skipped: 2,
                first_skipped: text(),
                denied: 1,
                first_denied: text(),
                generation: Some(1),
                problem: problem(),
            },
        }],
    });
    object
}

fn mk_status() -> ConfigurationStatus {
    let condition = Condition {
        kind: ConditionType::Discovering,
        status: Truth::Unknown,
        reason: "NoReport".into(),
        message: "no node reports on it".into(),
        observed_generation: 2,
        last_transition_time: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    ConfigurationStatus {
        observed_generation: 2,
        ready: "2/3".into(),
        nodes: 3,
        ready_nodes: 2,
        devices: 7,
        conditions: vec![condition],
    }
}

/// Returns one object of each kind as it is written.
fn objects() -> [(&'static str, Value); 3] {
    let mut manifest = mk_manifest();
    manifest["status"] = serde_json::to_value(mk_status()).unwrap();
    [
        ("Configuration", manifest),
        ("Instance", serde_json::to_value(mk_instance()).unwrap()),
        (
            "DiscoveryHandler",
            serde_json::to_value(mk_discovery_handler()).unwrap(),
        ),
    ]
}

#[test]
fn kubectl_can_keep_each_in_its_annotation() {
    for definition in definitions().unwrap() {
        let size = serde_json::to_string(&definition).unwrap().len();
        assert!(size < 64 << 10, "{size}");
    }
}

#[test]
fn no_field_that_is_written_is_dropped() {
    for (kind, object) in objects() {
        assert_eq!(pruned(&schema(kind), &object, ""), [""; 0], "{kind}");
    }
    let mut misspelt = mk_manifest();
    misspelt["spec"]["capactiy"] = json!(1);
    assert_eq!(
        pruned(&schema("Configuration"), &misspelt, ""),
        [".spec.capactiy"]
    );
}

#[test]
fn what_is_written_is_accepted_and_nonsense_is_not() {
    let objects = BTreeMap::from(objects());
    let validators: BTreeMap<_, _> = objects
        .keys()
        .map(|kind| (*kind, jsonschema::validator_for(&schema(kind)).unwrap()))
        .collect();
    for (kind, object) in &objects {
        let errors: Vec<_> = validators[kind]
            .iter_errors(object)
            .map(|e| e.to_string())
            .collect();
        assert_eq!(errors, [""; 0], "{kind}");
    }
    let handler = "/spec/discoveryHandler";
    let properties = "/spec/discoveryHandler/discoveryProperties";
    for (kind, at, value, good) in [
        ("Configuration", "/spec/capacity".to_owned(), json!(0), true),
        (
            "Configuration",
            "/spec/capacity".to_owned(),
            json!(5000),
            true,
        ),
        (
            "Configuration",
            "/spec/capacity".to_owned(),
            json!(-1),
            false,
        ),
        (
            "Configuration",
            "/spec/capacity".to_owned(),
            json!("two"),
            false,
        ),
        ("Configuration", "/spec".to_owned(), json!({}), false),
        ("Configuration", handler.to_owned(), json!({}), false),
        (
            "Configuration",
            handler.to_owned(),
            json!({"name": "udev"}),
            true,
        ),
        ("Configuration", format!("{handler}/name"), json!(""), false),
        (
            "Configuration",
            format!("{handler}/name"),
            json!("n".repeat(64)),
            false,
        ),
        (
            "Configuration",
            format!("{handler}/discoveryDetails"),
            json!({"a": 1}),
            false,
        ),
        (
            "Configuration",
            format!("{handler}/discoveryDetails"),
            json!("d".repeat(262_145)),
            false,
        ),
        (
            "Configuration",
            format!("{properties}/0/name"),
            json!("0a"),
            false,
        ),
        (
            "Configuration",
            format!("{properties}/0/value"),
            json!(1),
            false,
        ),
        (
            "Configuration",
            format!("{properties}/1/valueFrom/secretKeyRef"),
            json!({"name": "s"}),
            false,
        ),
        (
            "Configuration",
            format!("{properties}/1/valueFrom/secretKeyRef"),
            json!({"name": "s", "key": "k"}),
            true,
        ),
        (
            "Configuration",
            "/spec/brokerProperties".to_owned(),
            json!({"A": 1}),
            false,
        ),
        (
            "Instance",
            "/spec".to_owned(),
            json!({"configurationName": "a"}),
            true,
        ),
        (
            "Instance",
            "/spec".to_owned(),
            json!({"capacity": 1}),
            false,
        ),
        ("Instance", "/spec/capacity".to_owned(), json!(-1), false),
        ("Instance", "/spec/nodes".to_owned(), json!("n"), false),
        (
            "Instance",
            "/spec/deviceUsage".to_owned(),
            json!({"a-0": 1}),
            false,
        ),
        (
            "Instance",
            "/spec/leafhost/attributes".to_owned(),
            json!({"a": {"string": "x", "int": 1}}),
            false,
        ),
        (
            "Instance",
            "/status/nodes/n".to_owned(),
            json!({"health": "Fine"}),
            false,
        ),
        (
            "DiscoveryHandler",
            "/spec".to_owned(),
            json!({"node": "n"}),
            false,
        ),
        (
            "DiscoveryHandler",
            "/status/phase".to_owned(),
            json!("Running"),
            false,
        ),
    ] {
        let mut object = objects[kind].clone();
        *object.pointer_mut(&at).unwrap() = value.clone();
        assert_eq!(
            validators[kind].is_valid(&object),
            good,
            "{kind} {at} {value}"
        );
    }
}

#[test]
fn the_bounds_are_those_that_agents_and_schedulers_keep() {
    let instance = schema("Instance");
    for (path, bound) in [
        (
            "spec/properties/leafhost/properties/attributes/maxProperties",
            attribute::MAX_COUNT,
        ),
        (
            "spec/properties/leafhost/properties/capacity/maxProperties",
            attribute::MAX_COUNT,
        ),
        (
            "spec/properties/leafhost/properties/attributes/additionalProperties/properties/string/maxLength",
            attribute::MAX_VALUE,
        ),
        (
            "spec/properties/leafhost/properties/attributes/additionalProperties/properties/version/maxLength",
            attribute::MAX_VALUE,
        ),
        (
            "spec/properties/leafhost/properties/capacity/additionalProperties/maxLength",
            attribute::MAX_VALUE,
        ),
        (
            "spec/properties/leafhost/properties/reserved/maxProperties",
            core_instance::MAX_HOLDERS,
        ),
        (
            "spec/properties/leafhost/properties/reserved/additionalProperties/properties/pod/maxLength",
            core_instance::MAX_HOLDER,
        ),
        (
            "spec/properties/leafhost/properties/reserved/additionalProperties/properties/places/maxItems",
            core_instance::MAX_USES,
        ),
        (
            "spec/properties/leafhost/properties/reserved/additionalProperties/properties/uses/maxItems",
            core_instance::MAX_USES,
        ),
        (
            "status/properties/nodes/additionalProperties/properties/holders/maxProperties",
            core_instance::MAX_HOLDERS,
        ),
        (
            "status/properties/nodes/additionalProperties/properties/holders/additionalProperties/maxLength",
            core_instance::MAX_HOLDER,
        ),
        (
            "status/properties/nodes/additionalProperties/properties/reason/maxLength",
            core_instance::MAX_REASON,
        ),
    ] {
        let found = instance.pointer(&format!("/properties/{path}"));
        assert_eq!(found, Some(&json!(bound)), "{path}");
    }
}

#[test]
fn akris_fields_have_akris_types() {
    for (kind, path, expected) in [
        (
            "Configuration",
            "discoveryHandler/properties/name",
            "string",
        ),
        (
            "Configuration",
            "discoveryHandler/properties/discoveryDetails",
            "string",
        ),
        (
            "Configuration",
            "discoveryHandler/properties/discoveryProperties",
            "array",
        ),
        ("Configuration", "capacity", "integer"),
        (
            "Configuration",
            "brokerSpec/properties/brokerPodSpec",
            "object",
        ),
        (
            "Configuration",
            "brokerSpec/properties/brokerJobSpec",
            "object",
        ),
        ("Configuration", "instanceServiceSpec", "object"),
        ("Configuration", "configurationServiceSpec", "object"),
        ("Configuration", "brokerProperties", "object"),
        ("Instance", "configurationName", "string"),
        ("Instance", "cdiName", "string"),
        ("Instance", "capacity", "integer"),
        ("Instance", "brokerProperties", "object"),
        ("Instance", "shared", "boolean"),
        ("Instance", "nodes", "array"),
        ("Instance", "deviceUsage", "object"),
    ] {
        let pointer = format!("/properties/spec/properties/{path}/type");
        let found = schema(kind).pointer(&pointer).cloned();
        assert_eq!(found, Some(json!(expected)), "{kind} {path}");
    }
    let usage = "/properties/spec/properties/deviceUsage/x-kubernetes-map-type";
    assert_eq!(schema("Instance").pointer(usage), Some(&json!("granular")));
    let nodes = "/properties/spec/properties/nodes/x-kubernetes-list-type";
    assert_eq!(schema("Instance").pointer(nodes), Some(&json!("set")));
}

#[test]
fn the_agent_reads_what_the_definition_of_a_configuration_allows() {
    let least = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "a"},
        "spec": {"discoveryHandler": {"name": "udev"}, "brokerSpec": null, "instanceServiceSpec": null}});
    for manifest in [mk_manifest(), least] {
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        core_configuration::Configuration::try_from(manifest).unwrap();
    }
}

#[test]
fn only_a_configuration_has_a_status_subresource() {
    for definition in definitions().unwrap() {
        let subresources = definition.spec.versions[0].subresources.as_ref();
        let has_status = subresources.is_some_and(|subresources| subresources.status.is_some());
        let kind = definition.spec.names.kind;
        assert_eq!(has_status, kind == "Configuration", "{kind}");
    }
}

#[test]
fn kubectl_knows_them_by_short_names_and_shows_akris_columns_first() {
    for (definition, (short, columns)) in definitions().unwrap().into_iter().zip([
        ("akric", "Capacity Handler Ready Devices Allocation Age"),
        ("akrii", "Config Shared Nodes Capacity Used Age Device"),
        (
            "dh",
            "Node Handler Status Since Devices Skipped Denied Problem",
        ),
        ("", "Namespace Age"),
    ]) {
        let names = definition.spec.names.short_names.unwrap_or_default();
        assert_eq!(names.concat(), short);
        let version = definition.spec.versions.into_iter().next().unwrap();
        let shown = version.additional_printer_columns.unwrap();
        let names: Vec<_> = shown.into_iter().map(|column| column.name).collect();
        assert_eq!(names.join(" "), columns);
    }
}
