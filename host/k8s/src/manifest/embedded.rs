//! Checks the Kubernetes types embedded in a Configuration: the broker's pod and job, and the services. Pure.

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{PodSpec, ServiceSpec};
use leafhost_core::yaml::reworded;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of problems reported for one field.
pub const MOST: usize = 16;
/// Version of Kubernetes whose types these are, by the features of `k8s-openapi`.
const KNOWN: &str = "1.37";

/// Returns the parts of a spec that Kubernetes would not read, each with its field.
pub fn problems(spec: &Value) -> Vec<String> {
    checked(spec)
        .into_iter()
        .map(|problem| problem.text)
        .collect()
}

/// Returns the problems for which a field cannot be read as its Kubernetes type at all.
pub fn unreadable(spec: &Value) -> Vec<String> {
    let problems = checked(spec).into_iter();
    let fatal = problems.filter(|problem| problem.is_fatal);
    fatal.map(|problem| problem.text).collect()
}

struct Problem {
    /// True if nothing of the field can be read.
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

/// Checks a field of the spec, given by a dotted path, against a Kubernetes type.
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
            text: format!(
                "spec.{field}{path}: {}",
                reworded(&error.inner().to_string())
            ),
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

/// Formats a path as kubectl does, such as `containers[0].image`, without the marks of optional fields.
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
