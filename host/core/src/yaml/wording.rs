//! Words of mistakes for the author of the text. Pure.

/// Returns the message of a JSON reader in words of YAML.
pub fn reworded(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("missing field `") {
        return format!("has no {}", rest.split('`').next().unwrap_or_default());
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|begin| message.strip_prefix(begin));
    let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let quoted = found.strip_prefix("string ");
    let expected = match expected {
        "i64" | "u64" | "u32" | "u16" | "u8" => {
            let text = quoted.map(|quoted| quoted.trim_matches('"'));
            if let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) {
                return format!("is \"{number}\"; write {number} without quotes");
            }
            if expected == "i64" {
                "a whole number"
            } else {
                "a whole number from 0"
            }
        }
        "a string" if !matches!(found, "map" | "sequence" | "null") => "text; write it in quotes",
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other if other.starts_with("struct ") => "a map",
        other => other,
    };
    let found = match found {
        "map" => "a map",
        "sequence" => "a list",
        "null" => "empty",
        other => quoted.or_else(|| other.split('`').nth(1)).unwrap_or(other),
    };
    format!("is {found}, must be {expected}")
}

/// Returns the message for a line with a template of Helm.
pub fn template(text: &str, line: Option<usize>) -> Option<String> {
    let begins = |part: &str| part.trim_start().starts_with("{{");
    let is_template = written(text, line).split([':', '-']).any(begins);
    is_template.then(|| "begins with {{: render the Helm template first".to_owned())
}

/// Message for a text with too many maps and lists in each other.
pub const TOO_DEEP: &str = "is nested more than 32 deep; write it flatter";
/// Message for a line that is indented with a tab.
const TAB: &str = "has a tab; YAML indents with spaces";

/// Returns the message of the YAML reader in other words, where they are better.
pub fn syntax(message: &str) -> String {
    match message {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        _ if message.contains(" tab") || message.starts_with("tab") => TAB.to_owned(),
        _ => message.to_owned(),
    }
}

/// Returns the first line from `line` on that is indented with a tab, for a message about it: the reader names the line where the value begins.
pub fn tab(text: &str, line: Option<usize>, message: &str) -> Option<usize> {
    let line = line.filter(|_| message == TAB)?;
    let indented = |text: &str| text.trim_start_matches(' ').starts_with('\t');
    let lines = text.split('\n').enumerate().skip(line.saturating_sub(1));
    let found = lines.map(|(index, text)| (index + 1, text));
    Some(found.into_iter().find(|(_, text)| indented(text))?.0)
}

fn written(text: &str, line: Option<usize>) -> &str {
    let number = line.and_then(|line| line.checked_sub(1));
    number
        .and_then(|number| text.split('\n').nth(number))
        .unwrap_or_default()
}
