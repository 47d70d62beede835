//! Tests of the page of one Instance.

use super::*;
use crate::status::instance::find;

fn mk_described() -> Status {
    let mut camera = mk_instance(
        "cams",
        "8120fe",
        &json!({
            "shared": true,
            "nodes": ["edge-1", "edge-2"],
            "brokerProperties": {"URL": "http://10.0.0.7/"},
            "deviceUsage": {"cams-8120fe-0": "edge-1", "cams-8120fe-1": "edge-2"},
            "leafhost": {
                "id": "cam-0",
                "physicalId": "usb:1",
                "attributes": {"model": {"string": "M7"}, "ptz": {"bool": true}},
                "capacity": {"memory": "40Gi"},
            },
        }),
    );
    camera["status"] = json!({"nodes": {
        "edge-1": {"health": "Healthy"},
        "edge-2": {"health": "Unhealthy", "reason": "hot", "holders": {"cams-8120fe-1": "lab/viewer"}},
    }});
    let mut status = mk_status();
    status.instances[0] = serde_json::from_value(camera).unwrap();
    status
}

#[test]
fn an_instance_is_shown_with_nodes_slots_properties_and_attributes() {
    let text = page(&mk_described(), Some(View::Instance), Some("cams-8120fe"));
    assert_eq!(
        text,
        "  \
  Instance:        default/cams-8120fe
  Configuration:   cams
  Device:          cam-0
  Hardware:        usb:1
  Shared:          yes
  Capacity:        2
  CDI device:      akri.sh/cams=8120fe
  Created:         2026-01-01T11:55:00Z, 5m ago

Nodes
  NODE    SEES-IT  HEALTH
  edge-1  yes      Healthy
  edge-2  yes      Unhealthy: hot

Slots
  INSTANCE     SLOT           HELD-BY  THROUGH              DEVICE         POD
  cams-8120fe  cams-8120fe-0  edge-1   akri.sh/cams-8120fe  cams-8120fe-0  -
  cams-8120fe  cams-8120fe-1  edge-2   akri.sh/cams-8120fe  cams-8120fe-1  lab/viewer

Properties
  NAME  VALUE
  URL   http://10.0.0.7/

Attributes
  NAME   VALUE
  model  M7
  ptz    true

Capacities
  NAME    VALUE
  memory  40Gi

Use it
  podman --cdi-spec-dir /home/a/cdi run --rm --device akri.sh/cams=8120fe IMAGE
"
    );
    let request = request(
        Some(View::Instance),
        Some("default/cams-8120fe"),
        Output::Json,
    );
    let text = request.render(&mk_described(), now()).unwrap();
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["spec"]["leafhost"]["id"], "cam-0");
}

#[test]
fn a_wrong_name_says_which_object_has_it_or_the_nearest_name() {
    let status = mk_described();
    for (name, words) in [
        ("cams", "it is a Configuration"),
        ("lab/t", "leafhost status instances lab/t"),
        ("cam", "it is a handler"),
        ("cam-0", "the id of a device; its Instance is cams-8120fe"),
        ("cams-8120ff", "did you mean cams-8120fe?"),
        ("something-else", "leafhost status instances"),
        ("lab/cams-8120fe", "no Instance lab/cams-8120fe: "),
    ] {
        let error = find(&status, name).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    let mut twice = status.clone();
    let mut other = twice.instances[0].clone();
    other.metadata.namespace = "lab".into();
    twice.instances.push(other);
    let error = find(&twice, "cams-8120fe").unwrap_err();
    let words = "give one of default/cams-8120fe, lab/cams-8120fe";
    assert!(error.to_string().contains(words), "{error}");
    twice.instances.clear();
    let error = find(&twice, "x").unwrap_err().to_string();
    assert_eq!(error, "no Instance x: the agent has none");
}
