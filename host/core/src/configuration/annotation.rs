//! Reads the value of one annotation. Knows no annotation by name.

use std::collections::BTreeMap;

use super::FieldProblem;

/// Reads the value of an annotation. Returns the default if it is absent or invalid, and adds a problem if it is invalid.
pub fn value<T: Default>(
    annotations: &BTreeMap<String, String>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
    problems: &mut Vec<FieldProblem>,
) -> T {
    let Some(text) = annotations.get(name) else {
        return T::default();
    };
    parse(text).unwrap_or_else(|message| {
        problems.push(FieldProblem::new(path(name), message));
        T::default()
    })
}

/// Returns the path of an annotation, for problems.
pub fn path(name: &str) -> String {
    format!("metadata.annotations.{name}")
}
