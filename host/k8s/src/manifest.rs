//! Reads Configurations from objects of the API server. Knows nothing of its users.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leafhost_core::configuration::{FieldProblem, Manifest, Metadata, Spec};
use leafhost_core::names::{API_VERSION, GROUP};
use leafhost_core::yaml::reworded;
use serde_json::Value;

pub mod embedded;

/// Returns the API resource of Configurations. Its objects are read with any spec, so that one invalid object does not fail a list.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v0", "Configuration"))
}

/// Reads the Configuration of an object; the error names the invalid field.
pub fn read(object: &DynamicObject) -> Result<Manifest, FieldProblem> {
    let metadata = object.metadata.clone();
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    let spec: Spec = serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        let path = match path.as_str() {
            "." => "spec".to_owned(),
            path => format!("spec.{path}"),
        };
        FieldProblem::new(path, reworded(&error.into_inner().to_string()))
    })?;
    Ok(Manifest {
        api_version: API_VERSION.to_owned(),
        kind: "Configuration".to_owned(),
        metadata: Metadata {
            name: metadata.name.unwrap_or_default(),
            namespace: metadata.namespace,
            uid: metadata.uid,
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp.map(|time| time.0.to_string()),
            deletion_timestamp: metadata.deletion_timestamp.map(|time| time.0.to_string()),
            annotations: metadata.annotations.unwrap_or_default(),
        },
        spec,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_of_a_wrong_type_is_told_in_words_of_yaml() {
        for (spec, path, message) in [
            (json!(null), "spec", "is empty, must be a map"),
            (
                json!({"discoveryHandler": "udev"}),
                "spec.discoveryHandler",
                "is \"udev\", must be a map",
            ),
            (
                json!({"discoveryHandler": {"name": "udev"}, "capacity": null}),
                "spec.capacity",
                "is empty, must be a whole number",
            ),
        ] {
            let object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams"}, "spec": spec,
            }))
            .unwrap();
            let problem = read(&object).unwrap_err();
            assert_eq!((&*problem.path, &*problem.message), (path, message));
        }
    }
}
