//! Non-text values where Kubernetes takes only text: the API server refuses numbers and the like that this reader would accept. Pure.

use leafhost_core::configuration::FieldProblem;
use serde_yaml_ng::Value;

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

/// Returns the problems of names that are not texts.
pub fn names(document: &Value) -> Vec<FieldProblem> {
    found(document, &NAMES)
}

/// Returns the problems of other values that are not texts. A standalone machine takes them as written.
pub fn values(document: &Value) -> Vec<FieldProblem> {
    found(document, &VALUES)
}

fn found(document: &Value, fields: &[&str]) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    for field in fields {
        look(document, field, String::new(), &mut problems);
    }
    problems
}

/// Follows `rest` from a value at `path`.
fn look(value: &Value, rest: &str, path: String, problems: &mut Vec<FieldProblem>) {
    if let Some(rest) = rest.strip_prefix("[]") {
        let items = value.as_sequence().into_iter().flatten();
        for (index, item) in items.enumerate() {
            look(item, rest, format!("{path}[{index}]"), problems);
        }
    } else if let Some(rest) = rest.strip_prefix("{}") {
        for (key, item) in value.as_mapping().into_iter().flatten() {
            let key = key.as_str().unwrap_or_default();
            look(item, rest, format!("{path}.{key}"), problems);
        }
    } else if rest.is_empty() {
        problems.extend(problem(value, path));
    } else {
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        let end = rest.find(['.', '[', '{']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        if let Some(inner) = value.get(name) {
            look(inner, rest, path, problems);
        }
    }
}

fn problem(value: &Value, path: String) -> Option<FieldProblem> {
    let (kind, text) = match value {
        Value::Number(number) => ("a number", number.to_string()),
        Value::Bool(is) => ("a boolean", is.to_string()),
        _ => return None,
    };
    let message = format!("is {kind}, and Kubernetes takes only text here; write \"{text}\"");
    Some(FieldProblem::new(path, message))
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
