//! Non-text values where Kubernetes takes only text: the API server refuses numbers and the like that this reader would accept. Pure.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::yaml::Document;

/// Fields that are names, `[]` for each item of a list.
const NAMES: [&str; 11] = [
    "metadata.name",
    "metadata.namespace",
    "spec.discoveryHandler.name",
    "spec.discoveryHandler.discoveryProperties[].name",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.secretKeyRef.name",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.secretKeyRef.namespace",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.secretKeyRef.key",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.configMapKeyRef.name",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.configMapKeyRef.namespace",
    "spec.discoveryHandler.discoveryProperties[].valueFrom.configMapKeyRef.key",
    "apiVersion",
];
/// Fields that are other texts, `{}` for each entry of a map.
const VALUES: [&str; 3] = [
    "spec.discoveryHandler.discoveryProperties[].value",
    "spec.brokerProperties{}",
    "metadata.annotations{}",
];

/// Converts numbers and booleans to text as written. Returns the problems of names, and separately those of other values, which standalone
/// mode accepts as text.
pub fn as_text(document: &mut Document<'_>) -> (Vec<FieldProblem>, Vec<FieldProblem>) {
    let mut made = |fields: &[&str]| {
        let mut problems = Vec::new();
        for field in fields {
            document.make_text(field, |path, value, text| {
                let kind = if value.is_number() {
                    "a number"
                } else {
                    "a boolean"
                };
                let message =
                    format!("is {kind}, and Kubernetes takes only text here; write \"{text}\"");
                problems.push(FieldProblem::new(path, message));
            });
        }
        problems
    };
    (made(&NAMES), made(&VALUES))
}

#[cfg(test)]
mod tests {
    use super::super::read;

    const TEXT: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: cams, namespace: ns, annotations: {a: b}}
spec:
  discoveryHandler:
    name: onvif
    discoveryProperties:
    - {name: a, value: x}
    - name: b
      valueFrom: {secretKeyRef: {name: s, key: k}}
  brokerProperties:
    PORT: p
";

    #[test]
    fn a_number_as_a_name_is_a_problem() {
        for (from, to, expected) in [
            (
                "name: cams",
                "name: 123",
                "f.yaml:3: metadata.name: is a number, and Kubernetes takes only text here; write \"123\"",
            ),
            (
                "namespace: ns",
                "namespace: 7",
                "f.yaml:3: metadata.namespace: is a number",
            ),
            (
                "name: onvif",
                "name: 5",
                "f.yaml:6: spec.discoveryHandler.name: is a number",
            ),
            (
                "name: onvif",
                "name: true",
                "f.yaml:6: spec.discoveryHandler.name: is a boolean, and Kubernetes takes only text here; write \"true\"",
            ),
            (
                "key: k",
                "key: 1.5",
                "f.yaml:10: spec.discoveryHandler.discoveryProperties[1].valueFrom.secretKeyRef.key: is a number",
            ),
            (
                "namespace: ns",
                "namespace: n",
                "f.yaml:3: metadata.namespace: is a boolean, and Kubernetes takes only text here; write \"n\"",
            ),
            // A name that would be invalid as a text, too, has one problem.
            (
                "{name: a, value",
                "{name: 1, value",
                "f.yaml:8: spec.discoveryHandler.discoveryProperties[0].name: is a number",
            ),
        ] {
            let reading = read("f.yaml", &TEXT.replacen(from, to, 1));
            let [problem] = &reading.problems[..] else {
                panic!("{to}: {:?}", reading.problems);
            };
            assert!(problem.to_string().starts_with(expected), "{problem}");
            assert!(reading.documents.is_empty(), "{to}");
            let quoted = to.replace(": ", ": '") + "'";
            let quoted = quoted.replace(", value'", "', value");
            let reading = read("f.yaml", &TEXT.replacen(from, &quoted, 1));
            assert!(
                !reading
                    .problems
                    .iter()
                    .any(|problem| problem.message.contains("Kubernetes")),
                "{quoted}: {:?}",
                reading.problems
            );
        }
    }

    #[test]
    fn another_number_where_kubernetes_takes_only_text_is_a_warning() {
        for (from, to, expected) in [
            (
                "PORT: p",
                "PORT: 8080",
                "f.yaml:12: spec.brokerProperties.PORT: is a number, and Kubernetes takes only text here; write \"8080\"",
            ),
            (
                "PORT: p",
                "PORT: 0x1F90",
                "f.yaml:12: spec.brokerProperties.PORT: is a number, and Kubernetes takes only text here; write \"0x1F90\"",
            ),
            (
                "value: x",
                "value: false",
                "f.yaml:8: spec.discoveryHandler.discoveryProperties[0].value: is a boolean",
            ),
            (
                "{a: b}",
                "{a: 1}",
                "f.yaml:3: metadata.annotations.a: is a number",
            ),
        ] {
            let reading = read("f.yaml", &TEXT.replacen(from, to, 1));
            assert_eq!(
                (reading.problems, reading.documents.len()),
                (vec![], 1),
                "{to}"
            );
            let warnings: Vec<String> = reading.warnings.iter().map(ToString::to_string).collect();
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(expected),
                "{warnings:?}"
            );
        }
    }
}
