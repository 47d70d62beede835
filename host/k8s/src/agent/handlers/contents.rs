//! Reads the handlers in a ConfigMap. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use leafhost_core::grants_file;
use leafhost_core::handler::Digest;
use leafhost_core::ports::SourceVersion;
use sha2::{Digest as _, Sha256};

const COMPONENTS: [&str; 2] = [".wasm", ".wasm.gz"];
/// Maximum size of a grants file, in bytes.
const MAX_GRANTS: usize = 64 << 10;

/// Components, grants and problems of a ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Components by source name. An unusable one has no version.
    pub files: BTreeMap<String, Component>,
    /// Texts of grants files by key, each with its problem if it belongs to no component.
    pub grants: BTreeMap<String, (Arc<str>, Option<String>)>,
    /// Problems with their keys; an empty key stands for the whole ConfigMap.
    pub problems: Vec<(String, String)>,
}

/// A component of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Key in the ConfigMap.
    pub key: String,
    /// Digest and grants; `None` if the component is unusable.
    pub version: Option<SourceVersion>,
}

impl Contents {
    /// Reads all keys of a ConfigMap.
    pub fn of(object: &ConfigMap) -> Self {
        let mut contents = Self::default();
        let has = |key: &str| text(object, key).is_some() || bytes(object, key).is_some();
        let texts = object.data.iter().flat_map(BTreeMap::keys);
        let binaries = object.binary_data.iter().flat_map(BTreeMap::keys);
        let mut keys: Vec<&str> = texts.chain(binaries).map(String::as_str).collect();
        keys.sort_unstable();
        for &key in &keys {
            if let Err(message) = contents.take(object, key, &has) {
                contents.problems.push((key.to_owned(), message));
            }
        }
        for &key in &keys {
            let Some(stem) = key.strip_suffix(grants_file::SUFFIX) else {
                continue;
            };
            let is_its = |other: &&str| {
                source_name(other).is_some() && grants_file::among(other, has) == key
            };
            let orphaned = (!keys.iter().any(is_its)).then(|| {
                format!(
                    "grants of no component: neither this ConfigMap nor the agent's image has {stem}.wasm, and no external handler {stem} has registered; add the component, correct the name or remove the key"
                )
            });
            contents
                .problems
                .extend(orphaned.clone().map(|message| (key.to_owned(), message)));
            if let Some(text) = text(object, key).filter(|text| text.len() <= MAX_GRANTS) {
                let grants = (Arc::from(text), orphaned);
                contents.grants.insert(key.to_owned(), grants);
            }
        }
        if keys.is_empty() {
            let message = "has no handler; add one, or remove the ConfigMap";
            contents.problems.push((String::new(), message.to_owned()));
        }
        contents
    }

    /// Takes one key; the error says why it is unusable.
    fn take(
        &mut self,
        object: &ConfigMap,
        key: &str,
        has: &impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let Some(name) = source_name(key) else {
            return if key.ends_with(grants_file::SUFFIX) {
                Ok(())
            } else {
                Err("is not a handler: a key is NAME.wasm, NAME.wasm.gz or NAME.grants.yaml; rename or remove it".to_owned())
            };
        };
        if let Some(other) = self.files.get(&name) {
            return Err(format!(
                "is not used: {} is the same handler file; remove one of them",
                other.key
            ));
        }
        let version = version(object, key, &grants_file::among(key, has));
        let component = Component {
            key: key.to_owned(),
            version: version.as_ref().ok().cloned(),
        };
        self.files.insert(name, component);
        version.map(drop).map_err(|message| {
            format!(
                "{message}; until it is corrected, a version that was accepted before stays in use"
            )
        })
    }
}

/// Returns the source name of a component key. The name omits the gzip suffix, so that a compressed file may replace an uncompressed one.
pub fn source_name(key: &str) -> Option<String> {
    let stem = COMPONENTS
        .iter()
        .find_map(|suffix| key.strip_suffix(suffix))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = !stem.is_empty() && !stem.starts_with('.') && stem.chars().all(is_plain);
    is_name.then(|| format!("{stem}.wasm"))
}

/// Returns the bytes of a key if its value is binary.
pub fn bytes<'a>(object: &'a ConfigMap, key: &str) -> Option<&'a [u8]> {
    let bytes = object.binary_data.as_ref()?.get(key)?;
    Some(&bytes.0)
}

/// Returns the digest of a component as stored.
pub fn digest(bytes: &[u8]) -> Digest {
    let digest = Sha256::digest(bytes);
    Digest(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn text<'a>(object: &'a ConfigMap, key: &str) -> Option<&'a str> {
    Some(object.data.as_ref()?.get(key)?.as_str())
}

fn version(object: &ConfigMap, key: &str, grants: &str) -> Result<SourceVersion, String> {
    let Some(component) = bytes(object, key) else {
        return Err(
            "is text, and a component is not: it belongs into binaryData, where leafhost handler configmap puts it"
                .to_owned(),
        );
    };
    let grants = match (text(object, grants), bytes(object, grants)) {
        (Some(text), _) if text.len() > MAX_GRANTS => {
            return Err(format!(
                "has grants {grants} of more than {} KiB; shorten them",
                MAX_GRANTS >> 10
            ));
        }
        (Some(text), _) => Some(Arc::from(text)),
        (None, Some(_)) => return Err(format!("has grants {grants} that are not UTF-8 text")),
        (None, None) => None,
    };
    Ok(SourceVersion {
        digest: digest(component),
        grants,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_map(data: &[(&str, &str)], binary: &[(&str, &[u8])]) -> ConfigMap {
        let texts = data
            .iter()
            .map(|(key, text)| ((*key).into(), (*text).into()));
        let binaries = binary
            .iter()
            .map(|(key, bytes)| ((*key).into(), k8s_openapi::ByteString(bytes.to_vec())));
        ConfigMap {
            data: Some(texts.collect()),
            binary_data: Some(binaries.collect()),
            ..ConfigMap::default()
        }
    }

    /// Returns `source=grants`, or `source!` for a source without a version, and the problems with their keys.
    fn read(map: &ConfigMap) -> (Vec<String>, Vec<(String, String)>) {
        let contents = Contents::of(map);
        let shown = |(name, component): (&String, &Component)| match &component.version {
            Some(version) => format!("{name}={}", version.grants.as_deref().unwrap_or_default()),
            None => format!("{name}!"),
        };
        (
            contents.files.iter().map(shown).collect(),
            contents.problems,
        )
    }

    #[test]
    fn a_component_has_the_grants_beside_it_and_one_name_whether_it_is_gzipped_or_not() {
        let map = mk_map(
            &[("a.grants.yaml", "udev:"), ("by-id.grants.yaml", "net:")],
            &[("a.wasm.gz", b"1"), ("b.wasm", b"2"), ("by_id.wasm", b"3")],
        );
        let (files, problems) = read(&map);
        assert_eq!(files, ["a.wasm=udev:", "b.wasm=", "by_id.wasm=net:"]);
        assert_eq!(problems, []);
        let a = Contents::of(&map).files["a.wasm"].clone();
        assert_eq!(a.key, "a.wasm.gz");
        assert_eq!(a.version.unwrap().digest, digest(b"1"));
        assert_eq!(bytes(&map, &a.key), Some(&b"1"[..]));
    }

    #[test]
    fn a_key_that_cannot_be_used_is_named_with_the_remedy_and_the_others_serve() {
        let long = "x".repeat(MAX_GRANTS + 1);
        for (data, binary, files, key, words) in [
            (
                &[("notes.txt", "x")][..],
                &[("a.wasm", &b"1"[..])][..],
                &["a.wasm="][..],
                "notes.txt",
                "rename or remove",
            ),
            (
                &[],
                &[(".wasm", b"1"), ("a.wasm", b"1")],
                &["a.wasm="],
                ".wasm",
                "is not a handler",
            ),
            (
                &[("a.wasm", "x")],
                &[("b.wasm", b"1")],
                &["a.wasm!", "b.wasm="],
                "a.wasm",
                "leafhost handler configmap",
            ),
            (
                &[],
                &[("a.wasm", b"1"), ("a.wasm.gz", b"2")],
                &["a.wasm="],
                "a.wasm.gz",
                "a.wasm is the same handler file",
            ),
            (
                &[],
                &[("a.wasm", b"1"), ("a.grants.yaml", b"\xff")],
                &["a.wasm!"],
                "a.wasm",
                "not UTF-8",
            ),
            (
                &[("a.grants.yaml", &long)],
                &[("a.wasm", b"1")],
                &["a.wasm!"],
                "a.wasm",
                "more than 64 KiB",
            ),
            (
                &[("c.grants.yaml", "")],
                &[("a.wasm", b"1")],
                &["a.wasm="],
                "c.grants.yaml",
                "image has c.wasm",
            ),
            (&[], &[], &[], "", "has no handler"),
        ] {
            let (read, problems) = read(&mk_map(data, binary));
            assert_eq!(read, files, "{key}");
            let [(told, message)] = &problems[..] else {
                panic!("{key}: {problems:?}");
            };
            assert_eq!(told, key);
            assert!(message.contains(words), "{message}");
        }
    }
}
