//! Resource claims as allocated by the scheduler, reduced to the fields a node needs. Pure.
//!
//! Source: `resource.k8s.io/v1` `ResourceClaim`, `AllocationResult`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

pub mod ports;
pub mod record;

use crate::configuration::FieldProblem;
use crate::names::is_env_name;
use crate::slices::DRIVER;
use crate::variables::{NEVER_SET, is_never_set};
use crate::yaml::{Strict, reworded};

/// `apiVersion` and `kind` of the parameters that a claim or class may have for our devices.
const PARAMETERS: (&str, &str) = ("leafhost.dev/v1alpha1", "DeviceParameters");

/// Resource claim with an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedClaim {
    /// Uid of the claim.
    pub uid: String,
    /// Allocated devices of our driver.
    pub results: Vec<Allocated>,
    /// Parameters for our driver, in ascending order of precedence.
    pub parameters: Vec<Parameters>,
}

/// Device of our driver that is allocated to a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allocated {
    /// Name of the request, without the chosen alternative after the slash.
    pub request: String,
    /// Full name of the request, including the chosen alternative.
    pub alternative: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the device.
    pub device: String,
    /// Id of the share, if the device is shared by several claims.
    pub share: Option<String>,
    /// Number of slots that the claim has, at least one.
    pub slots: u32,
    /// True for admin access: the claim only monitors the device, and others may hold it.
    pub is_admin: bool,
}

/// Parameters of a claim or class for our devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Requests that the parameters apply to; empty means all.
    pub requests: Vec<String>,
    /// Environment variables for containers.
    pub properties: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceParameters {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    properties: BTreeMap<String, String>,
}

impl Parameters {
    /// Parses the parameters if they are for our driver; returns `None` for another driver. Fails with the reason and the remedy.
    pub fn read(driver: &str, requests: &[String], value: &Value) -> Result<Option<Self>, String> {
        if driver != DRIVER {
            return Ok(None);
        }
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (field("apiVersion"), field("kind"));
        if value.is_object() && (api_version, kind) != PARAMETERS {
            return Err(format!(
                "parameters of {api_version} {kind} are not known; write apiVersion: leafhost.dev/v1alpha1 and kind: DeviceParameters"
            ));
        }
        let DeviceParameters { properties, .. } = parsed(value)?;
        if let Some(name) = properties.keys().find(|name| !is_env_name(name)) {
            return Err(format!(
                "properties.{name} is not a valid variable name: use letters, digits and _, not beginning with a digit"
            ));
        }
        if let Some(name) = properties.keys().find(|name| is_never_set(name)) {
            return Err(format!(
                "properties.{name} may not be set: {NEVER_SET}; remove it"
            ));
        }
        Ok(Some(Self {
            requests: requests.to_vec(),
            properties,
        }))
    }

    /// Returns true if the parameters apply to the request of `allocated`, named with or without its alternative.
    fn are_for(&self, allocated: &Allocated) -> bool {
        let named = |name: &String| *name == allocated.request || *name == allocated.alternative;
        self.requests.is_empty() || self.requests.iter().any(named)
    }
}

/// Deserializes parameters; the error names the field.
fn parsed(value: &Value) -> Result<DeviceParameters, String> {
    serde_path_to_error::deserialize(Strict(value)).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "" } else { path.as_str() };
        let problem = FieldProblem::new(path, reworded(&error.inner().to_string()));
        format!("cannot read the parameters: {problem}")
    })
}

impl AllocatedClaim {
    /// Returns the variables that the claim and its class set for a device. Later parameters win.
    pub fn properties(&self, allocated: &Allocated) -> BTreeMap<String, String> {
        let mut properties = BTreeMap::new();
        for parameters in self.parameters.iter().filter(|one| one.are_for(allocated)) {
            properties.extend(parameters.properties.clone());
        }
        properties
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_allocated(alternative: &str) -> Allocated {
        let (request, _) = alternative.split_once('/').unwrap_or((alternative, ""));
        Allocated {
            request: request.to_owned(),
            alternative: alternative.to_owned(),
            pool: "node-a".to_owned(),
            device: "gpu-1".to_owned(),
            share: None,
            slots: 1,
            is_admin: false,
        }
    }

    fn read(requests: &[&str], value: &serde_json::Value) -> Parameters {
        let requests: Vec<String> = requests.iter().map(|one| (*one).to_owned()).collect();
        Parameters::read(DRIVER, &requests, value).unwrap().unwrap()
    }

    #[test]
    fn later_parameters_win_where_they_are_for_the_request() {
        let with = |requests: &[&str], properties: serde_json::Value| {
            let value = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": properties});
            read(requests, &value)
        };
        let claim = AllocatedClaim {
            uid: "u".to_owned(),
            results: Vec::new(),
            parameters: vec![
                with(&[], json!({"A": "class", "B": "class"})),
                with(&["gpu"], json!({"B": "claim"})),
                with(&["other"], json!({"A": "other"})),
                with(&["gpu/small"], json!({"C": "small"})),
            ],
        };
        let shown = |alternative: &str| {
            let properties = claim.properties(&mk_allocated(alternative));
            let shown: Vec<_> = properties.iter().map(|(k, v)| format!("{k}={v}")).collect();
            shown.join(" ")
        };
        assert_eq!(shown("gpu"), "A=class B=claim");
        assert_eq!(shown("gpu/small"), "A=class B=claim C=small");
        assert_eq!(shown("other"), "A=other B=class");
    }

    #[test]
    fn parameters_of_other_kinds_and_with_other_fields_are_refused_by_name() {
        let good = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters"});
        assert_eq!(read(&[], &good), Parameters::default());
        assert_eq!(
            Parameters::read("gpu.example.com", &[], &json!(7)),
            Ok(None)
        );
        for (value, said) in [
            (
                json!({"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig"}),
                "gpu.example.com/v1 GpuConfig are not known",
            ),
            (
                json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "sharing": {}}),
                "unknown field `sharing`",
            ),
            (
                json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"A": 1}}),
                "cannot read the parameters: properties.A: is 1, must be text",
            ),
            (
                json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"A B": "1"}}),
                "properties.A B",
            ),
            (
                json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"LD_PRELOAD": "/x"}}),
                "properties.LD_PRELOAD may not be set",
            ),
            (json!(7), "cannot read the parameters: is 7, must be a map"),
        ] {
            let error = Parameters::read(DRIVER, &[], &value).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
