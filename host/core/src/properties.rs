//! Discovery properties: literal values of a Configuration, and references to Secrets and ConfigMaps, which the caller
//! looks up.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::configuration::{Configuration, DiscoveryProperty, FieldProblem, KeyRef, ValueFrom};
use crate::names::is_node_name;
use crate::session::Property;

/// Maximum size of all names and values of a Configuration, in bytes: each call of the handler has a copy.
pub const MAX_VALUES: usize = 4 << 20;

/// Kind of object that holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
pub enum ValueKind {
    /// Secret, whose values are never shown.
    Secret,
    /// `ConfigMap`.
    ConfigMap,
}

impl ValueKind {
    /// Returns the name of the kind in Kubernetes.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Reference to a value, with names that are valid in Kubernetes and in paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference<'a> {
    /// Kind of the object.
    pub kind: ValueKind,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the Secret or `ConfigMap`.
    pub name: &'a str,
    /// Key in the object.
    pub key: &'a str,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// Value that was found.
    Value(Arc<[u8]>),
    /// The value does not exist; the text names what is missing and the remedy.
    Missing(String),
    /// Unknown or unusable value; the text has the reason and the remedy.
    Unavailable(String),
}

/// Returns the properties of a Configuration, sorted by name, or the problem of the first that is unavailable. Allows
/// references into other namespaces only if `namespaces` lists them; without such a list, none.
pub fn resolve(
    configuration: &Configuration,
    namespaces: Option<&BTreeSet<String>>,
    lookup: impl Fn(&Reference<'_>) -> Lookup,
) -> Result<Vec<Property>, FieldProblem> {
    let mut resolved = Vec::new();
    let mut size = 0_usize;
    for (index, property) in configuration.properties.iter().enumerate() {
        let path = format!("spec.discoveryHandler.discoveryProperties[{index}]");
        let own = configuration.key.namespace();
        let property = one(property, &path, own, namespaces, &lookup)?;
        size += property.as_ref().map_or(0, |found| {
            found.name.len() + found.value.as_ref().map_or(0, |value| value.len())
        });
        if size > MAX_VALUES {
            return Err(FieldProblem::new(
                path,
                format!(
                    "this and the properties before it have more than {} MiB of names and values, the maximum; give the handler fewer or shorter values",
                    MAX_VALUES >> 20
                ),
            ));
        }
        resolved.extend(property);
    }
    resolved.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(resolved)
}

/// Returns the references that [`resolve`] looks up.
pub fn references<'a>(
    configuration: &'a Configuration,
    namespaces: Option<&BTreeSet<String>>,
) -> impl Iterator<Item = Reference<'a>> {
    let values = configuration.properties.iter();
    let values = values.filter_map(|property| property.value_from.as_ref());
    values.filter_map(move |value| place(value, configuration.key.namespace(), namespaces).ok())
}

/// Returns the problems of references that are invalid regardless of what exists, as [`resolve`] would report each.
pub fn invalid_references(
    configuration: &Configuration,
    namespaces: &BTreeSet<String>,
) -> Vec<FieldProblem> {
    let own = configuration.key.namespace();
    let properties = configuration.properties.iter().enumerate();
    let exists = |_: &Reference<'_>| Lookup::Value(Arc::default());
    let problems = properties.filter_map(|(index, property)| {
        let path = format!("spec.discoveryHandler.discoveryProperties[{index}]");
        one(property, &path, own, Some(namespaces), exists).err()
    });
    problems.collect()
}

/// Resolves a property; returns `None` if it is optional and missing.
fn one(
    property: &DiscoveryProperty,
    path: &str,
    own: &str,
    namespaces: Option<&BTreeSet<String>>,
    lookup: impl Fn(&Reference<'_>) -> Lookup,
) -> Result<Option<Property>, FieldProblem> {
    let found = |value, secret| Property {
        name: property.name.clone(),
        value: Some(value),
        secret,
    };
    let Some(from) = &property.value_from else {
        let value = property.value.as_deref().unwrap_or_default();
        return Ok(Some(found(value.as_bytes().into(), false)));
    };
    let (field, written, _) = parts(from);
    let at = |field_of: &str| format!("{path}.valueFrom.{field}{field_of}");
    let reference = place(from, own, namespaces)
        .map_err(|(field_of, message)| FieldProblem::new(at(field_of), message))?;
    match lookup(&reference) {
        Lookup::Value(value) => Ok(Some(found(value, reference.kind == ValueKind::Secret))),
        Lookup::Missing(_) if written.optional == Some(true) => Ok(None),
        Lookup::Missing(why) => Err(FieldProblem::new(
            at(""),
            format!("{why}, or set optional: true"),
        )),
        Lookup::Unavailable(why) => Err(FieldProblem::new(at(""), why)),
    }
}

fn parts(from: &ValueFrom) -> (&'static str, &KeyRef, ValueKind) {
    match from {
        ValueFrom::SecretKeyRef(written) => ("secretKeyRef", written, ValueKind::Secret),
        ValueFrom::ConfigMapKeyRef(written) => ("configMapKeyRef", written, ValueKind::ConfigMap),
    }
}

/// Returns the validated reference, or the invalid field and the reason.
fn place<'a>(
    from: &'a ValueFrom,
    own: &'a str,
    namespaces: Option<&BTreeSet<String>>,
) -> Result<Reference<'a>, (&'static str, String)> {
    let (_, written, kind) = parts(from);
    let namespace = written.namespace.as_deref().unwrap_or(own);
    if namespace != own && !namespaces.is_some_and(|namespaces| namespaces.contains(namespace)) {
        let remedy = match namespaces {
            Some(_) => ", or one that the agents are started with (--properties-namespaces)",
            None => "",
        };
        return Err((
            ".namespace",
            format!("is {namespace:?}, must be that of the Configuration, {own:?}{remedy}"),
        ));
    }
    let name = written.name.as_str();
    if !is_node_name(name) {
        return Err((
            ".name",
            format!("{name:?} is not 1 to 253 lower-case letters, digits, '-' and '.'"),
        ));
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let key = written.key.as_str();
    if key.is_empty() || key.len() > 253 || key.starts_with('.') || !key.chars().all(inner) {
        return Err((
            ".key",
            format!(
                "{key:?} is not 1 to 253 letters, digits, '-', '_' and '.', with no '.' in front"
            ),
        ));
    }
    Ok(Reference {
        kind,
        namespace,
        name,
        key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Manifest;
    use serde_json::{Value, json};

    fn mk_configuration(properties: &Value) -> Configuration {
        let manifest: Manifest = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "a", "namespace": "site"},
            "spec": {"discoveryHandler": {"name": "udev", "discoveryProperties": properties}},
        }))
        .unwrap();
        manifest.try_into().unwrap()
    }

    /// Simulates a store in which every Secret has the key `password` and no other key exists.
    fn lookup(reference: &Reference<'_>) -> Lookup {
        let Reference {
            kind,
            namespace,
            name,
            key,
        } = reference;
        match *key {
            "password" => Lookup::Value(format!("{namespace}/{name}").into_bytes().into()),
            "forbidden" => Lookup::Unavailable("may not be read".into()),
            _ => Lookup::Missing(format!(
                "{} {namespace}/{name} has no {key}; add it",
                kind.name()
            )),
        }
    }

    #[test]
    fn values_are_given_or_looked_up_and_sorted_by_name() {
        let configuration = mk_configuration(&json!([
            {"name": "p", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "password"}}},
            {"name": "given", "value": "x"},
            {"name": "empty"},
            {"name": "m", "valueFrom": {"configMapKeyRef": {"name": "room", "key": "password"}}},
            {"name": "o", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
        ]));
        let resolved = resolve(&configuration, None, lookup).unwrap();
        let shown: Vec<_> = resolved
            .iter()
            .map(|p| (p.name.as_str(), p.value.as_deref().unwrap(), p.secret))
            .collect();
        assert_eq!(
            shown,
            [
                ("empty", b"".as_slice(), false),
                ("given", b"x", false),
                ("m", b"site/room", false),
                ("p", b"site/camera", true),
            ]
        );
    }

    #[test]
    fn names_and_values_have_at_most_4_mib_in_all() {
        let mib: Arc<[u8]> = vec![b'x'; 1 << 20].into();
        let reference = json!({"secretKeyRef": {"name": "big", "key": "key"}});
        for (number, wrong) in [(3, None), (4, Some("[3]")), (1_000, Some("[3]"))] {
            let properties: Vec<Value> = (0..number)
                .map(|n| json!({"name": format!("p{n}"), "valueFrom": reference}))
                .collect();
            let configuration = mk_configuration(&Value::Array(properties));
            let resolved = resolve(&configuration, None, |_| Lookup::Value(Arc::clone(&mib)));
            let path = resolved.err().map(|problem| problem.path);
            let expected = wrong.map(|at| format!("spec.discoveryHandler.discoveryProperties{at}"));
            assert_eq!(path, expected, "{number}");
        }
    }

    #[test]
    fn another_namespace_is_read_only_if_it_is_listed() {
        let at = |namespace: &str| {
            mk_configuration(&json!([{"name": "p", "valueFrom": {"secretKeyRef":
                {"name": "camera", "key": "password", "namespace": namespace}}}]))
        };
        let listed = BTreeSet::from(["shared".to_owned()]);
        for (namespace, namespaces, good) in [
            ("site", None, true),
            ("site", Some(&listed), true),
            ("shared", None, false),
            ("shared", Some(&listed), true),
            ("default", Some(&listed), false),
            ("kube-system", Some(&listed), false),
        ] {
            let configuration = at(namespace);
            let resolved = resolve(&configuration, namespaces, lookup);
            assert_eq!(resolved.is_ok(), good, "{namespace} {namespaces:?}");
            assert_eq!(
                references(&configuration, namespaces).count(),
                usize::from(good)
            );
            if let Err(problem) = resolved {
                assert!(problem.path.ends_with("valueFrom.secretKeyRef.namespace"));
                let names_flag = problem.message.contains("--properties-namespaces");
                assert_eq!(names_flag, namespaces.is_some(), "{}", problem.message);
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_named_with_field_and_remedy() {
        let secret = |fields: Value| json!({"secretKeyRef": fields});
        for (from, field, words) in [
            (
                secret(json!({"name": "camera", "key": "gone"})),
                "secretKeyRef",
                "Secret site/camera has no gone; add it, or set optional: true",
            ),
            (
                json!({"configMapKeyRef": {"name": "room", "key": "gone"}}),
                "configMapKeyRef",
                "ConfigMap site/room has no gone",
            ),
            (
                secret(json!({"name": "camera", "key": "forbidden", "optional": true})),
                "secretKeyRef",
                "may not be read",
            ),
            (
                secret(json!({"name": "..", "key": "k", "optional": true})),
                "secretKeyRef.name",
                "\"..\"",
            ),
            (
                secret(json!({"name": "a/../b", "key": "k"})),
                "secretKeyRef.name",
                "a/../b",
            ),
            (
                secret(json!({"name": "camera", "key": "../../../etc/shadow"})),
                "secretKeyRef.key",
                "shadow",
            ),
            (
                secret(json!({"name": "camera", "key": ".."})),
                "secretKeyRef.key",
                "\"..\"",
            ),
        ] {
            let configuration = mk_configuration(&json!([{"name": "p", "valueFrom": from}]));
            let problem = resolve(&configuration, None, lookup).unwrap_err();
            let expected =
                format!("spec.discoveryHandler.discoveryProperties[0].valueFrom.{field}");
            assert_eq!(problem.path, expected);
            assert!(problem.message.contains(words), "{}", problem.message);
        }
    }
}
