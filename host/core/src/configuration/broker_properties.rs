//! Validation of the environment variables that a Configuration sets for every workload.

use std::collections::BTreeMap;

use super::FieldProblem;
use crate::{names, text, variables};

/// Maximum size of `brokerProperties`, names and values together, in bytes: each Instance has a copy.
pub const MAX_BROKER_PROPERTIES: usize = 64 << 10;

/// Returns the problems of `spec.brokerProperties`.
pub fn broker_problems(properties: &BTreeMap<String, String>) -> Vec<FieldProblem> {
    let sizes = properties
        .iter()
        .map(|(name, value)| name.len() + value.len());
    let size: usize = sizes.sum();
    if size > MAX_BROKER_PROPERTIES {
        return vec![FieldProblem::new(
            "spec.brokerProperties",
            format!(
                "has {size} bytes of names and values, at most {MAX_BROKER_PROPERTIES} are allowed: each Instance has a copy; give larger values to the containers as files"
            ),
        )];
    }
    let problem = |(name, value): (&String, &String)| {
        let message = if !names::is_env_name(name) {
            "name must be letters, digits and _, not beginning with a digit".to_owned()
        } else if variables::is_never_set(name) {
            format!(
                "is never set, because {}; choose another name that the program in the container reads",
                variables::NEVER_SET
            )
        } else {
            // CDI specs are JSON, in which each control character would take six bytes.
            let control = value.chars().find(|c| text::is_foreign_control(*c))?;
            format!(
                "value has the control character U+{:04X}; only tab, newline and carriage return may be in it",
                u32::from(control)
            )
        };
        Some(FieldProblem::new(
            format!("spec.brokerProperties.{name}"),
            message,
        ))
    };
    properties.iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn broker_properties_are_bounded_text_and_none_that_starts_or_redirects_programs() {
        let half = "x".repeat(MAX_BROKER_PROPERTIES / 2 - 1);
        for (properties, wrong) in [
            (json!({"A": half, "B": half}), None),
            (
                json!({"A": half, "BC": half}),
                Some(("", "has 65537 bytes")),
            ),
            (json!({"A": "tab\t, line\r\nand ä \u{202e}"}), None),
            (json!({"A": "a\0"}), Some((".A", "U+0000; only tab"))),
            (json!({"A": "a\u{1b}[2J"}), Some((".A", "U+001B"))),
            (json!({"A": "\u{9b}"}), Some((".A", "U+009B"))),
            (
                json!({"A\nB": ""}),
                Some((".A\\nB", "name must be letters")),
            ),
            (
                json!({"MODE": "fast", "LD_PRELOAD": "/dev/shm/x.so"}),
                Some((".LD_PRELOAD", "is never set")),
            ),
            (
                json!({"https_proxy": "http://10.0.0.1"}),
                Some((".https_proxy", "choose another name")),
            ),
        ] {
            let problems = broker_problems(&serde_json::from_value(properties).unwrap());
            match (problems.as_slice(), wrong) {
                ([], None) => {}
                ([problem], Some((path, words))) => {
                    assert_eq!(problem.path, format!("spec.brokerProperties{path}"));
                    assert!(problem.message.contains(words), "{}", problem.message);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
