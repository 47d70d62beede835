//! Rewords the messages of the JSON and YAML readers for the author of the text. Pure.

/// Words of Rust that no operator should read.
const RUST: [&str; 7] = [
    "struct", "enum", "variant", "tuple", "newtype", "unit", "sequence",
];

/// Returns the message of a JSON reader in the words of YAML.
pub fn reworded(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("missing field `") {
        return format!("has no {}", first_name(rest));
    }
    if let Some(rest) = message.strip_prefix("duplicate field `") {
        return format!("has {} twice; remove one", first_name(rest));
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let (word, expected) = rest.split_once("`, ").unwrap_or((rest, ""));
        let expected = expected.strip_prefix("expected ").unwrap_or("another word");
        return format!("is {word:?}, must be {}", expected.replace('`', ""));
    }
    if message.starts_with("data did not match any variant of") {
        return "has none of the known forms; compare it with an example".to_owned();
    }
    if message.starts_with("invalid length ") {
        return "has too many or too few items".to_owned();
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|begin| message.strip_prefix(begin));
    let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let quoted = found.strip_prefix("string ");
    let shown = match found {
        "map" => "a map",
        "sequence" => "a list",
        "null" | "unit value" => "empty",
        other => quoted
            .or_else(|| other.split('`').nth(1))
            .unwrap_or("of another type"),
    };
    if let Some(kind) = numbers(expected, shown) {
        let text = quoted.map(|quoted| quoted.trim_matches('"'));
        if let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) {
            return format!("is \"{number}\"; write {number} without quotes");
        }
        return format!("is {shown}, must be {kind}");
    }
    if expected == "a boolean"
        && let Some(word) = ["true", "false"]
            .into_iter()
            .find(|word| shown.trim_matches('"') == *word)
    {
        return format!("is \"{word}\"; write {word} without quotes");
    }
    let is_scalar = !matches!(shown, "a map" | "a list" | "empty");
    let expected = match expected {
        "a string" | "a borrowed string" if is_scalar => "text; write it in quotes",
        // A text with a colon and a space is read as a map.
        "a string" | "a borrowed string" if shown == "a map" => {
            "text; a text with ': ' must be in quotes"
        }
        "a string" | "a borrowed string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "IntOrString" => "a whole number or text",
        "Quantity" => "a quantity, such as \"500m\"",
        "Time" | "MicroTime" => "a time, such as \"2026-01-31T12:00:00Z\"",
        // Kubernetes types state their names as expectations, such as `PodSpec`.
        other if other.starts_with("struct ") || other.starts_with(char::is_uppercase) => "a map",
        other if has_rust(other) => "of another type",
        other => other,
    };
    format!("is {shown}, must be {expected}")
}

/// Returns the name before the next backtick.
fn first_name(rest: &str) -> &str {
    rest.split('`').next().unwrap_or_default()
}

/// Returns the wording for the number type `kind`, with its bounds if the number `found` is outside them; `None` for other types.
fn numbers(kind: &str, found: &str) -> Option<String> {
    let (least, most): (i128, i128) = match kind {
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "f32" | "f64" => return Some("a number".to_owned()),
        _ => return None,
    };
    let is_beyond = |number: i128| number > most || (least < 0 && number < least);
    if found.parse::<i128>().is_ok_and(is_beyond) {
        return Some(format!("a whole number from {least} to {most}"));
    }
    let from = if least == 0 { " from 0" } else { "" };
    Some(format!("a whole number{from}"))
}

fn has_rust(text: &str) -> bool {
    let mut words = text.split(|character: char| !character.is_ascii_alphanumeric());
    words.any(|word| RUST.contains(&word))
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
/// Message for a colon where no field may begin.
const COLON: &str =
    "has ': ' where no field may begin; write the value in quotes, or correct the indentation";
/// Message for a quote within a text in quotes.
const TRAILING: &str =
    "has text after the closing quote; write a quote within \"…\" as \\\", and within '…' as ''";
/// Words of the YAML reader, each with ours. A phrase comes before the words that it contains.
const WORDS: [(&str, &str); 10] = [
    ("flow sequence", "list in brackets"),
    ("block sequence", "list"),
    ("escape sequence", "escape"),
    ("flow mapping", "map in braces"),
    ("block mapping", "map"),
    ("block scalar", "text block"),
    ("string scalar", "text"),
    ("sequence", "list"),
    ("mapping", "map"),
    ("scalar", "text"),
];

/// Rewords a message of the YAML reader where ours is clearer.
pub fn syntax(message: &str) -> String {
    match message {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        _ if message.contains(" tab") || message.starts_with("tab") => TAB.to_owned(),
        _ if message.contains("mapping values are not allowed") => COLON.to_owned(),
        _ if message.contains("trailing content after") => TRAILING.to_owned(),
        _ => WORDS
            .iter()
            .fold(reworded(message), |text, (theirs, ours)| {
                text.replace(*theirs, ours)
            }),
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
