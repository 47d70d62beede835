//! Tests of merge keys (`<<: *defaults`).

use super::*;

const MERGED: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cams
  annotations: {leafhost.dev/grace: '30s'}
spec:
  brokerProperties: &own
    A: '1'
    B: b
  discoveryHandler:
    <<: &handler
      name: onvif
      discoveryDetails: |
        scopes: {items: ['a b']}
    discoveryProperties:
    - &value {name: a, value: x}
    - {<<: *value, name: b}
  capacity: 2
";

#[test]
fn merge_keys_are_resolved_as_kubectl_does() {
    let reading = read("f.yaml", MERGED);
    assert_eq!(reading.problems, []);
    assert_eq!(reading.warnings, []);
    let configuration = &reading.documents[0].configuration;
    assert_eq!(configuration.handler, "onvif");
    assert_eq!(configuration.details, "scopes: {items: ['a b']}\n");
    let properties: Vec<_> = configuration
        .properties
        .iter()
        .map(|property| (property.name.as_str(), property.value.as_deref()))
        .collect();
    assert_eq!(properties, [("a", Some("x")), ("b", Some("x"))]);
    assert_eq!(configuration.broker_properties["A"], "1");
    assert_eq!(reading.documents[0].text, MERGED);
}

#[test]
fn a_mistake_in_a_merged_document_has_its_line() {
    for (from, to, expected) in [
        (
            "capacity: 2",
            "capacity: 0",
            "f.yaml:18: spec.capacity: is 0, must be 1 to 1000",
        ),
        (
            "capacity: 2",
            "capacity: many",
            "f.yaml:18: spec.capacity: is \"many\", must be a whole number",
        ),
    ] {
        let reading = read("f.yaml", &MERGED.replace(from, to));
        let shown: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [expected]);
    }
    let reading = read("f.yaml", &MERGED.replace("capacity", "capcity"));
    let warning = reading.warnings[0].to_string();
    assert!(
        warning.starts_with("f.yaml:18: spec.capcity: "),
        "{warning}"
    );
    // A merge key that cannot be resolved is reported as it is read.
    let reading = read("f.yaml", &MERGED.replace("<<: &handler", "<<: 1 #"));
    assert!(!reading.problems.is_empty());
}
