//! Recognizes the objects of Akri and Leafhost by the names and labels that their charts set. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

/// Role of a workload, its pods, or another object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Akri's agent.
    Agent,
    /// Akri's controller.
    Controller,
    /// A handler of Akri that Leafhost's image contains as a component.
    Handler,
    /// Another handler that was built for Akri. It registers with Leafhost's agent, too.
    OtherHandler,
    /// Akri's webhook.
    Webhook,
    /// Leafhost's agent, controller or webhook.
    Leafhost,
}

/// Label that names the program; without it the name of the object counts.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";
/// Values of that label for the programs whose pods write Configurations and Instances.
pub const WRITERS: [&str; 4] = [
    "akri-agent",
    "akri-controller",
    "leafhost-agent",
    "leafhost-controller",
];

/// Returns the part of Akri or Leafhost that an object belongs to, if any.
pub fn part(metadata: &ObjectMeta) -> Option<Part> {
    let name = metadata.name.as_deref().unwrap_or_default();
    let none = BTreeMap::new();
    let labels = metadata.labels.as_ref().unwrap_or(&none);
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    // Leafhost's chart can be installed under the names of Akri's.
    if label("helm.sh/chart").starts_with("leafhost-") || label(NAME_LABEL).starts_with("leafhost-")
    {
        return Some(Part::Leafhost);
    }
    let by_name = name
        .strip_suffix("-daemonset")
        .or_else(|| name.strip_suffix("-deployment"))
        .unwrap_or(name);
    let program = match label(NAME_LABEL) {
        "" => by_name,
        program => program,
    };
    match program {
        "akri-agent" => Some(Part::Agent),
        "akri-controller" => Some(Part::Controller),
        "akri-debug-echo-discovery"
        | "akri-udev-discovery"
        | "akri-onvif-discovery"
        | "akri-opcua-discovery" => Some(Part::Handler),
        "akri-webhook-configuration" => Some(Part::Webhook),
        _ if label("app.kubernetes.io/part-of") != "akri" => None,
        _ => match label("app.kubernetes.io/component") {
            "admission-webhook" => Some(Part::Webhook),
            "discovery-handler" => Some(Part::OtherHandler),
            _ => None,
        },
    }
}

/// Returns true if an object is one of these parts.
pub fn is_of(metadata: &ObjectMeta, parts: &[Part]) -> bool {
    part(metadata).is_some_and(|part| parts.contains(&part))
}

/// Returns the Helm release that an object belongs to.
pub fn release(metadata: &ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    annotations
        .get("meta.helm.sh/release-name")
        .map(String::as_str)
}

/// Formats an object for messages: `NAMESPACE/NAME`, or only its name.
pub fn shown<K: kube::Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(name: &str, labels: &Value) -> Option<Part> {
        part(&serde_json::from_value(json!({"name": name, "labels": labels})).unwrap())
    }

    #[test]
    fn parts_are_known_by_their_labels_and_else_by_their_names() {
        for (name, labels, expected) in [
            ("akri-agent-daemonset", json!({}), Some(Part::Agent)),
            (
                "akri-controller-deployment",
                json!({}),
                Some(Part::Controller),
            ),
            (
                "akri-udev-discovery-daemonset",
                json!({}),
                Some(Part::Handler),
            ),
            (
                "other",
                json!({NAME_LABEL: "akri-agent"}),
                Some(Part::Agent),
            ),
            ("akri-webhook-configuration", json!({}), Some(Part::Webhook)),
            (
                "hook",
                json!({"app.kubernetes.io/part-of": "akri", "app.kubernetes.io/component": "admission-webhook"}),
                Some(Part::Webhook),
            ),
            (
                "lidar",
                json!({"app.kubernetes.io/part-of": "akri", "app.kubernetes.io/component": "discovery-handler"}),
                Some(Part::OtherHandler),
            ),
            (
                "akri-agent-daemonset",
                json!({NAME_LABEL: "akri-agent", "helm.sh/chart": "leafhost-0.1.0"}),
                Some(Part::Leafhost),
            ),
            (
                "x",
                json!({NAME_LABEL: "leafhost-agent"}),
                Some(Part::Leafhost),
            ),
            ("akri", json!({"app.kubernetes.io/part-of": "akri"}), None),
            ("nginx", json!({NAME_LABEL: "nginx"}), None),
        ] {
            assert_eq!(of(name, &labels), expected, "{name} {labels}");
        }
    }
}
