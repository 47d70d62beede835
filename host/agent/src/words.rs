//! Errors and lists in one line.

use std::error::Error;

/// The error and its causes.
pub fn of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// So many names are told in one sentence.
pub const NAMED: usize = 3;

/// The first names of a list, and how many more there are.
pub fn few(names: &[&str]) -> String {
    match names.split_at_checked(NAMED) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{} and {} more", first.join(", "), rest.len())
        }
        _ => names.join(", "),
    }
}
