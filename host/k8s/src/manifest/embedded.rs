//! Checks the Kubernetes types embedded in a Configuration: the broker's pod and job, and the services. Pure.

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{PodSpec, ServiceSpec};
use leafhost_core::yaml::reworded;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of problems reported for one field.
pub const MOST: usize = 16;
/// Version of Kubernetes that has these types, as the feature of `k8s-openapi` selects it.
const KNOWN: &str = "1.37";

/// Returns the problems of the parts of a spec that Kubernetes would ignore or could not read, each with its field.
pub fn problems(spec: &Value) -> Vec<String> {
    let fields = checked(spec).into_iter();
    fields
        .flat_map(|field| field.unwrap_or_else(|fatal| vec![fatal]))
        .collect()
}

/// Returns the problems because of which a whole field cannot be read as its Kubernetes type.
pub fn unreadable(spec: &Value) -> Vec<String> {
    checked(spec).into_iter().filter_map(Result::err).collect()
}

fn checked(spec: &Value) -> [Result<Vec<String>, String>; 4] {
    [
        check::<PodSpec>(spec, "brokerSpec.brokerPodSpec"),
        check::<JobSpec>(spec, "brokerSpec.brokerJobSpec"),
        check::<ServiceSpec>(spec, "instanceServiceSpec"),
        check::<ServiceSpec>(spec, "configurationServiceSpec"),
    ]
}

/// Checks a field of the spec, given by a dotted path, against a Kubernetes type. Returns the problems of unknown fields in it; the error
/// is the problem because of which the whole field cannot be read.
fn check<T: DeserializeOwned>(spec: &Value, field: &str) -> Result<Vec<String>, String> {
    let value = field
        .split('.')
        .try_fold(spec, |value, name| value.get(name));
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
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
        let why = reworded(&error.inner().to_string());
        return Err(format!("spec.{field}{path}: {why}"));
    }
    let unknown = unknown.into_iter().take(MOST).map(|path| {
        format!(
            "spec.{field}.{path}: Kubernetes has no such field, up to version {KNOWN}; remove it or correct its name"
        )
    });
    Ok(unknown.collect())
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
