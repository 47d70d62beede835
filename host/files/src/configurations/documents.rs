//! The text of a Configuration file: its documents, and what is wrong with which line. Pure.

use leafhost_core::configuration::{Configuration, FieldProblem, Manifest};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::SourceProblem;
use serde::Deserialize;
use serde_yaml_ng::Value;
use uuid::Uuid;

mod locate;
use locate::locate;

/// The root of the uids: a Configuration of one namespace and name has one uid on every machine.
const UIDS: Uuid = Uuid::from_u128(0x6c65_6166_686f_7374_2d63_6f6e_6669_6773);

/// One good document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// What it says.
    pub configuration: Configuration,
    /// Its text, without separators.
    pub text: String,
}

/// What a file says.
#[derive(Debug, Default, PartialEq)]
pub struct Reading {
    /// The good documents.
    pub documents: Vec<Document>,
    /// What is wrong with the others.
    pub problems: Vec<SourceProblem>,
}

/// Reads a file. Each document is read for itself: a broken one spoils no other.
pub fn read(file: &str, text: &str) -> Reading {
    let mut reading = Reading::default();
    for (first_line, text) in split(text) {
        match parse(&text) {
            Ok(configuration) => {
                let earlier = reading.documents.iter();
                let key = &configuration.key;
                if earlier.map(|d| &d.configuration.key).any(|k| k == key) {
                    reading.problems.push(SourceProblem {
                        source: file.to_owned(),
                        line: locate(&text, "metadata.name").map(|line| first_line + line),
                        path: "metadata.name".to_owned(),
                        message: format!(
                            "{key} is in this file already; the first one counts, remove or rename this one"
                        ),
                        configuration: Some(key.clone()),
                    });
                } else {
                    reading.documents.push(Document {
                        configuration,
                        text,
                    });
                }
            }
            Err(wrongs) => {
                let configuration = name(&text);
                reading
                    .problems
                    .extend(wrongs.into_iter().map(|wrong| SourceProblem {
                        source: file.to_owned(),
                        line: wrong.line.map(|line| first_line + line),
                        path: wrong.path,
                        message: wrong.message,
                        configuration: configuration.clone(),
                    }));
            }
        }
    }
    reading
}

/// Documents with the number of lines before each. `---` at the start of a line is a separator wherever it stands, so
/// the YAML specification; a document without content is none.
fn split(text: &str) -> Vec<(usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = vec![(0, String::new())];
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker = |marker: &str| {
            line.strip_prefix(marker)
                .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        };
        if let Some(rest) = marker("---") {
            documents.push((number, format!("   {rest}")));
        } else if marker("...").is_some() {
            documents.push((number + 1, String::new()));
        } else if let Some((_, document)) = documents.last_mut() {
            let is_directive = line.starts_with('%') && is_blank(document);
            document.push_str(if is_directive { "\n" } else { line });
        }
    }
    documents.retain(|(_, document)| !is_blank(document));
    documents
}

fn is_blank(document: &str) -> bool {
    document
        .lines()
        .map(str::trim_start)
        .all(|line| line.is_empty() || line.starts_with('#'))
}

/// Something wrong in a document; the line counts from 1 within it.
struct Wrong {
    line: Option<usize>,
    path: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(
    rename_all = "camelCase",
    expecting = "a Configuration with apiVersion, kind, metadata and spec"
)]
struct Header {
    #[serde(default)]
    kind: Value,
}

#[derive(Deserialize)]
struct Named {
    metadata: Value,
}

fn parse(text: &str) -> Result<Configuration, Vec<Wrong>> {
    let header: Header = serde_yaml_ng::from_str(text).map_err(|error| vec![wrong("", &error)])?;
    if let Some(message) = header.kind.as_str().and_then(foreign_kind) {
        return Err(vec![Wrong {
            line: locate(text, "kind"),
            path: "kind".to_owned(),
            message,
        }]);
    }
    let deserializer = serde_yaml_ng::Deserializer::from_str(text);
    let manifest: Manifest = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        vec![wrong(if path == "." { "" } else { &path }, error.inner())]
    })?;
    let mut configuration = Configuration::try_from(manifest).map_err(|problems| {
        let at = |problem: FieldProblem| Wrong {
            line: locate(text, &problem.path),
            path: problem.path,
            message: problem.message,
        };
        problems.into_iter().map(at).collect::<Vec<_>>()
    })?;
    let name = configuration.key.to_string();
    configuration.uid = Uuid::new_v5(&UIDS, name.as_bytes()).to_string();
    Ok(configuration)
}

fn foreign_kind(kind: &str) -> Option<String> {
    match kind {
        "Configuration" => None,
        "Secret" | "ConfigMap" => Some(format!(
            "is {kind:?}, and only Configurations belong here; its keys go into files {}/NAME/KEY beside the folder",
            if kind == "Secret" {
                "secrets"
            } else {
                "configmaps"
            }
        )),
        _ if kind.ends_with("List") => Some(format!(
            "is {kind:?}; write its items as documents of their own, with a line '---' between them"
        )),
        _ => Some(format!(
            "is {kind:?}, must be \"Configuration\": nothing else belongs here"
        )),
    }
}

/// The error of the reader, with its path and line apart from the text.
fn wrong(path: &str, error: &serde_yaml_ng::Error) -> Wrong {
    let text = error.to_string();
    let text = text
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(&text);
    let line = error.location().map(|location| location.line());
    let suffix = line.and_then(|line| text.rfind(&format!(" at line {line} ")));
    let message = suffix.and_then(|end| text.get(..end)).unwrap_or(text);
    Wrong {
        line,
        path: path.to_owned(),
        message: message.to_owned(),
    }
}

/// The name in a document, where that much can be read.
fn name(text: &str) -> Option<ConfigurationKey> {
    let named: Named = serde_yaml_ng::from_str(text).ok()?;
    let field = |name: &str| named.metadata.get(name).and_then(Value::as_str);
    let namespace = field("namespace").unwrap_or("default");
    ConfigurationKey::new(namespace, field("name")?).ok()
}

#[cfg(test)]
mod tests;
