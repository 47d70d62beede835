//! Rewords the messages of the JSON and YAML readers for the author of the text. Pure.

use self::mistakes::{COLON, of_value, without_terms};

// Shared with the SDK, which reads the details of handlers. A published crate could not include the file of another.
#[path = "../../../../sdk/src/details/mistakes.rs"]
mod mistakes;

/// Returns the message of a JSON reader in the words of YAML.
pub fn reworded(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("missing field `") {
        let name = rest.split('`').next().unwrap_or_default();
        return format!("has no {name}");
    }
    of_value(message, named).unwrap_or_else(|| message.to_owned())
}

/// Words the expectations of Kubernetes types, which are their names, and those of the reader that only the agent meets.
fn named(expected: &str) -> &str {
    match expected {
        "string or map" => "text or a map",
        "map with a single key" => "a map with one key",
        "IntOrString" => "a whole number or text",
        "Quantity" => "a quantity, such as \"500m\"",
        "Time" | "MicroTime" => "a time, such as \"2026-01-31T12:00:00Z\"",
        // Kubernetes types state their names, such as `PodSpec`.
        other if other.starts_with(char::is_uppercase) => "a map",
        other => other,
    }
}

/// Returns the message for a line with a Helm template; `None` for any other line.
pub fn template(text: &str, line: Option<usize>) -> Option<String> {
    let begins = |part: &str| part.trim_start().starts_with("{{");
    let is_template = written(text, line).split([':', '-']).any(begins);
    is_template.then(|| "begins with {{; render the Helm template first".to_owned())
}

/// Message for a text whose maps and lists are nested too deeply.
pub const TOO_DEEP: &str = "is nested more than 32 deep; write it flatter";
/// Message for a line that is indented with a tab.
const TAB: &str = "has a tab; YAML indents with spaces";
/// Message for a character that looks like a space.
pub const NO_BREAK: &str = "has a no-break space, or another character that looks like a space, where YAML needs a space; replace it";
/// Message for a quote within a text in quotes.
const TRAILING: &str =
    "has text after the closing quote; write a quote within \"…\" as \\\", and within '…' as ''";
/// Rewords a message of the YAML reader where ours is clearer.
pub fn syntax(message: &str) -> String {
    match message {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        _ if message.contains(" tab") || message.starts_with("tab") => TAB.to_owned(),
        _ if message.contains("mapping values are not allowed") => COLON.to_owned(),
        _ if message.contains("trailing content after") => TRAILING.to_owned(),
        _ => without_terms(reworded(message)),
    }
}

/// Returns the first line from `line` on that is indented with a tab if `message` is about a tab: the reader names the line where the value begins.
pub fn tab(text: &str, line: Option<usize>, message: &str) -> Option<usize> {
    let line = line.filter(|_| message == TAB)?;
    let indented = |text: &str| text.trim_start_matches(' ').starts_with('\t');
    let mut lines = text.split('\n').enumerate().skip(line.saturating_sub(1));
    let (index, _) = lines.find(|(_, text)| indented(text))?;
    Some(index + 1)
}

/// Returns the first of `most` lines from line `from` on with a character that only looks like a space, where its content begins or directly after
/// its first colon. Skips comments.
pub fn no_break(text: &str, from: usize, most: usize) -> Option<usize> {
    let looks = |character: char| character.is_whitespace() && !character.is_ascii();
    let has = |line: &str| {
        let after = line.split_once(':').map(|(_, after)| after);
        let content = line.trim_start_matches([' ', '-']);
        !content.starts_with('#')
            && (content.starts_with(looks) || after.is_some_and(|after| after.starts_with(looks)))
    };
    let lines = text.split('\n').enumerate();
    let mut lines = lines.skip(from.saturating_sub(1)).take(most);
    let (index, _) = lines.find(|(_, line)| has(line))?;
    Some(index + 1)
}

fn written(text: &str, line: Option<usize>) -> &str {
    let number = line.and_then(|line| line.checked_sub(1));
    number
        .and_then(|number| text.split('\n').nth(number))
        .unwrap_or_default()
}
