//! Reads `discoveryDetails`, and says which field is wrong if they cannot be read.

use serde::de::DeserializeOwned;

use crate::Problem;

/// Reads details from YAML; no text at all is `{}`.
pub(crate) fn parse<D: DeserializeOwned>(text: &str) -> Result<D, Problem> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let mut track = serde_path_to_error::Track::new();
    let yaml = serde_yaml_ng::Deserializer::from_str(text);
    D::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
        .map_err(|error| problem(&track.path().to_string(), &error.to_string()))
}

/// The YAML reader puts its own path before the message, and names a missing field only in the message.
fn problem(path: &str, message: &str) -> Problem {
    let path = if path == "." { "" } else { path };
    let message = message
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(message);
    let missing = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split_once('`'));
    match missing {
        Some((field, _)) if path.is_empty() => Problem::new(field, "is missing"),
        Some((field, _)) => Problem::new(format!("{path}.{field}"), "is missing"),
        None => Problem::new(path, message),
    }
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
            ("udevRules: [[a]]", "udevRules[0]", "expected a string"),
            ("udevRules: a", "udevRules", "expected a sequence"),
            ("other: 1", "udevRules", "is missing"),
            (
                "udevRules: []\nfilter: {items: []}",
                "filter.action",
                "is missing",
            ),
            (
                "udevRules: []\nfilter: {action: Include, items: [1, 2, 300]}",
                "filter.items[2]",
                "300",
            ),
            (
                "udevRules: []\nfilter: {action: Inclde, items: []}",
                "filter.action",
                "`Include` or `Exclude`",
            ),
            ("udevRules: [a", "udevRules", "line 2 column 1"),
            ("- a", "", "expected struct"),
            ("", "udevRules", "is missing"),
        ] {
            let problem = parse::<Details>(text).unwrap_err();
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
    fn unknown_keys_are_ignored() {
        let details = parse::<Details>("udevRules: ['KERNEL==\"video*\"']\nlater: {a: 1}");
        assert_eq!(
            details,
            Ok(Details {
                udev_rules: vec!["KERNEL==\"video*\"".into()],
                filter: None
            })
        );
    }

    #[test]
    fn an_empty_text_is_an_empty_map() {
        for text in ["", "  \n", "# nothing\n", "{}", "count: 0"] {
            assert_eq!(parse(text), Ok(AllOptional { count: 0 }), "{text:?}");
        }
    }
}
