//! Discovery properties: values given in a Configuration, or named there and stored as files `NAME/KEY`.

use std::path::Path;
use std::sync::Arc;

use leafhost_core::configuration::{Configuration, FieldProblem};
use leafhost_core::properties::{self, Lookup, Reference, ValueKind};
use leafhost_core::session::Property;

use crate::folder::{Content, Kind, Rules, Snapshot};

/// Maximum length of a value, in bytes.
pub const MAX_VALUE: u64 = 1 << 20;

/// Rules of the files that are values.
pub const RULES: Rules = Rules {
    kinds: &[Kind::held("", MAX_VALUE)],
    nested: true,
    max_files: 1000,
    stray: None,
    secret: false,
};

/// Rules of the files that are secret values.
pub const SECRETS: Rules = Rules {
    secret: true,
    ..RULES
};

/// Named values: `secrets/NAME/KEY` and `configmaps/NAME/KEY` below `folder`.
pub struct Values {
    /// Folder that contains both, for messages.
    pub folder: String,
    /// Snapshot of `secrets`.
    pub secrets: Arc<Snapshot>,
    /// Snapshot of `configmaps`.
    pub configmaps: Arc<Snapshot>,
}

impl Values {
    /// Reads the values below a folder as they are now, even if their files have not settled. Blocks.
    pub fn now(folder: &Path) -> Self {
        let read = |name: &str, rules: &Rules| Arc::new(Snapshot::now(&folder.join(name), rules));
        Self {
            folder: folder.display().to_string(),
            secrets: read("secrets", &SECRETS),
            configmaps: read("configmaps", &RULES),
        }
    }

    /// Returns the properties of a Configuration, sorted by name, or the problem of the first that cannot be resolved.
    pub fn resolve(&self, configuration: &Configuration) -> Result<Vec<Property>, FieldProblem> {
        properties::resolve(configuration, None, |reference| self.lookup(reference))
    }

    fn lookup(&self, reference: &Reference<'_>) -> Lookup {
        let (folder, files) = match reference.kind {
            ValueKind::Secret => ("secrets", &self.secrets),
            ValueKind::ConfigMap => ("configmaps", &self.configmaps),
        };
        let name = format!("{}/{}", reference.name, reference.key);
        let file = format!("{}/{folder}/{name}", self.folder);
        match files.files.get(&name) {
            Some(Content::Bytes(bytes)) if reference.kind == ValueKind::Secret => {
                Lookup::Value(without_newline(bytes).into())
            }
            Some(Content::Bytes(bytes)) => Lookup::Value(bytes.clone()),
            Some(Content::Refused(why)) => Lookup::Unavailable(format!("{file} {why}")),
            Some(Content::Digest(_) | Content::Pending) => Lookup::Unavailable(format!(
                "{file} is still being written, or is beyond the files of its folder that are read"
            )),
            None => Lookup::Missing(format!("{file} is missing; write the value into it")),
        }
    }
}

/// Removes a trailing newline: editors and `echo` end a file with one, which is not part of a password.
pub fn without_newline(file: &[u8]) -> &[u8] {
    let line = file.strip_suffix(b"\n");
    line.map_or(file, |line| line.strip_suffix(b"\r").unwrap_or(line))
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
