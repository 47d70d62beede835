//! Reads and writes YAML as kubectl does, with the place of each field: booleans and numbers of YAML 1.1, merge keys, no key twice. Pure.
//!
//! The length of the text bounds work and memory, even if the text has aliases. Does not interpret documents.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{
    Error, Location, MessageFormatter as _, Options, Spanned, UserMessageFormatter,
};

mod decode;
mod strict;
mod wording;

pub use decode::decode;
pub use strict::Strict;
pub use wording::reworded;

/// Maximum nesting depth of maps and lists.
const MAX_DEPTH: usize = 32;

/// Mistake in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line in the text, from 1.
    pub line: Option<usize>,
    /// Path of the field, such as `spec.capacity`; empty for the whole text.
    pub path: String,
    /// Description of the mistake, with the remedy.
    pub message: String,
}

impl Mistake {
    /// Creates a mistake of the whole text, or of a line without a known field.
    fn new(line: Option<usize>, message: impl Into<String>) -> Self {
        Self {
            line,
            path: String::new(),
            message: message.into(),
        }
    }

    /// Returns the message with the line.
    pub fn with_line(&self) -> String {
        match self.line {
            Some(line) => format!("{} (line {line})", self.message),
            None => self.message.clone(),
        }
    }
}

/// Reads a text. A field without a value is read as absent.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let document = Document::read(text)?;
    serde_path_to_error::deserialize(Strict(&document.value())).map_err(|error| {
        let path = error.path().to_string();
        document.mistake(&path, &error.into_inner().to_string())
    })
}

/// Reads all documents of a text as JSON, without fields that have no value.
pub fn read_all(text: &str) -> Result<Vec<Value>, Mistake> {
    let all: Result<Vec<Node>, _> = serde_saphyr::from_multiple_with_options(text, options(text));
    all.map(|all| all.iter().map(Node::value).collect())
        .map_err(|error| syntax(text, &error))
}

/// Returns the mistake of the first line whose content begins with a no-break space, or that has one after the colon of its field: it looks like
/// a space, but YAML does not read it as one.
pub fn no_break_space(text: &str) -> Option<Mistake> {
    let line = wording::no_break(text, 1, usize::MAX)?;
    Some(Mistake::new(Some(line), wording::NO_BREAK))
}

/// Serializes a value as a YAML document. Writes a text on several lines only if it has line breaks.
pub fn write(value: &impl Serialize) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options)
}

/// Returns the limits and rules for reading `text`.
fn options(text: &str) -> Options {
    // Only aliases can make the parsed document larger than its text.
    let most = 2 * text.len() + 10_000;
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            flow_nesting_limit: MAX_DEPTH,
            max_depth: MAX_DEPTH,
            max_events: most,
            max_nodes: most,
            max_documents: most,
            max_aliases: most,
            max_anchors: most,
            max_merge_keys: most,
            max_recorded_anchor_events: most,
            max_total_scalar_bytes: most,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: most },
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// Document with the place of each field.
#[derive(Debug)]
pub struct Document<'a> {
    text: &'a str,
    root: Spanned<Node>,
}

#[derive(Debug)]
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar(Value),
}

impl<'a> Document<'a> {
    /// Reads a text with one document.
    pub fn read(text: &'a str) -> Result<Self, Mistake> {
        match serde_saphyr::from_str_with_options(text, options(text)) {
            Ok(root) => Ok(Self { text, root }),
            Err(error) => Err(syntax(text, &error)),
        }
    }

    /// Returns the document as JSON, without fields that have no value.
    pub fn value(&self) -> Value {
        self.root.value.value()
    }

    /// Returns the line of a field, from 1 as in editors, or that of its nearest existing parent.
    pub fn line(&self, path: &str) -> Option<usize> {
        line(self.text, find(&self.root.value, path)?)
    }

    /// Replaces the numbers and booleans of a field with their text as written, and calls `found` with the path, the old value and the text of each.
    /// In `field`, `[]` stands for each item of a list, and `{}` for each entry of a map.
    pub fn make_text(&mut self, field: &str, mut found: impl FnMut(String, &Value, &str)) {
        make_text(self.text, &mut self.root, field, String::new(), &mut found);
    }

    /// Converts the message of a JSON reader to the mistake of the field at `path` of [`Self::value`].
    pub fn mistake(&self, path: &str, message: &str) -> Mistake {
        let path = if path == "." { "" } else { path };
        let line = self
            .line(path)
            .or_else(|| line(self.text, &self.root.referenced));
        Mistake {
            line,
            path: path.to_owned(),
            message: wording::template(self.text, line)
                .unwrap_or_else(|| wording::reworded(message)),
        }
    }
}

/// Returns the location of a field below `node`, or that of its nearest existing parent.
fn find<'n>(node: &'n Node, path: &str) -> Option<&'n Location> {
    let (place, child, rest) = match node {
        Node::Map(entries) => {
            let found = entries.iter().filter_map(|(key, child)| {
                let rest = path.strip_prefix(key.value.as_str())?;
                let is_whole = rest.is_empty() || rest.starts_with(['.', '[']);
                is_whole.then_some((&key.defined, child, rest))
            });
            found.min_by_key(|(_, _, rest)| rest.len())?
        }
        Node::List(items) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            (&item.defined, item, rest)
        }
        Node::Scalar(_) => return None,
    };
    let deeper = find(&child.value, rest.strip_prefix('.').unwrap_or(rest));
    deeper.or(Some(place))
}

fn make_text(
    text: &str,
    node: &mut Spanned<Node>,
    field: &str,
    path: String,
    found: &mut impl FnMut(String, &Value, &str),
) {
    match &mut node.value {
        Node::List(items) => {
            let Some(rest) = field.strip_prefix("[]") else {
                return;
            };
            for (index, item) in items.iter_mut().enumerate() {
                make_text(text, item, rest, format!("{path}[{index}]"), found);
            }
        }
        Node::Map(entries) => {
            let field = field.strip_prefix('.').unwrap_or(field);
            for (key, child) in entries {
                let rest = match field.strip_prefix("{}") {
                    Some(rest) => rest,
                    None => match field.strip_prefix(key.value.as_str()) {
                        Some(rest) if rest.is_empty() || rest.starts_with(['.', '[', '{']) => rest,
                        _ => continue,
                    },
                };
                let dot = if path.is_empty() { "" } else { "." };
                make_text(
                    text,
                    child,
                    rest,
                    format!("{path}{dot}{}", key.value),
                    found,
                );
            }
        }
        Node::Scalar(value) if field.is_empty() && (value.is_number() || value.is_boolean()) => {
            let written =
                written(text, &node.defined).map_or_else(|| value.to_string(), str::to_owned);
            found(path, value, &written);
            *value = written.into();
        }
        Node::Scalar(_) => {}
    }
}

fn written<'t>(text: &'t str, location: &Location) -> Option<&'t str> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    text.get(start..start.checked_add(length)?)
}

/// Returns the line of a location, from 1. Counts line feeds only, as editors do; in YAML other characters end lines, too.
fn line(text: &str, location: &Location) -> Option<usize> {
    let offset = usize::try_from(location.span().offset()).ok()?;
    let before = text.chars().take(offset);
    Some(before.filter(|character| *character == '\n').count() + 1)
}

/// Converts an error of the YAML reader to the mistake of the text.
fn syntax(text: &str, error: &Error) -> Mistake {
    let error = match error {
        Error::AliasError { error, .. } => error,
        error => error,
    };
    let line = error.location().and_then(|location| line(text, &location));
    // The value that is open at the mistake may have begun on the line before.
    let near = line.and_then(|line| wording::no_break(text, line.saturating_sub(1), 2));
    if near.is_some() {
        return Mistake::new(near, wording::NO_BREAK);
    }
    let message = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("has {key} twice; remove one")
        }
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => wording::TOO_DEEP.to_owned(),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            "has aliases that stand for too much; write out what is repeated".to_owned()
        }
        error => wording::syntax(&UserMessageFormatter.format_message(error)),
    };
    let line = wording::tab(text, line, &message).or(line);
    Mistake::new(line, wording::template(text, line).unwrap_or(message))
}

impl Node {
    fn value(&self) -> Value {
        match self {
            Self::Map(entries) => entries
                .iter()
                .filter(|(_, child)| !matches!(child.value, Self::Scalar(Value::Null)))
                .map(|(key, child)| (key.value.clone(), child.value.value()))
                .collect(),
            Self::List(items) => items.iter().map(|item| item.value.value()).collect(),
            Self::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, is: bool) -> Result<Node, E> {
        Ok(Node::Scalar(is.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Scalar(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}

#[cfg(test)]
mod tests;
