//! Discovery properties: values given in a Configuration, or named there and kept as files `NAME/KEY`.

use std::sync::Arc;

use leafhost_core::configuration::{
    Configuration, DiscoveryProperty, FieldProblem, KeyRef, ValueFrom,
};
use leafhost_core::session::Property;

use crate::folder::{Content, Kind, Rules, Snapshot};

/// The longest value, in bytes.
pub const MAX_VALUE: u64 = 1 << 20;
/// The most that names and values of a Configuration may have in all, in bytes: each call of the handler has a copy.
pub const MAX_VALUES: usize = 4 << 20;

/// Which files are values.
pub const RULES: Rules = Rules {
    kinds: &[Kind {
        suffix: "",
        max: MAX_VALUE,
        links: true,
        held: true,
    }],
    nested: true,
    max_files: 1000,
};

/// Where named values are: `secrets/NAME/KEY` and `configmaps/NAME/KEY` below `folder`.
pub struct Values {
    /// The folder both are in, for texts.
    pub folder: String,
    /// `secrets`.
    pub secrets: Arc<Snapshot>,
    /// `configmaps`.
    pub configmaps: Arc<Snapshot>,
}

impl Values {
    /// The properties of a Configuration, sorted by name; or the first that cannot be had.
    pub fn resolve(&self, configuration: &Configuration) -> Result<Vec<Property>, FieldProblem> {
        let mut resolved = Vec::new();
        let mut size = 0_usize;
        for (index, property) in configuration.properties.iter().enumerate() {
            let path = format!("spec.discoveryHandler.discoveryProperties[{index}]");
            let property = self.property(property, &path, configuration.key.namespace())?;
            let value = property
                .as_ref()
                .and_then(|property| property.value.as_ref());
            let more = property.as_ref().map_or(0, |property| property.name.len());
            size = size.saturating_add(more + value.map_or(0, |value| value.len()));
            if size > MAX_VALUES {
                return Err(FieldProblem::new(
                    path,
                    format!(
                        "this and the properties before it have more than {} MiB of names and values, which is the most; give less to the handler",
                        MAX_VALUES >> 20
                    ),
                ));
            }
            resolved.extend(property);
        }
        resolved.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(resolved)
    }

    fn property(
        &self,
        property: &DiscoveryProperty,
        path: &str,
        namespace: &str,
    ) -> Result<Option<Property>, FieldProblem> {
        let given = |value: Arc<[u8]>, secret| Property {
            name: property.name.clone(),
            value: Some(value),
            secret,
        };
        let (kind, field, reference, files) = match &property.value_from {
            None => {
                let value = property.value.as_deref().unwrap_or_default();
                return Ok(Some(given(value.as_bytes().into(), false)));
            }
            Some(ValueFrom::SecretKeyRef(reference)) => {
                ("secrets", "secretKeyRef", reference, &self.secrets)
            }
            Some(ValueFrom::ConfigMapKeyRef(reference)) => {
                ("configmaps", "configMapKeyRef", reference, &self.configmaps)
            }
        };
        let at = |field_of: &str| format!("{path}.valueFrom.{field}{field_of}");
        check(reference, namespace)
            .map_err(|(field_of, message)| FieldProblem::new(at(field_of), message))?;
        let name = format!("{}/{}", reference.name, reference.key);
        let file = format!("{}/{kind}/{name}", self.folder);
        match files.files.get(&name) {
            Some(Content::Bytes(bytes)) if kind == "secrets" => {
                Ok(Some(given(without_newline(bytes).into(), true)))
            }
            Some(Content::Bytes(bytes)) => Ok(Some(given(bytes.clone(), false))),
            Some(Content::Refused(why)) => Err(FieldProblem::new(at(""), format!("{file} {why}"))),
            Some(Content::Digest(_) | Content::Pending) => Err(FieldProblem::new(
                at(""),
                format!(
                    "{file} is still being written, or is beyond the files of its folder that are read"
                ),
            )),
            None if reference.optional == Some(true) => Ok(None),
            None => Err(FieldProblem::new(
                at(""),
                format!("{file} is missing; write the value into it, or set optional: true"),
            )),
        }
    }
}

/// What a secret's file says: editors and `echo` end a file with a newline, which is no part of a password.
pub fn without_newline(file: &[u8]) -> &[u8] {
    let line = file.strip_suffix(b"\n");
    line.map_or(file, |line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// The field of a reference that cannot be used, and why.
fn check(reference: &KeyRef, namespace: &str) -> Result<(), (&'static str, String)> {
    if reference.namespace != namespace {
        return Err((
            ".namespace",
            format!(
                "is {:?}, must be that of the Configuration, {namespace:?}",
                reference.namespace
            ),
        ));
    }
    if !leafhost_core::names::is_node_name(&reference.name) {
        return Err((
            ".name",
            format!(
                "{:?} is not 1 to 253 lower-case letters, digits, '-' and '.'",
                reference.name
            ),
        ));
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let key = &reference.key;
    if key.is_empty() || key.len() > 253 || key.starts_with('.') || !key.chars().all(inner) {
        return Err((
            ".key",
            format!(
                "{key:?} is not 1 to 253 letters, digits, '-', '_' and '.', with no '.' in front"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leafhost_core::configuration::Manifest;
    use serde_json::{Value, json};

    fn mk_values(secrets: &[(&str, Content)]) -> Values {
        let snapshot = |files: &[(&str, Content)]| {
            let files = files.iter().cloned();
            Arc::new(Snapshot {
                complete: true,
                files: files
                    .map(|(name, content)| (name.to_owned(), content))
                    .collect(),
                ..Snapshot::default()
            })
        };
        Values {
            folder: "DIR".into(),
            secrets: snapshot(secrets),
            configmaps: snapshot(&[("site/room", Content::Bytes(b"12\n".as_slice().into()))]),
        }
    }

    fn mk_configuration(properties: &Value) -> Configuration {
        let manifest: Manifest = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "a"},
            "spec": {"discoveryHandler": {"name": "udev", "discoveryProperties": properties}},
        }))
        .unwrap();
        manifest.try_into().unwrap()
    }

    #[test]
    fn values_are_given_or_read_and_sorted_by_name() {
        let values = mk_values(&[(
            "camera/password",
            Content::Bytes(b"\xff\n".as_slice().into()),
        )]);
        let configuration = mk_configuration(&json!([
            {"name": "p", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "password"}}},
            {"name": "given", "value": "x"},
            {"name": "empty"},
            {"name": "m", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "room"}}},
            {"name": "o", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
        ]));
        let resolved = values.resolve(&configuration).unwrap();
        let shown: Vec<_> = resolved
            .iter()
            .map(|p| (p.name.as_str(), p.value.as_deref().unwrap(), p.secret))
            .collect();
        assert_eq!(
            shown,
            [
                ("empty", b"".as_slice(), false),
                ("given", b"x", false),
                ("m", b"12\n", false),
                ("p", b"\xff", true),
            ]
        );
    }

    #[test]
    fn one_newline_at_the_end_of_a_secrets_file_is_no_part_of_the_value() {
        for (file, value) in [
            ("hunter2", "hunter2"),
            ("hunter2\n", "hunter2"),
            ("hunter2\r\n", "hunter2"),
            ("hunter2\n\n", "hunter2\n"),
            ("hunter2 \n", "hunter2 "),
            ("hunter2\r", "hunter2\r"),
            ("\nhunter2", "\nhunter2"),
            ("\n", ""),
            ("", ""),
        ] {
            let values = mk_values(&[("camera/password", Content::Bytes(file.as_bytes().into()))]);
            let configuration = mk_configuration(&json!([
                {"name": "p", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "password"}}},
            ]));
            let resolved = values.resolve(&configuration).unwrap();
            assert_eq!(
                resolved[0].value.as_deref(),
                Some(value.as_bytes()),
                "{file:?}"
            );
        }
    }

    #[test]
    fn names_and_values_have_at_most_4_mib_in_all() {
        let mib = Content::Bytes(vec![b'x'; 1 << 20].into());
        let values = mk_values(&[("big/key", mib)]);
        let reference = json!({"secretKeyRef": {"name": "big", "key": "key"}});
        for (number, wrong) in [(3, None), (4, Some("[3]")), (1_000, Some("[3]"))] {
            let properties: Vec<Value> = (0..number)
                .map(|n| json!({"name": format!("p{n}"), "valueFrom": reference}))
                .collect();
            let resolved = values.resolve(&mk_configuration(&Value::Array(properties)));
            let path = resolved.err().map(|problem| problem.path);
            let expected = wrong.map(|at| format!("spec.discoveryHandler.discoveryProperties{at}"));
            assert_eq!(path, expected, "{number}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_named_with_field_file_and_remedy() {
        let values = mk_values(&[
            ("camera/big", Content::Refused("has 2 bytes".into())),
            ("camera/new", Content::Pending),
        ]);
        let secret = |fields: Value| json!({"secretKeyRef": fields});
        for (from, field, words) in [
            (
                secret(json!({"name": "camera", "key": "gone"})),
                "secretKeyRef",
                "DIR/secrets/camera/gone is missing",
            ),
            (
                json!({"configMapKeyRef": {"name": "site", "key": "gone"}}),
                "configMapKeyRef",
                "DIR/configmaps/site/gone is missing",
            ),
            (
                secret(json!({"name": "camera", "key": "big"})),
                "secretKeyRef",
                "has 2 bytes",
            ),
            (
                secret(json!({"name": "camera", "key": "new"})),
                "secretKeyRef",
                "being written",
            ),
            (
                secret(json!({"name": "camera", "key": "k", "namespace": "other"})),
                "secretKeyRef.namespace",
                "\"other\"",
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
            let problem = values.resolve(&configuration).unwrap_err();
            let expected =
                format!("spec.discoveryHandler.discoveryProperties[0].valueFrom.{field}");
            assert_eq!(problem.path, expected);
            assert!(problem.message.contains(words), "{}", problem.message);
        }
    }
}
