//! Checks the types of Kubernetes that a Configuration has in it: the broker's pod and job, and the services. Pure.

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{PodSpec, ServiceSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bounds the problems that are told of one field.
pub const MOST: usize = 16;
/// Names the version of Kubernetes whose types these are, as the features of `k8s-openapi` say.
const KNOWN: &str = "1.37";

/// What Kubernetes would not read of a spec, each with its field.
pub fn problems(spec: &Value) -> Vec<String> {
    checked(spec)
        .into_iter()
        .map(|problem| problem.text)
        .collect()
}

/// What makes a spec one that cannot be read into the types of Kubernetes at all.
pub fn unreadable(spec: &Value) -> Vec<String> {
    let problems = checked(spec).into_iter();
    let fatal = problems.filter(|problem| problem.is_fatal);
    fatal.map(|problem| problem.text).collect()
}

struct Problem {
    /// Whether nothing of the field can be read.
    is_fatal: bool,
    text: String,
}

fn checked(spec: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    check::<PodSpec>(spec, "brokerSpec.brokerPodSpec", &mut problems);
    check::<JobSpec>(spec, "brokerSpec.brokerJobSpec", &mut problems);
    check::<ServiceSpec>(spec, "instanceServiceSpec", &mut problems);
    check::<ServiceSpec>(spec, "configurationServiceSpec", &mut problems);
    problems
}

/// Checks one field of the spec, named with dots, that has a type of Kubernetes.
fn check<T: DeserializeOwned>(spec: &Value, field: &str, problems: &mut Vec<Problem>) {
    let value = field
        .split('.')
        .try_fold(spec, |value, name| value.get(name));
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return;
    };
    let mut unknown = Vec::new();
    let mut ignored = |path: serde_ignored::Path<'_>| unknown.push(shown(&path.to_string()));
    let fields = serde_ignored::Deserializer::new(value, &mut ignored);
    let read: Result<T, _> = serde_path_to_error::deserialize(fields);
    if let Err(error) = read {
        let path = match error.path().to_string() {
            path if path == "." => String::new(),
            path => format!(".{}", shown(&path)),
        };
        problems.push(Problem {
            is_fatal: true,
            text: format!("spec.{field}{path}: {}", error.inner()),
        });
        return;
    }
    let unknown = unknown.into_iter().take(MOST);
    problems.extend(unknown.map(|path| Problem {
        is_fatal: false,
        text: format!(
            "spec.{field}.{path}: Kubernetes has no such field, up to version {KNOWN}; remove it or correct its name"
        ),
    }));
}

/// A path as kubectl shows it: `containers[0].image`, without the marks of optional fields.
fn shown(path: &str) -> String {
    let mut text = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        if part.parse::<usize>().is_ok() {
            text.extend(["[", part, "]"]);
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(part);
        }
    }
    text
}
