//! The text of a Configuration file: its documents, and what is wrong with which line. Pure.

use std::fmt;

use leafhost_core::configuration::{Configuration, FieldProblem, Manifest};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::SourceProblem;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_yaml_ng::Value;
use uuid::Uuid;

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

/// The line of a field, or of the nearest one around it that is there.
fn locate(text: &str, path: &str) -> Option<usize> {
    let mut path = path;
    while !path.is_empty() {
        let deserializer = serde_yaml_ng::Deserializer::from_str(text);
        if let Err(found) = Walk(path).deserialize(deserializer) {
            return found.location().map(|location| location.line());
        }
        path = path.rfind(['.', '[']).and_then(|end| path.get(..end))?;
    }
    None
}

/// Walks to a field and fails there: the reader tells where it was.
struct Walk<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.0.is_empty() {
            deserializer.deserialize_any(Here)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Value>()? {
            let rest = key.as_str().and_then(|key| self.0.strip_prefix(key));
            match rest {
                Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => {
                    map.next_value_seed(Walk(rest.strip_prefix('.').unwrap_or(rest)))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self
            .0
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        let wanted = inner.and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest)));
        for index in 0_usize.. {
            match wanted {
                Some((at, rest)) if at == index => {
                    let rest = rest.strip_prefix('.').unwrap_or(rest);
                    if list.next_element_seed(Walk(rest))?.is_none() {
                        break;
                    }
                }
                _ => {
                    if list.next_element::<IgnoredAny>()?.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Refuses whatever it meets.
struct Here;

impl Visitor<'_> for Here {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing: only the place is wanted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata:\n  name: NAME\nspec:\n  discoveryHandler:\n    name: udev\n";

    fn good(name: &str) -> String {
        GOOD.replace("NAME", name)
    }

    #[test]
    fn several_documents_are_read_and_each_has_a_uid_of_its_name() {
        let text = format!(
            "# head\n{}---\n# nothing\n--- # next\n{}...\n%YAML 1.2\n---\n{}",
            good("a"),
            good("b"),
            good("c")
        );
        let reading = read("f.yaml", &text);
        assert_eq!(reading.problems, []);
        let names: Vec<_> = reading
            .documents
            .iter()
            .map(|d| d.configuration.key.name())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        let again = read("g.yaml", &good("b"));
        assert_eq!(
            again.documents[0].configuration.uid,
            reading.documents[1].configuration.uid
        );
        assert_ne!(
            again.documents[0].configuration.uid,
            reading.documents[0].configuration.uid
        );
    }

    #[test]
    fn a_kept_text_reads_as_the_same_document() {
        let reading = read(
            "f.yaml",
            &format!(
                "--- {{apiVersion: akri.sh/v0, kind: Configuration, metadata: {{name: a}}, spec: {{discoveryHandler: {{name: x}}}}}}\n---\n{}",
                good("b")
            ),
        );
        let texts: Vec<_> = reading.documents.iter().map(|d| d.text.as_str()).collect();
        let again = read("f.yaml", &texts.join("\n---\n"));
        let configurations = |reading: Reading| {
            reading
                .documents
                .into_iter()
                .map(|d| d.configuration)
                .collect::<Vec<_>>()
        };
        assert_eq!(configurations(again), configurations(reading));
    }

    #[test]
    fn every_problem_has_its_line_path_and_remedy_and_spoils_no_other_document() {
        // The line counts from the start of the document, which is the tenth of the file.
        for (from, to, line, path, words) in [
            (
                "  name: NAME\n",
                "  name: [\n",
                6,
                "",
                "did not find expected",
            ),
            (
                "name: NAME",
                "name: NAME\n  name: b",
                4,
                "metadata",
                "duplicate field",
            ),
            (
                "kind: Configuration",
                "kind: Instance",
                2,
                "kind",
                "must be \"Configuration\"",
            ),
            (
                "kind: Configuration",
                "kind: List",
                2,
                "kind",
                "documents of their own",
            ),
            (
                "kind: Configuration",
                "kind: Secret",
                2,
                "kind",
                "secrets/NAME/KEY",
            ),
            (
                "kind: Configuration",
                "kind: ConfigMap",
                2,
                "kind",
                "configmaps/NAME/KEY",
            ),
            ("kind: Configuration\n", "", 1, "", "missing field `kind`"),
            (
                "akri.sh/v0",
                "v1",
                1,
                "apiVersion",
                "must be \"akri.sh/v0\"",
            ),
            ("NAME", "Wrong_Name", 4, "metadata.name", "Wrong_Name"),
            (
                "spec:\n",
                "spec:\n  capacity: 0\n",
                6,
                "spec.capacity",
                "must be 1 to",
            ),
            (
                "spec:\n",
                "spec:\n  capacity: -1\n",
                6,
                "spec.capacity",
                "must be 1 to",
            ),
            (
                "spec:\n",
                "spec:\n  capacity: many\n",
                6,
                "spec.capacity",
                "expected i64",
            ),
            (
                "name: udev\n",
                "name: udev\n    discoveryProperties:\n    - name: a\n    - {name: b, valueFrom: {}}\n",
                10,
                "spec.discoveryHandler.discoveryProperties[1].valueFrom",
                "exactly one of",
            ),
            (
                "name: udev\n",
                "name: udev\n    discoveryProperties:\n    - name: a\n    - name: a\n",
                10,
                "spec.discoveryHandler.discoveryProperties[1].name",
                "there twice",
            ),
            (
                "  name: NAME\n",
                "  name: NAME\n  annotations:\n    leafhost.dev/grace: soon\n",
                6,
                "metadata.annotations.leafhost.dev/grace",
                "soon",
            ),
            (
                "  discoveryHandler:\n    name: udev\n",
                "  {}\n",
                6,
                "spec",
                "missing field",
            ),
        ] {
            let broken = GOOD.replace(from, to).replace("NAME", "broken");
            let text = format!(
                "# one\n{}---\n{broken}---\n{}",
                good("before"),
                good("after")
            );
            let reading = read("f.yaml", &text);
            let [problem] = reading.problems.as_slice() else {
                panic!("{to}: {:?}", reading.problems);
            };
            let shown = problem.to_string();
            assert_eq!(
                (problem.line, problem.path.as_str()),
                (Some(line + 9), path),
                "{shown}"
            );
            assert!(
                problem.message.contains(words) && !problem.message.contains(" at line "),
                "{shown}"
            );
            let names: Vec<_> = reading
                .documents
                .iter()
                .map(|d| d.configuration.key.name())
                .collect();
            assert_eq!(names, ["before", "after"], "{to}");
        }
    }

    #[test]
    fn a_problem_names_its_configuration_where_that_can_be_read() {
        let reading = read(
            "f.yaml",
            &good("a").replace("spec:\n", "spec:\n  capacity: 0\n"),
        );
        assert_eq!(
            reading.problems[0]
                .configuration
                .as_ref()
                .unwrap()
                .to_string(),
            "default/a"
        );
        assert_eq!(read("f.yaml", "a: [").problems[0].configuration, None);
        assert!(
            read("f.yaml", "just words").problems[0]
                .message
                .contains("a Configuration with")
        );
    }

    #[test]
    fn the_same_name_twice_in_a_file_counts_once() {
        let reading = read("f.yaml", &format!("{}---\n{}", good("a"), good("a")));
        assert_eq!(reading.documents.len(), 1);
        assert_eq!(reading.problems[0].line, Some(12));
    }
}
