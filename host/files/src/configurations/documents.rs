//! The text of a Configuration file: its documents, and the problems with their lines. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leafhost_core::configuration::{Configuration, FieldProblem, Manifest};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::SourceProblem;
use leafhost_core::yaml_cost;
use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_yaml_ng::Value;
use uuid::Uuid;

mod fields;
mod locate;
mod merged;
mod scalars;
mod wording;
use fields::Unknown;
use locate::{line, locate};

/// Namespace of the uids: a Configuration of one namespace and name has one uid on every machine.
const UIDS: Uuid = Uuid::from_u128(0x6c65_6166_686f_7374_2d63_6f6e_6669_6773);

/// A good document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Configuration in the document.
    pub configuration: Configuration,
    /// Text of the document, without separators.
    pub text: String,
    /// Number of lines of the file before the document.
    pub first_line: usize,
}

impl Document {
    /// Returns the line of a field, or of the nearest parent that exists.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        let line = locate(&self.text, path, || true)?;
        Some(self.first_line + line)
    }

    /// Returns true if each line of the value at that line is a line of its own in the file.
    pub fn is_literal(&self, line: usize) -> bool {
        let number = line.checked_sub(self.first_line + 1);
        let written = number.and_then(|number| self.text.split('\n').nth(number));
        let value = written.and_then(|written| written.split_once(':'));
        value.is_some_and(|(_, value)| value.trim_start().starts_with('|'))
    }
}

/// Returns the line of a field in `discoveryDetails`, or of the nearest parent that exists; `None` if that takes too much work.
pub fn line_in_details(details: &str, path: &str) -> Option<usize> {
    let (mut left, steps) = (LOCATING, yaml_cost::steps(details));
    let reader = serde_yaml_ng::Deserializer::from_str(details);
    if !spend(&mut left, steps) || yaml_cost::has_alias_bomb(details, reader) {
        return None;
    }
    locate(details, path, || spend(&mut left, steps))
}

/// Result of reading a file.
#[derive(Debug, Default, PartialEq)]
pub struct Reading {
    /// Good documents.
    pub documents: Vec<Document>,
    /// Problems of the other documents.
    pub problems: Vec<SourceProblem>,
    /// Warnings about fields without effect.
    pub warnings: Vec<SourceProblem>,
    /// Configuration that an unreadable document seems to contain, by the index of its problem. The document may contain others, too.
    pub supposed: BTreeMap<usize, ConfigurationKey>,
}

/// Maximum work to read a file, see [`yaml_cost::steps`]: a second or two.
const READING: u64 = 1 << 30;
/// Maximum work to locate the lines of problems, which reads a document again for each: less than a second.
const LOCATING: u64 = 1 << 27;
/// Maximum number of problems of a file that are reported, and of warnings.
pub const MAX_PROBLEMS: usize = 100;

/// Remaining work for a file.
struct Budget {
    reading: u64,
    locating: u64,
}

impl Budget {
    /// Returns true if there is work left to read `text` that many times, and subtracts it.
    fn allows(&mut self, text: &str, times: u64) -> bool {
        spend(
            &mut self.reading,
            yaml_cost::steps(text).saturating_mul(times),
        )
    }

    /// Returns the line of a field, if there is work left to locate it.
    fn locate(&mut self, text: &str, path: &str) -> Option<usize> {
        let steps = yaml_cost::steps(text);
        locate(text, path, || spend(&mut self.locating, steps))
    }
}

fn spend(left: &mut u64, steps: u64) -> bool {
    let rest = left.checked_sub(steps);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// Problems or warnings that are reported of a file.
struct FileProblems<'a> {
    file: &'a str,
    list: Vec<SourceProblem>,
    omitted: usize,
}

impl<'a> FileProblems<'a> {
    fn new(file: &'a str) -> Self {
        Self {
            file,
            list: Vec::new(),
            omitted: 0,
        }
    }

    fn push(
        &mut self,
        first_line: usize,
        configuration: Option<&ConfigurationKey>,
        mistake: Mistake,
    ) {
        if self.list.len() == MAX_PROBLEMS {
            self.omitted += 1;
            return;
        }
        let FieldProblem { path, message } = FieldProblem::new(mistake.path, mistake.message);
        self.list.push(SourceProblem {
            source: self.file.to_owned(),
            line: mistake.line.map(|line| first_line + line),
            path,
            message,
            configuration: configuration.cloned(),
        });
    }

    fn finish(mut self, what: &str) -> Vec<SourceProblem> {
        if self.omitted > 0 {
            let message = format!(
                "has {} more {what}; fix the reported ones first",
                self.omitted
            );
            self.list.push(SourceProblem::new(self.file, message));
        }
        self.list
    }
}

/// Reads a file. Each document is read by itself, so a broken one does not affect the others.
pub fn read(file: &str, text: &str) -> Reading {
    let mut documents = Vec::new();
    let (mut problems, mut warnings) = (FileProblems::new(file), FileProblems::new(file));
    let mut budget = Budget {
        reading: READING,
        locating: LOCATING,
    };
    let mut known = BTreeSet::new();
    let mut supposed = BTreeMap::new();
    for (first_line, text) in split(text) {
        if let Some(message) = unreadable(&text, &mut budget) {
            let mistake = Mistake {
                line: Some(1),
                path: String::new(),
                message: message.to_owned(),
            };
            problems.push(first_line, None, mistake);
            continue;
        }
        let Parsed {
            configuration,
            without_effect,
        } = parse(&text, &mut budget);
        let (key, is_whole) = match &configuration {
            Ok(configuration) => (Some(configuration.key.clone()), true),
            Err(_) => name(&text),
        };
        match configuration {
            Ok(configuration) if known.insert(configuration.key.clone()) => {
                documents.push(Document {
                    configuration,
                    text,
                    first_line,
                });
            }
            Ok(Configuration { key, .. }) => {
                let mistake = Mistake {
                    line: budget.locate(&text, "metadata.name"),
                    path: "metadata.name".to_owned(),
                    message: format!(
                        "{key} is in this file already; the first one counts, remove or rename this one"
                    ),
                };
                problems.push(first_line, Some(&key), mistake);
                continue;
            }
            Err(mistakes) => {
                for mistake in mistakes {
                    if !is_whole && problems.list.len() < MAX_PROBLEMS {
                        supposed.extend(key.clone().map(|key| (problems.list.len(), key)));
                    }
                    let certain = key.as_ref().filter(|_| is_whole);
                    problems.push(first_line, certain, mistake);
                }
            }
        }
        for warning in without_effect {
            warnings.push(first_line, key.as_ref(), warning);
        }
    }
    Reading {
        documents,
        problems: problems.finish("problems"),
        warnings: warnings.finish("fields without effect"),
        supposed,
    }
}

/// Splits a text into documents with the number of lines before each. By the YAML specification, `---` at the start of a line is always a
/// separator; a document without content is skipped.
fn split(text: &str) -> Vec<(usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = vec![(0, String::new())];
    let mut begun = false;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker = |marker: &str| {
            line.strip_prefix(marker)
                .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        };
        if let Some(rest) = marker("---") {
            documents.push((number, format!("   {rest}")));
            begun = !is_blank(rest);
        } else if marker("...").is_some() {
            documents.push((number + 1, String::new()));
            begun = false;
        } else if let Some((_, document)) = documents.last_mut() {
            let is_directive = line.starts_with('%') && !begun;
            begun |= !is_directive && !is_blank(line);
            document.push_str(if is_directive { "\n" } else { line });
        }
    }
    documents.retain(|(_, document)| !is_blank(document));
    documents
}

fn is_blank(document: &str) -> bool {
    document
        .split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
        .map(str::trim_start)
        .all(|line| line.is_empty() || line.starts_with('#'))
}

/// A mistake in a document; the line counts from 1 within the document.
struct Mistake {
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

/// Returns the reason why a document is not parsed at all, if there is one.
fn unreadable(text: &str, budget: &mut Budget) -> Option<&'static str> {
    // Once for the aliases, once for merge keys and types, once for the kind, once for the whole, and once for the name if it has
    // a mistake.
    if !budget.allows(text, 5) {
        return Some(
            "is too much to read: the file is too large, or has too many brackets; split it, and write lists with `-`",
        );
    }
    let reader = serde_yaml_ng::Deserializer::from_str(text);
    yaml_cost::has_alias_bomb(text, reader)
        .then_some("has aliases that stand for too much; write out what is repeated")
}

/// A document that was read.
struct Parsed {
    configuration: Result<Configuration, Vec<Mistake>>,
    /// Fields without effect.
    without_effect: Vec<Mistake>,
}

fn parse(written: &str, budget: &mut Budget) -> Parsed {
    let whole: Option<Value> = serde_yaml_ng::from_str(written).ok();
    let merged = whole.as_ref().and_then(merged::text);
    let text = merged.as_deref().unwrap_or(written);
    let (mut unknown, mut ignored) = (Vec::new(), Vec::new());
    let configuration = read_header(text, budget)
        .and_then(|()| read_manifest(text, &mut unknown))
        .and_then(|manifest| {
            ignored.extend(manifest.spec.only_in_clusters());
            let names = whole.as_ref().map(scalars::names).unwrap_or_default();
            let read = Configuration::try_from(manifest);
            let mut problems = match &read {
                Ok(_) => Vec::new(),
                Err(problems) => problems.clone(),
            };
            // A value that is not a text is not a name either, and that is the better reason.
            problems.retain(|problem| !names.iter().any(|name| name.path == problem.path));
            problems.extend(names);
            match read {
                Ok(configuration) if problems.is_empty() => Ok(configuration),
                _ => Err(located(problems, written, budget)),
            }
        })
        .map_err(|mistakes| relocated(mistakes, merged.is_some(), written, budget))
        .map(|mut configuration| {
            let name = configuration.key.to_string();
            configuration.uid = Uuid::new_v5(&UIDS, name.as_bytes()).to_string();
            configuration
        });
    ignored.extend(whole.as_ref().map(scalars::values).unwrap_or_default());
    let unknown = unknown.iter().map(Unknown::warning);
    Parsed {
        configuration,
        without_effect: located(unknown.chain(ignored), written, budget),
    }
}

/// Returns the mistakes with their lines in the text as written, if the merged text was read.
fn relocated(
    mut mistakes: Vec<Mistake>,
    is_merged: bool,
    written: &str,
    budget: &mut Budget,
) -> Vec<Mistake> {
    if is_merged {
        for mistake in mistakes.iter_mut().take(MAX_PROBLEMS) {
            mistake.line = budget.locate(written, &mistake.path);
        }
    }
    mistakes
}

fn read_header(text: &str, budget: &mut Budget) -> Result<(), Vec<Mistake>> {
    let header: Header =
        serde_yaml_ng::from_str(text).map_err(|error| vec![mistake(text, "", &error)])?;
    let Some(message) = header.kind.as_str().and_then(foreign_kind) else {
        return Ok(());
    };
    Err(located([FieldProblem::new("kind", message)], text, budget))
}

fn read_manifest(text: &str, unknown: &mut Vec<Unknown>) -> Result<Manifest, Vec<Mistake>> {
    let mut track = serde_path_to_error::Track::new();
    let reader = serde_yaml_ng::Deserializer::from_str(text);
    let reader = serde_path_to_error::Deserializer::new(reader, &mut track);
    serde_ignored::deserialize(reader, |path| unknown.extend(Unknown::new(&path))).map_err(
        |error| {
            let path = track.path().to_string();
            let path = if path == "." { "" } else { &path };
            vec![mistake(text, path, &error)]
        },
    )
}

/// Adds the lines to the first problems.
fn located(
    fields: impl IntoIterator<Item = FieldProblem>,
    text: &str,
    budget: &mut Budget,
) -> Vec<Mistake> {
    let at = |(index, field): (usize, FieldProblem)| Mistake {
        line: (index < MAX_PROBLEMS)
            .then(|| budget.locate(text, &field.path))
            .flatten(),
        path: field.path,
        message: field.message,
    };
    fields.into_iter().enumerate().map(at).collect()
}

fn foreign_kind(kind: &str) -> Option<String> {
    match kind {
        "Configuration" => None,
        "Secret" | "ConfigMap" => Some(format!(
            "is {kind:?}, and only Configurations belong here; its keys go into files {}/NAME/KEY next to the folder",
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

/// Converts the reader's error, with its path and line separate from the text.
fn mistake(text: &str, path: &str, error: &serde_yaml_ng::Error) -> Mistake {
    let whole = error.to_string();
    let message = whole
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(&whole);
    let place = error.location();
    let suffix = place.as_ref().and_then(|place| {
        let suffix = format!(" at line {} ", place.line());
        message.rfind(&suffix)
    });
    let message = suffix.and_then(|end| message.get(..end)).unwrap_or(message);
    let line = place.map(|place| line(text, &place));
    Mistake {
        line,
        path: path.to_owned(),
        message: wording::reworded(text, line, path, message),
    }
}

/// Returns the name in a document, and true if the document was read to its end. Otherwise the name comes from before the mistake.
fn name(text: &str) -> (Option<ConfigurationKey>, bool) {
    let mut metadata = Value::Null;
    let reader = serde_yaml_ng::Deserializer::from_str(text);
    let is_whole = reader.deserialize_any(Metadata(&mut metadata)).is_ok();
    let field = |name: &str| metadata.get(name).and_then(Value::as_str);
    let namespace = field("namespace").unwrap_or("default");
    let key = field("name").and_then(|name| ConfigurationKey::new(namespace, name).ok());
    (key, is_whole)
}

/// Keeps the value of `metadata`, even if the rest cannot be read.
struct Metadata<'a>(&'a mut Value);

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Value>()? {
            if key.as_str() != Some("metadata") {
                map.next_value::<IgnoredAny>()?;
            } else if self.0.is_null() {
                *self.0 = map.next_value()?;
            } else {
                return Err(A::Error::custom("has metadata twice"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
