//! `leafhost handler configmap`: prints components with their grants as a ConfigMap in YAML.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use leafhost_core::grants_file::{self, stem};
use leafhost_core::ports::SourceFile;
use leafhost_core::yaml;
use leafhost_grants::Grants;
use leafhost_k8s::handlers::LABEL;
use serde::Serialize;

use super::open;
use crate::args::ConfigMapArgs;
use crate::terminal;

/// Maximum number of bytes of all values of a ConfigMap together, before base64.
const MOST: usize = 1 << 20;

pub fn run(args: &ConfigMapArgs) -> Result<()> {
    let mut files = Vec::new();
    for path in &args.files {
        let file = open::read(path, None)?;
        check(path, &file)?;
        files.push(file);
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => default_name(&files),
    };
    let object = ConfigMap::new(name, args.namespace.clone(), &files)?;
    let text = yaml::write(&object).context("cannot write YAML")?;
    Ok(terminal::print(&text)?)
}

/// Rejects a component that no agent would load; prints a note about missing grants.
fn check(path: &Path, file: &SourceFile) -> Result<()> {
    let shown = path.display();
    let inspection =
        leafhost_wasm::inspect(&file.bytes).with_context(|| format!("cannot use {shown}"))?;
    Grants::read(file.grants.as_deref())
        .map_err(|why| anyhow!("cannot use the grants of {shown}: {why}"))?;
    if file.grants.is_none() && !inspection.grants.is_empty() {
        eprintln!(
            "note: {shown} needs grants ({}) and has no {} next to it: agents will refuse it",
            inspection.grants.join(", "),
            grants_file::names(&file.name)
        );
    }
    Ok(())
}

/// Returns the name of the only file as an object name; `handlers` for several.
fn default_name(files: &[SourceFile]) -> String {
    let [file] = files else {
        return "handlers".to_owned();
    };
    let name = stem(&file.name).to_ascii_lowercase();
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let name = name.trim_matches('-');
    if name.is_empty() { "handlers" } else { name }.to_owned()
}

/// ConfigMap in the format of the API server. Fields for human readers come first.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigMap {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    data: BTreeMap<String, String>,
    binary_data: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    labels: BTreeMap<&'static str, &'static str>,
}

impl ConfigMap {
    /// Creates the ConfigMap. The output depends only on the files.
    fn new(name: String, namespace: Option<String>, files: &[SourceFile]) -> Result<Self> {
        let mut object = Self {
            api_version: "v1",
            kind: "ConfigMap",
            metadata: Metadata {
                name,
                namespace,
                labels: [LABEL].into(),
            },
            data: BTreeMap::new(),
            binary_data: BTreeMap::new(),
        };
        let mut sizes = Vec::new();
        for file in files {
            let stem = stem(&file.name);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if stem.is_empty() || stem.starts_with('.') || !stem.chars().all(is_plain) {
                bail!(
                    "{:?} cannot be a key of a ConfigMap; name the file with letters, digits, '-', '_' and '.'",
                    file.name
                );
            }
            let packed = packed(&file.bytes)?;
            let size = packed.len() + file.grants.as_ref().map_or(0, |grants| grants.len());
            sizes.push((size, stem));
            let key = format!("{stem}.wasm.gz");
            let packed = STANDARD.encode(packed);
            if object.binary_data.insert(key, packed).is_some() {
                bail!(
                    "two files are {stem}.wasm, and a ConfigMap can have only one; leave one out"
                );
            }
            if let Some(grants) = &file.grants {
                let key = grants_file::own(&file.name);
                object.data.insert(key, grants.to_string());
            }
        }
        let sum: usize = sizes.iter().map(|(size, _)| size).sum();
        if sum > MOST {
            let each = sizes.iter().map(|(size, stem)| format!("{stem} {size}"));
            let each: Vec<String> = each.collect();
            let remedy = if files.len() > 1 {
                "create several ConfigMaps, each with a --name of its own"
            } else {
                "make the component smaller (opt-level \"s\", lto, strip), or put it into a folder of every node and name that with --handlers-dir"
            };
            bail!(
                "cannot fit into a ConfigMap: {sum} bytes gzipped ({}), at most {MOST} fit; {remedy}",
                each.join(", ")
            );
        }
        Ok(object)
    }
}

/// Gzips the bytes without a time stamp or other metadata; returns gzipped bytes unchanged.
pub fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.to_vec());
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn mk_file(name: &str, bytes: &[u8], grants: Option<&str>) -> SourceFile {
        SourceFile {
            name: name.to_owned(),
            bytes: bytes.into(),
            grants: grants.map(Into::into),
        }
    }

    fn written(files: &[SourceFile]) -> Result<String> {
        let object = ConfigMap::new(default_name(files), Some("leafhost".into()), files)?;
        Ok(yaml::write(&object)?)
    }

    #[test]
    fn the_object_has_the_label_and_all_files_and_is_always_the_same() {
        let files = [
            mk_file(
                "Serial_by_id.wasm",
                b"one",
                Some("udev:\n  subsystems: [tty]\n"),
            ),
            mk_file("b.wasm.gz", &packed(b"two").unwrap(), None),
        ];
        let text = written(&files).unwrap();
        assert_eq!(text, written(&files).unwrap());
        let object: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(object["metadata"]["name"], "handlers");
        assert_eq!(object["metadata"]["namespace"], "leafhost");
        assert_eq!(
            object["metadata"]["labels"]["leafhost.dev/handlers"],
            "true"
        );
        assert_eq!(
            object["data"]["Serial_by_id.grants.yaml"],
            "udev:\n  subsystems: [tty]\n"
        );
        for (key, expected) in [("Serial_by_id.wasm.gz", "one"), ("b.wasm.gz", "two")] {
            let packed = STANDARD
                .decode(object["binaryData"][key].as_str().unwrap())
                .unwrap();
            let mut bytes = String::new();
            flate2::read::GzDecoder::new(&packed[..])
                .read_to_string(&mut bytes)
                .unwrap();
            assert_eq!(bytes, expected);
        }
        assert!(text.find("labels").unwrap() < text.find("binaryData").unwrap());
    }

    #[test]
    fn one_file_gives_its_name_as_far_as_an_object_can_have_it() {
        for (file, name) in [
            ("onvif.wasm", "onvif"),
            ("Serial_by_id.wasm.gz", "serial-by-id"),
            ("_.wasm", "handlers"),
        ] {
            assert_eq!(default_name(&[mk_file(file, b"", None)]), name);
        }
    }

    #[test]
    fn what_is_no_component_is_refused_with_the_name_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.wasm");
        std::fs::write(&path, "a text").unwrap();
        let args = ConfigMapArgs {
            files: vec![path],
            name: None,
            namespace: None,
        };
        let error = crate::failure::line(&run(&args).unwrap_err());
        assert!(
            error.contains("notes.wasm: this is not WebAssembly"),
            "{error}"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_sizes_and_the_remedy() {
        // Bytes with a gzip header are stored as they are.
        let large = [&[0x1f, 0x8b][..], &vec![7; MOST / 2]].concat();
        let half = |name| mk_file(name, &large, None);
        for (files, words) in [
            (
                vec![half("a.wasm"), half("b.wasm")],
                "create several ConfigMaps",
            ),
            (
                vec![mk_file("a.wasm", &large, Some(&"x".repeat(MOST / 2)))],
                "--handlers-dir",
            ),
            (
                vec![
                    mk_file("a.wasm", b"1", None),
                    mk_file("a.wasm.gz", b"2", None),
                ],
                "leave one out",
            ),
            (vec![mk_file("a b.wasm", b"1", None)], "name the file with"),
        ] {
            let error = written(&files).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(written(&[half("a.wasm")]).is_ok());
    }
}
