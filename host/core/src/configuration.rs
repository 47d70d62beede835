//! Configurations: the devices to discover, and the number of slots of each (`akri.sh/v0`, field-compatible with Akri).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::ConfigurationKey;
use crate::text;
use crate::yaml_cost;

mod annotation;
mod annotations;
mod backend;
mod broker_properties;
mod resources;
mod workloads;

pub use annotations::{invalid_annotations, unknown_annotations};
pub use backend::{
    ALLOCATION_ANNOTATION, Backend, EVICT_ANNOTATION, RESTART_PODS_ANNOTATION,
    read as read_allocation,
};
pub use broker_properties::{MAX_BROKER_PROPERTIES, broker_problems};
pub use resources::{RESOURCES_ANNOTATION, Resources};

/// Annotation that sets how long a missing device keeps its Instance, such as `30s` or `5m`.
pub const GRACE_ANNOTATION: &str = "leafhost.dev/grace";

/// Configuration as written; [`crate::configuration::Configuration::try_from`] validates it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// API version; must be `akri.sh/v0`.
    pub api_version: String,
    /// Kind; must be `Configuration`.
    pub kind: String,
    /// Metadata of the object.
    pub metadata: Metadata,
    /// Desired state.
    pub spec: Spec,
}

/// Fields of `ObjectMeta` that Leafhost uses; all others are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object; `default` if absent.
    pub namespace: Option<String>,
    /// Uid, set by the API server.
    pub uid: Option<String>,
    /// Generation, set by the API server: grows with every change of the spec.
    pub generation: Option<i64>,
    /// Time of creation, set by the API server, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Time of the deletion request, set by the API server, RFC 3339.
    pub deletion_timestamp: Option<String>,
    /// Annotations of the object.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Desired state of a Configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Handler and its input.
    pub discovery_handler: DiscoveryHandlerInfo,
    /// Number of slots per device.
    #[serde(default = "one")]
    pub capacity: i64,
    /// Pods or jobs to start per Instance; not parsed.
    pub broker_spec: Option<serde_json::Value>,
    /// Service per Instance; not parsed.
    pub instance_service_spec: Option<serde_json::Value>,
    /// Service per Configuration; not parsed.
    pub configuration_service_spec: Option<serde_json::Value>,
    /// Environment variables of every workload; they win over those of a device.
    #[serde(default)]
    pub broker_properties: BTreeMap<String, String>,
}

/// Handler and its input.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerInfo {
    /// Name of the handler.
    pub name: String,
    /// Text for the handler, YAML by convention.
    #[serde(default)]
    pub discovery_details: String,
    /// Properties for the handler.
    pub discovery_properties: Option<Vec<DiscoveryProperty>>,
}

/// Property for the handler: a literal value or a reference. Without either the value is empty, as in Akri.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryProperty {
    /// Name of the form `[_A-Za-z][_A-Za-z0-9]*`.
    pub name: String,
    /// Literal value.
    pub value: Option<String>,
    /// Reference to the value.
    pub value_from: Option<ValueFrom>,
}

/// Reference to a value: exactly one of `secretKeyRef` and `configMapKeyRef`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ValueFromFields")]
pub enum ValueFrom {
    /// Key of a Secret.
    SecretKeyRef(KeyRef),
    /// Key of a ConfigMap.
    ConfigMapKeyRef(KeyRef),
}

/// Fields of [`ValueFrom`], of which exactly one must be set.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValueFromFields {
    secret_key_ref: Option<KeyRef>,
    config_map_key_ref: Option<KeyRef>,
}

impl TryFrom<ValueFromFields> for ValueFrom {
    type Error = &'static str;

    fn try_from(fields: ValueFromFields) -> Result<Self, Self::Error> {
        match (fields.secret_key_ref, fields.config_map_key_ref) {
            (Some(reference), None) => Ok(Self::SecretKeyRef(reference)),
            (None, Some(reference)) => Ok(Self::ConfigMapKeyRef(reference)),
            _ => Err("must have exactly one of secretKeyRef and configMapKeyRef"),
        }
    }
}

/// Key of a Secret or ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the Secret or ConfigMap.
    pub name: String,
    /// Namespace of the Secret or ConfigMap; that of the Configuration if absent.
    pub namespace: Option<String>,
    /// Key in the Secret or ConfigMap.
    pub key: String,
    /// True if the key may be missing; the property is then left out.
    pub optional: Option<bool>,
}

fn one() -> i64 {
    1
}

/// Validated Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// Namespace and name.
    pub key: ConfigurationKey,
    /// Uid of the object: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Name of the handler.
    pub handler: String,
    /// Text for the handler.
    pub details: String,
    /// Properties for the handler, as written.
    pub properties: Vec<DiscoveryProperty>,
    /// Number of slots per device, 1 to [`MAX_CAPACITY`].
    pub capacity: u32,
    /// Environment variables of every workload.
    pub broker_properties: BTreeMap<String, String>,
    /// Time for which a missing device keeps its Instance, if the annotation sets one.
    pub grace: Option<std::time::Duration>,
    /// Resources that are offered to the kubelet for the devices.
    pub resources: Resources,
    /// Backend that allocates the devices to pods.
    pub backend: Backend,
    /// True if pods are evicted when their device does not work.
    pub evicts: bool,
    /// Generation of the spec; `None` if the source has none, such as files.
    pub generation: Option<i64>,
    /// Time of creation, RFC 3339; `None` if the source has none.
    pub created: Option<String>,
    /// True if the object is being deleted: no Instance is created for it.
    pub deleting: bool,
}

impl Configuration {
    /// Returns the time of creation and the uid; `None` if the source has no time of creation. Of several Configurations
    /// with one name, the one whose pair sorts first gets the name on every node.
    pub fn seniority(&self) -> Option<(&str, &str)> {
        Some((self.created.as_deref()?, &self.uid))
    }
}

/// Maximum number of slots of one Instance: each is a key in the object and a device in the kubelet's list.
pub const MAX_CAPACITY: u32 = 1000;
/// Maximum number of Configurations of an agent.
pub const MAX_CONFIGURATIONS: usize = 2_000;
/// Maximum length of `discoveryDetails`, in bytes.
pub const MAX_DETAILS: usize = 256 << 10;
/// Maximum length of a displayed path, in bytes.
const MAX_PATH: usize = 256;
/// Maximum length of a displayed message, in bytes.
const MAX_MESSAGE: usize = 1 << 10;

/// Problem of one field, with its path, such as `spec.capacity`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldProblem {
    /// Path of the field.
    pub path: String,
    /// Description of the problem and of a valid value.
    pub message: String,
}

impl FieldProblem {
    /// Creates a problem at a path. Cleans and shortens both texts for display, since they may repeat user input.
    pub fn new(path: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self {
            path: text::clean(path.as_ref(), MAX_PATH),
            message: text::abridge(message.as_ref(), MAX_MESSAGE),
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, message } = self;
        match path.as_str() {
            "" => f.write_str(message),
            path => write!(f, "{path}: {message}"),
        }
    }
}

impl TryFrom<Manifest> for Configuration {
    type Error = Vec<FieldProblem>;

    fn try_from(manifest: Manifest) -> Result<Self, Self::Error> {
        let mut problems = Vec::new();
        if manifest.api_version != crate::names::API_VERSION {
            problems.push(FieldProblem::new(
                "apiVersion",
                format!("is {:?}, must be \"akri.sh/v0\"", manifest.api_version),
            ));
        }
        if manifest.kind != "Configuration" {
            problems.push(FieldProblem::new(
                "kind",
                format!("is {:?}, must be \"Configuration\"", manifest.kind),
            ));
        }
        let metadata = manifest.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let key = ConfigurationKey::new(namespace, &metadata.name)
            .map_err(|error| {
                let path = if error.what == "namespace" {
                    "metadata.namespace"
                } else {
                    "metadata.name"
                };
                problems.push(FieldProblem::new(path, error.to_string()));
            })
            .ok();
        let spec = manifest.spec;
        let handler = spec.discovery_handler;
        if !crate::names::is_handler_name(&handler.name) {
            problems.push(FieldProblem::new(
                "spec.discoveryHandler.name",
                format!(
                    "{:?} is not 1 to 63 letters, digits, '-', '_' or '.'",
                    handler.name
                ),
            ));
        }
        if let Some(problem) = details_problem(&handler.discovery_details) {
            problems.push(FieldProblem::new(
                "spec.discoveryHandler.discoveryDetails",
                problem,
            ));
        }
        let properties = handler.discovery_properties.unwrap_or_default();
        problems.extend(property_problems(&properties));
        let capacity = u32::try_from(spec.capacity)
            .ok()
            .filter(|capacity| (1..=MAX_CAPACITY).contains(capacity));
        if capacity.is_none() {
            problems.push(FieldProblem::new(
                "spec.capacity",
                format!("is {}, must be 1 to {MAX_CAPACITY}", spec.capacity),
            ));
        }
        problems.extend(broker_problems(&spec.broker_properties));
        let (grace, resources, backend, evicts) =
            annotations::read(&metadata.annotations, &mut problems);
        match (key, capacity) {
            (Some(key), Some(capacity)) if problems.is_empty() => Ok(Self {
                uid: metadata.uid.unwrap_or_default(),
                handler: handler.name,
                details: handler.discovery_details,
                properties,
                capacity,
                broker_properties: spec.broker_properties,
                grace,
                resources,
                backend,
                evicts,
                generation: metadata.generation,
                created: metadata.creation_timestamp,
                deleting: metadata.deletion_timestamp.is_some(),
                key,
            }),
            _ => Err(problems),
        }
    }
}

/// Returns the reason why `details` are not passed to any handler, if any.
pub fn details_problem(details: &str) -> Option<&'static str> {
    if details.len() > MAX_DETAILS {
        return Some("is longer than 256 KiB");
    }
    yaml_cost::is_nested_too_deep(details).then_some(
        "has brackets nested more than 64 deep, or too many brackets to check; write lists as lines that begin with '-', or all as JSON",
    )
}

fn property_problems(properties: &[DiscoveryProperty]) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (index, property) in properties.iter().enumerate() {
        let path = format!("spec.discoveryHandler.discoveryProperties[{index}]");
        if !crate::names::is_env_name(&property.name) {
            problems.push(FieldProblem::new(
                format!("{path}.name"),
                format!(
                    "is {:?}, must be letters, digits and _, not beginning with a digit",
                    property.name
                ),
            ));
        }
        if property.value.is_some() && property.value_from.is_some() {
            problems.push(FieldProblem::new(
                &path,
                "has both value and valueFrom, must have one of them",
            ));
        }
        if !names.insert(property.name.as_str()) {
            problems.push(FieldProblem::new(
                format!("{path}.name"),
                format!("{:?} is specified twice", property.name),
            ));
        }
    }
    problems
}

/// Parses a whole number with the unit `s`, `m` or `h`, at most a day; `0` needs no unit.
fn parse_duration(text: &str) -> Option<std::time::Duration> {
    let (number, factor) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('h') => (number, 3600),
        Some(number) if text.ends_with('m') => (number, 60),
        Some(number) => (number, 1),
        None if text == "0" => ("0", 1),
        None => return None,
    };
    let seconds = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (seconds <= 86_400).then(|| std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest(spec: &serde_json::Value) -> Manifest {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "a"}, "spec": spec,
        }))
        .unwrap()
    }

    fn paths(manifest: Manifest) -> Vec<String> {
        match Configuration::try_from(manifest) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.into_iter().map(|problem| problem.path).collect(),
        }
    }

    #[test]
    fn what_is_left_out_has_akris_defaults() {
        let configuration =
            Configuration::try_from(manifest(&json!({"discoveryHandler": {"name": "udev"}})))
                .unwrap();
        assert_eq!(
            (configuration.capacity, configuration.key.namespace()),
            (1, "default")
        );
    }

    #[test]
    fn every_wrong_field_is_named_by_its_path() {
        let handler = json!({"name": "udev"});
        for (spec, expected) in [
            (
                json!({"discoveryHandler": handler, "capacity": 0}),
                "spec.capacity",
            ),
            (
                json!({"discoveryHandler": handler, "capacity": -1}),
                "spec.capacity",
            ),
            (
                json!({"discoveryHandler": handler, "capacity": 1001}),
                "spec.capacity",
            ),
            (
                json!({"discoveryHandler": {"name": "a b"}}),
                "spec.discoveryHandler.name",
            ),
            (
                json!({"discoveryHandler": handler, "brokerProperties": {"A=": ""}}),
                "spec.brokerProperties.A=",
            ),
            (
                json!({"discoveryHandler": {"name": "udev", "discoveryProperties": [{"name": "a"}, {"name": "a"}]}}),
                "spec.discoveryHandler.discoveryProperties[1].name",
            ),
        ] {
            assert_eq!(paths(manifest(&spec)), [expected]);
        }
    }

    #[test]
    fn what_a_problem_repeats_of_a_document_is_bounded_and_on_one_line() {
        let long = "\u{202e}x\n".repeat(300_000);
        let mut wrong = manifest(&json!({
            "discoveryHandler": {"name": long, "discoveryProperties": [{"name": long}]},
            "brokerProperties": {"A": ""},
        }));
        wrong.api_version.clone_from(&long);
        wrong.kind.clone_from(&long);
        wrong.metadata.name.clone_from(&long);
        let annotation = (GRACE_ANNOTATION.to_owned(), long.clone());
        wrong.metadata.annotations.extend([annotation]);
        let problems = Configuration::try_from(wrong).unwrap_err();
        assert_eq!(problems.len(), 6);
        let mut named = manifest(&json!({"discoveryHandler": {"name": "udev"}}));
        let property = ("=".repeat(60_000), String::new());
        named.spec.broker_properties.extend([property]);
        let named = Configuration::try_from(named).unwrap_err();
        for FieldProblem { path, message } in problems.iter().chain(&named) {
            assert!(path.len() <= MAX_PATH + 3, "{}", path.len());
            assert!(message.len() <= MAX_MESSAGE + 3, "{}", message.len());
            assert!(!message.contains(text::is_unprintable), "{message}");
        }
        assert!(problems[0].message.ends_with("must be \"akri.sh/v0\""));
    }

    #[test]
    fn wrong_kind_version_name_and_annotations_are_all_told_at_once() {
        let mut wrong = manifest(&json!({"discoveryHandler": {"name": "udev"}}));
        wrong.kind = "Instance".into();
        wrong.api_version = "v1".into();
        wrong.metadata.name = "A".into();
        let annotations = [
            (GRACE_ANNOTATION, "soon"),
            (RESOURCES_ANNOTATION, "all"),
            (ALLOCATION_ANNOTATION, "both"),
            (EVICT_ANNOTATION, "true"),
            (RESTART_PODS_ANNOTATION, "yes"),
        ];
        let annotations = annotations.map(|(name, value)| (name.to_owned(), value.to_owned()));
        wrong.metadata.annotations.extend(annotations);
        assert_eq!(
            paths(wrong),
            [
                "apiVersion",
                "kind",
                "metadata.name",
                "metadata.annotations.leafhost.dev/grace",
                "metadata.annotations.leafhost.dev/resources",
                "metadata.annotations.leafhost.dev/allocation",
                "metadata.annotations.leafhost.dev/evict",
                "metadata.annotations.leafhost.dev/restart-pods",
            ]
        );
    }

    #[test]
    fn a_reference_names_one_place() {
        let secret = json!({"secretKeyRef": {"name": "a", "namespace": "default", "key": "k"}});
        let read: ValueFrom = serde_json::from_value(secret.clone()).unwrap();
        assert!(matches!(read, ValueFrom::SecretKeyRef(_)), "{read:?}");
        let mut both = secret;
        both["configMapKeyRef"] = json!({"name": "a", "key": "k"});
        for wrong in [both, json!({})] {
            let error = serde_json::from_value::<ValueFrom>(wrong).unwrap_err();
            assert!(error.to_string().contains("exactly one"), "{error}");
        }
    }

    #[test]
    fn grace_is_a_number_with_a_unit() {
        for (text, seconds) in [
            ("0", Some(0)),
            ("30s", Some(30)),
            ("5m", Some(300)),
            ("24h", Some(86_400)),
            ("25h", None),
            ("5", None),
            ("-1s", None),
            ("s", None),
        ] {
            assert_eq!(parse_duration(text).map(|d| d.as_secs()), seconds, "{text}");
        }
    }
}
