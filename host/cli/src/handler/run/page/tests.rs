use std::time::Duration;

use leafhost_core::device::Device;
use leafhost_core::left_out::LeftOut;
use leafhost_core::session::{CallStats, Explanation};
use serde_json::json;

use super::*;

fn mk_device() -> Found {
    let device = Device {
        physical_id: Some("0000:01:00.0".into()),
        properties: [("GPU_UUID".to_owned(), "a b".to_owned())].into(),
        nodes: serde_json::from_value(json!([
            {"hostPath": "/dev/gpu0", "containerPath": "/dev/gpu0", "permissions": "rw"},
            {"hostPath": "/dev/gpu0", "containerPath": "/dev/gpu", "permissions": "r"},
        ]))
        .unwrap(),
        mounts: serde_json::from_value(json!([
            {"hostPath": "/run/gpu", "containerPath": "/run/gpu", "readOnly": true},
        ]))
        .unwrap(),
        attributes: serde_json::from_value(
            json!({"model": {"string": "M1"}, "numa": {"int": 1}, "driver": {"version": "1.2.3"}}),
        )
        .unwrap(),
        capacity: [("memory".to_owned(), "80Gi".to_owned())].into(),
        health: Health::Unhealthy("hot".into()),
        ..Device::new("gpu-0", false)
    };
    Found {
        device,
        instance: "gpus-8120fe".into(),
        cdi_name: "akri.sh/gpus=8120fe".into(),
    }
}

fn mk_document() -> Document {
    Document {
        handler: "mock-gpu".into(),
        version: "1".into(),
        digest: "ab".into(),
        node: "edge-1".into(),
        configuration: "default/gpus".into(),
        result: "ok".into(),
        extent: Some("complete"),
        devices: vec![mk_device()],
        left_out: vec![LeftOut {
            id: "gpu-1".into(),
            reason: "node /dev/gpu1 is not granted".into(),
        }],
        skipped: vec![Explanation {
            subject: "gpu-2".into(),
            rule: "count".into(),
            reason: "one too many".into(),
        }],
        skipped_dropped: 2,
        call: Some(CallStats {
            events: vec!["first"],
            wall: Duration::from_millis(38),
            cpu: Duration::from_micros(3_100),
            memory: 1_179_648,
            denied: vec!["udev.read gpu".into()],
            log_dropped: 4,
            next: Some(Duration::from_secs(10)),
            ..CallStats::default()
        }),
        ..Document::default()
    }
}

#[test]
fn a_device_is_shown_with_all_it_brings() {
    assert_eq!(
        text(&mk_document(), false, Paint::PLAIN),
        "\
gpu-0  local, unhealthy: hot
  instance   gpus-8120fe
  cdi        akri.sh/gpus=8120fe
  hardware   0000:01:00.0
  env        GPU_UUID=a b
  node       /dev/gpu0 (rw)
  node       /dev/gpu0 as /dev/gpu (r)
  mount      /run/gpu (ro)
  attribute  driver = version 1.2.3
  attribute  model = \"M1\"
  attribute  numa = 1
  capacity   memory = 80Gi

LEFT-OUT  WHY
gpu-1     node /dev/gpu1 is not granted
"
    );
}

#[test]
fn of_many_that_are_left_out_the_rest_is_counted() {
    let mut document = mk_document();
    document.left_out_dropped = 7;
    let text = text(&document, false, Paint::PLAIN);
    assert!(
        text.ends_with("gpu-1     node /dev/gpu1 is not granted\nand 7 more\n"),
        "{text}"
    );
    let lines = cost(&document, false, &Limits::default());
    assert!(lines[0].contains("8 left out"), "{lines:?}");
}

#[test]
fn explain_adds_what_was_skipped() {
    let text = text(&mk_document(), true, Paint::PLAIN);
    assert!(
        text.ends_with("\nSKIPPED  RULE   WHY\ngpu-2    count  one too many\nand 2 more\n"),
        "{text}"
    );
}

#[test]
fn the_cost_stands_against_the_limits() {
    let lines = cost(&mk_document(), false, &Limits::default());
    assert_eq!(
        lines,
        [
            "1 device, 1 left out, 3 skipped (--explain shows them), woken by first",
            "took 38 ms of 30 s, computed 3.1 ms of 2 s, memory 1.1 MiB of 64 MiB",
            "next call after 10 s if nothing wakes it",
            "4 log lines dropped: over the rate",
            "denied: udev.read gpu",
        ]
    );
}

#[test]
fn no_device_is_no_failure_and_no_output() {
    let mut document = mk_document();
    document.devices.clear();
    document.left_out.clear();
    assert_eq!(text(&document, false, Paint::PLAIN), "");
    assert!(document.failure("details").is_ok());
}

#[test]
fn refused_details_fail_with_the_path_of_the_field() {
    let mut document = mk_document();
    document.result = "invalid-details".into();
    document.invalid_details = vec![leafhost_core::configuration::FieldProblem::new(
        "udevRules[0]",
        "no closing quote",
    )];
    let error = document.failure("the details in a.yaml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "mock-gpu refuses the details in a.yaml: udevRules[0]: no closing quote"
    );
}

#[test]
fn a_fault_fails_with_its_reason() {
    let mut document = mk_document();
    document.result = "cpu_budget".into();
    document.error = Some("computed for more than 2 s".into());
    let error = document.failure("x").unwrap_err().to_string();
    assert!(error.contains("(cpu_budget): computed"), "{error}");
}

#[test]
fn yaml_is_the_same_document_as_json() {
    let document = mk_document();
    let yaml = crate::terminal::document(crate::terminal::Output::Yaml, false, &document).unwrap();
    assert!(!yaml.contains('!'), "{yaml}");
    let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, serde_json::to_value(&document).unwrap());
}
