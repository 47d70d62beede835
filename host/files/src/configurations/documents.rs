//! The text of a Configuration file: its documents, and the problems with their lines. Pure.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::configuration::{Configuration, FieldProblem, Manifest, unknown_annotations};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::SourceProblem;
use leafhost_core::properties::invalid_references;
use leafhost_core::yaml::{self, Mistake, Strict};
use serde_json::Value;
use uuid::Uuid;

mod fields;
mod scalars;

/// Namespace of the uids: a Configuration of one namespace and name has one uid on every machine.
const UIDS: Uuid = Uuid::from_u128(0x6c65_6166_686f_7374_2d63_6f6e_6669_6773);

/// A good document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Path or name of the file.
    pub file: String,
    /// Configuration in the document.
    pub configuration: Configuration,
    /// Text of the document, without separators.
    pub(super) text: String,
    /// Number of lines of the file before the document.
    first_line: usize,
}

impl Document {
    /// Returns the line of a field, or of the nearest parent that exists, from 1.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        Some(self.first_line + line_in(&self.text, path)?)
    }

    /// Returns the line of a field in its `discoveryDetails`, from 1: that of the details themselves if the field is not found in the file, or
    /// `field` is empty.
    pub fn line_in_details(&self, field: &str) -> Option<usize> {
        let line = self.line_of(DETAILS)?;
        // Otherwise a line of the details need not be a line of the file.
        let is_literal = self.is_literal(line);
        let within = is_literal.then(|| line_in(&self.configuration.details, field));
        Some(line + within.flatten().unwrap_or(0))
    }

    /// Returns true if the value at `line` is a literal block (`|`), whose lines are also lines of the file.
    fn is_literal(&self, line: usize) -> bool {
        let number = line.checked_sub(self.first_line + 1);
        let written = number.and_then(|number| self.text.split('\n').nth(number));
        let value = written.and_then(|written| written.split_once(':'));
        value.is_some_and(|(_, value)| value.trim_start().starts_with('|'))
    }
}

/// Returns the line of a field in a text, or of the nearest parent that exists; of the mistake if the text cannot be read.
fn line_in(text: &str, path: &str) -> Option<usize> {
    match yaml::Document::read(text) {
        Ok(document) => document.line(path),
        Err(mistake) => mistake.line,
    }
}

/// Result of reading files once.
#[derive(Debug, Default, PartialEq)]
pub struct Reading {
    /// Good documents.
    pub documents: Vec<Document>,
    /// Problems of the other documents.
    pub problems: Vec<SourceProblem>,
    /// Warnings about fields without effect.
    pub warnings: Vec<SourceProblem>,
    /// Configuration that an unreadable document seems to contain, by the index of its problem. The document may contain others, too.
    pub(super) supposed: BTreeMap<usize, ConfigurationKey>,
}

impl Reading {
    /// Returns the problems of property references that are invalid for an agent which reads values from `namespaces` and from the
    /// Configuration's own namespace.
    pub fn invalid_references(&self, namespaces: &BTreeSet<String>) -> Vec<SourceProblem> {
        let wrong = self.documents.iter().flat_map(|document| {
            let wrong = invalid_references(&document.configuration, namespaces).into_iter();
            wrong.map(move |wrong| SourceProblem {
                line: document.line_of(&wrong.path),
                path: wrong.path,
                configuration: Some(document.configuration.key.clone()),
                ..SourceProblem::new(&document.file, wrong.message)
            })
        });
        wrong.take(MAX_PROBLEMS).collect()
    }
}

const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";
/// Maximum number of problems that are reported about a file, and of warnings.
const MAX_PROBLEMS: usize = 100;

/// Problems or warnings that are reported about a file.
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

/// Reads the text of a Configuration file as the agent does. `file` is the name in the problems. Each document is read by itself, so a broken one
/// does not affect the others.
pub fn read(file: &str, text: &str) -> Reading {
    let mut documents = Vec::new();
    let (mut problems, mut warnings) = (FileProblems::new(file), FileProblems::new(file));
    let mut known = BTreeSet::new();
    let mut supposed = BTreeMap::new();
    for (first_line, text) in split(text) {
        let Parsed {
            configuration,
            key,
            is_whole,
            without_effect,
        } = parse(&text);
        match configuration {
            Ok(configuration) if known.insert(configuration.key.clone()) => {
                documents.push(Document {
                    file: file.to_owned(),
                    configuration,
                    text,
                    first_line,
                });
            }
            Ok(Configuration { key, .. }) => {
                let path = "metadata.name".to_owned();
                let mistake = Mistake {
                    line: line_in(&text, &path),
                    path,
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

/// A document that was read.
struct Parsed {
    configuration: Result<Configuration, Vec<Mistake>>,
    /// Name of the Configuration, if it can be read.
    key: Option<ConfigurationKey>,
    /// True if the document was read to its end. Otherwise the name comes from before the mistake.
    is_whole: bool,
    /// Fields without effect.
    without_effect: Vec<Mistake>,
}

fn parse(text: &str) -> Parsed {
    let mut document = match yaml::Document::read(text) {
        Ok(document) => document,
        Err(mistake) => {
            return Parsed {
                key: name_before(text, &mistake),
                configuration: Err(vec![mistake]),
                is_whole: false,
                without_effect: Vec::new(),
            };
        }
    };
    let key = name(&document.value());
    let (names, values) = scalars::as_text(&mut document);
    let value = document.value();
    let (mut unknown, mut ignored) = (Vec::new(), Vec::new());
    let configuration = read_header(&value, &document)
        .and_then(|()| read_manifest(&value, &document, &mut unknown))
        .and_then(|manifest| {
            ignored.extend(manifest.spec.only_in_clusters());
            ignored.extend(unknown_annotations(&manifest.metadata.annotations));
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
                _ => Err(located(problems, &document)),
            }
        })
        .map(|mut configuration| {
            let name = configuration.key.to_string();
            configuration.uid = Uuid::new_v5(&UIDS, name.as_bytes()).to_string();
            configuration
        });
    let configuration = configuration.map_err(|mut mistakes| {
        if let Some(space) = yaml::no_break_space(text) {
            mistakes.insert(0, space);
        }
        mistakes
    });
    ignored.extend(values);
    Parsed {
        configuration,
        key,
        is_whole: true,
        without_effect: located(unknown.into_iter().chain(ignored), &document),
    }
}

fn read_header(value: &Value, document: &yaml::Document<'_>) -> Result<(), Vec<Mistake>> {
    let fail = |path, message| Err(vec![document.mistake(path, message)]);
    if value.get("apiVersion").is_none() {
        return fail(
            "",
            "is not a Configuration (first line: apiVersion: akri.sh/v0)",
        );
    }
    match value.get("kind").and_then(Value::as_str) {
        None | Some("Configuration") => Ok(()),
        Some(kind) => {
            let message = format!(
                "is {kind:?}, must be \"Configuration\"; write the items of a list as documents of their own, with a line '---' between them, and the keys of Secrets and ConfigMaps into files secrets/NAME/KEY and configmaps/NAME/KEY next to the folder"
            );
            fail("kind", &message)
        }
    }
}

/// Returns true for the message about a map or a list in place of a text.
fn is_nested(message: &str) -> bool {
    message.starts_with("is a ") && message.contains(", must be text")
}

fn read_manifest(
    value: &Value,
    document: &yaml::Document<'_>,
    unknown: &mut Vec<FieldProblem>,
) -> Result<Manifest, Vec<Mistake>> {
    let mut track = serde_path_to_error::Track::new();
    let reader = serde_path_to_error::Deserializer::new(Strict(value), &mut track);
    serde_ignored::deserialize(reader, |path| unknown.extend(fields::warning(&path))).map_err(
        |error: serde_json::Error| {
            let mut mistake = document.mistake(&track.path().to_string(), &error.to_string());
            if mistake.path == DETAILS && is_nested(&mistake.message) {
                "must be text; write `discoveryDetails: |` and indent what follows"
                    .clone_into(&mut mistake.message);
            }
            vec![mistake]
        },
    )
}

/// Adds line numbers to the first problems.
fn located(
    fields: impl IntoIterator<Item = FieldProblem>,
    document: &yaml::Document<'_>,
) -> Vec<Mistake> {
    let at = |(index, field): (usize, FieldProblem)| Mistake {
        line: (index < MAX_PROBLEMS)
            .then(|| document.line(&field.path))
            .flatten(),
        path: field.path,
        message: field.message,
    };
    fields.into_iter().enumerate().map(at).collect()
}

/// Returns the key of the Configuration in a document.
fn name(document: &Value) -> Option<ConfigurationKey> {
    let metadata = document.get("metadata")?;
    let field = |name: &str| metadata.get(name).and_then(Value::as_str);
    let namespace = field("namespace").unwrap_or("default");
    ConfigurationKey::new(namespace, field("name")?).ok()
}

/// Returns the key of the Configuration in the lines before a mistake.
fn name_before(text: &str, mistake: &Mistake) -> Option<ConfigurationKey> {
    let mut line = mistake.line;
    // A list, map or text that contains the mistake may begin some lines before it.
    for _ in 0..8 {
        let lines = text.split_inclusive('\n').take(line?.checked_sub(1)?);
        match yaml::Document::read(&lines.collect::<String>()) {
            Ok(document) => return name(&document.value()),
            Err(earlier) => line = earlier.line.filter(|earlier| Some(*earlier) < line),
        }
    }
    None
}

#[cfg(test)]
mod tests;
