//! Reads `discoveryDetails` and reports the fields that are wrong, missing or unknown.

mod mistakes;
mod unknown;
mod wording;

use serde::de::DeserializeOwned;

use self::unknown::{Unknown, join};
use self::wording::reworded;
use crate::Problem;

/// Maximum number of unknown fields that are reported.
const MAX_UNKNOWN: usize = 20;

/// Parses details from YAML; an empty text is read as `{}`. An unknown field is a problem, because a misspelt filter would
/// let every device through.
pub(crate) fn parse<D: DeserializeOwned>(text: &str) -> Result<D, Vec<Problem>> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let mut track = serde_path_to_error::Track::new();
    let mut unknown = Vec::new();
    let yaml = serde_yaml_ng::Deserializer::from_str(text);
    let tracked = serde_path_to_error::Deserializer::new(yaml, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| {
        if unknown.len() < MAX_UNKNOWN {
            unknown.extend(Unknown::find::<D>(&path));
        }
    });
    let failed = |error: serde_yaml_ng::Error| {
        problem(&track.path().to_string(), &error.to_string(), &mut unknown)
    };
    let mut problems: Vec<Problem> = Vec::new();
    let read: Option<D> = read.map_err(|error| problems.push(failed(error))).ok();
    problems.extend(unknown.iter().map(Unknown::problem));
    read.filter(|_| problems.is_empty()).ok_or(problems)
}

/// Converts an error of the YAML reader into a [`Problem`]. The reader puts its own path before the message and names a
/// missing field only in the message. If an unknown field may be the missing one, the problem names both, and the field is
/// removed from `unknown`.
fn problem(path: &str, message: &str, unknown: &mut Vec<Unknown>) -> Problem {
    let path = if matches!(path, "." | "?") { "" } else { path };
    let message = message
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or_else(|| without_path(message));
    let missing = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split_once('`'));
    if let Some((field, _)) = missing {
        let path = join(path, field);
        let is_suggested =
            |other: &Unknown| other.suggestion == Some(field) && other.sibling(field) == path;
        return match unknown.iter().position(is_suggested) {
            Some(place) => {
                let name = unknown.remove(place).name;
                Problem::new(
                    path,
                    format!("is missing; {name} is unknown, did you mean {field}?"),
                )
            }
            None => Problem::new(path, "is missing"),
        };
    }
    Problem::new(path, reworded(message))
}

/// Strips the path that the YAML reader puts before the message, for a path written differently from ours.
fn without_path(message: &str) -> &str {
    let mistakes = ["invalid type: ", "invalid value: ", "invalid length "];
    let found = mistakes.iter().find_map(|begin| message.find(begin));
    let Some((path, mistake)) = found.map(|start| message.split_at(start)) else {
        return message;
    };
    let is_path = path
        .strip_suffix(": ")
        .is_some_and(|path| !path.contains(' '));
    if is_path { mistake } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Details {
        udev_rules: Vec<String>,
        #[serde(default)]
        filter: Option<Filter>,
        #[serde(default)]
        list: Vec<Named>,
        #[serde(default)]
        map: std::collections::BTreeMap<String, Named>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Named {
        #[serde(default)]
        name: String,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Filter {
        action: Action,
        items: Vec<u8>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    enum Action {
        Include,
        Exclude,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct AllOptional {
        #[serde(default)]
        count: u8,
    }

    #[test]
    fn the_invalid_field_is_reported() {
        for (text, path, words) in [
            (
                "udevRules: [[a]]",
                "udevRules[0]",
                "is a list, must be text",
            ),
            ("udevRules: a", "udevRules", "is \"a\", must be a list"),
            ("other: 1", "udevRules", "is missing"),
            (
                "udevRule: []",
                "udevRules",
                "is missing; udevRule is unknown, did you mean udevRules?",
            ),
            (
                "udevRules: []\nfilter: {items: []}",
                "filter.action",
                "is missing",
            ),
            (
                "udevRules: []\nfilter: {action: Include, items: [1, 2, 300]}",
                "filter.items[2]",
                "is 300, must be a whole number from 0 to 255",
            ),
            (
                "udevRules: []\nfilter: {action: Inclde, items: []}",
                "filter.action",
                "is \"Inclde\", must be Include or Exclude",
            ),
            ("udevRules: [a", "udevRules", "line 2 column 1"),
            ("udevRules:\n - a\n- b", "", "did not find expected key"),
            (
                "udevRules:\n-a==b\nlinks: true",
                "udevRules",
                "write a space after ':' and '-'",
            ),
            ("udevRules:\n\t- a", "udevRules", "indent with spaces"),
            ("- a", "", "is a list, must be a map"),
            ("", "udevRules", "is missing"),
        ] {
            let problem = parse::<Details>(text).unwrap_err().remove(0);
            assert_eq!(problem.path, path, "{text}: {}", problem.message);
            assert!(
                problem.message.contains(words),
                "{text}: {}",
                problem.message
            );
            assert!(
                !problem.message.starts_with(path) || path.is_empty(),
                "{}",
                problem.message
            );
        }
    }

    #[test]
    fn every_unknown_field_is_a_problem() {
        let shown = |text: &str| -> Vec<String> {
            let problems = parse::<Details>(text).unwrap_err();
            problems.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown(
                "udevRules: []\nlater: {a: 1}\nfilter: {items: [], action: Include, Item: 1}\nmap: {x: {nme: a}}"
            ),
            [
                "later: unknown field later; known: udevRules, filter, list, map",
                "filter.Item: unknown field Item; did you mean items?",
                "map.x.nme: unknown field nme; did you mean name?",
            ]
        );
        assert_eq!(
            shown("list: [{name: a}, {nam: b, size: 2}]\nudevrules: []"),
            [
                "udevRules: is missing; udevrules is unknown, did you mean udevRules?",
                "list[1].nam: unknown field nam; did you mean name?",
                "list[1].size: unknown field size; known: name",
            ]
        );
        let many: String = (0..50).map(|key| format!("k{key}: 1\n")).collect();
        assert_eq!(shown(&format!("{many}udevRules: []")).len(), MAX_UNKNOWN);
    }

    #[test]
    fn a_field_whose_value_the_type_discards_is_known() {
        #[derive(Debug, serde::Deserialize)]
        struct Discards {
            #[serde(rename = "comment")]
            _comment: serde::de::IgnoredAny,
        }
        assert!(parse::<Discards>("comment: {a: 1}").is_ok());
    }

    #[test]
    fn a_type_may_take_any_field() {
        #[derive(Debug, serde::Deserialize)]
        struct Open {
            count: u8,
            #[serde(flatten)]
            _rest: serde::de::IgnoredAny,
        }
        assert_eq!(parse::<Open>("{count: 1, later: {a: 1}}").unwrap().count, 1);
    }

    #[test]
    fn an_empty_text_is_an_empty_map() {
        for text in ["", "  \n", "# nothing\n", "{}", "count: 0"] {
            assert_eq!(parse(text), Ok(AllOptional { count: 0 }), "{text:?}");
        }
    }
}
