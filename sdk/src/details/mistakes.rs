//! Words the mistakes of a text for its author. The agent's reader of YAML includes this file, so that both say the same. Pure.

/// Words of Rust that no operator should read.
const RUST: [&str; 9] = [
    "struct",
    "enum",
    "variant",
    "tuple",
    "newtype",
    "unit",
    "Option",
    "sequence",
    "identifier",
];

/// Terms of the YAML reader, each with its replacement. Longer terms come first.
const WORDS: [(&str, &str); 11] = [
    ("flow sequence", "list in brackets"),
    ("block sequence", "list"),
    ("escape sequence", "escape"),
    ("flow mapping", "map in braces"),
    ("block mapping", "map"),
    ("block scalar", "text block"),
    ("string scalar", "text"),
    ("nested enum", "a name with a value inside of another"),
    ("sequence", "list"),
    ("mapping", "map"),
    ("scalar", "text"),
];
/// Message for a colon where no field may begin.
pub const COLON: &str =
    "has ': ' where no field may begin; write the value in quotes, or correct the indentation";

/// Replaces the terms of the YAML reader in a message.
pub fn without_terms(message: String) -> String {
    WORDS
        .iter()
        .fold(message, |text, (theirs, ours)| text.replace(*theirs, ours))
}

/// Returns the message for a mistake of a value; `None` for any other mistake. `named` words expectations that are names
/// of types.
pub fn of_value(mistake: &str, named: impl Fn(&str) -> &str) -> Option<String> {
    if let Some(name) = mistake.strip_prefix("duplicate field `") {
        let name = name.split('`').next().unwrap_or_default();
        return Some(format!("has {name} twice; remove one"));
    }
    if let Some(rest) = mistake.strip_prefix("unknown variant `") {
        let (word, expected) = rest.split_once("`, ").unwrap_or((rest, ""));
        let expected = expected.strip_prefix("expected ").unwrap_or("another word");
        let expected = expected.replace('`', "");
        return Some(format!("is {word:?}, must be {expected}"));
    }
    if mistake.starts_with("data did not match any variant of") {
        return Some("has none of the known forms; compare it with an example".to_owned());
    }
    if let Some(rest) = mistake.strip_prefix("invalid length ") {
        return Some(wrong_length(rest));
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|begin| mistake.strip_prefix(begin));
    let (found, expected) = wrong?.rsplit_once(", expected ")?;
    Some(wrong_type(found, named(expected)))
}

/// Returns the message for a value of the wrong type or out of range.
fn wrong_type(found: &str, expected: &str) -> String {
    let quoted = found.strip_prefix("string ");
    let shown = match found {
        "map" => "a map",
        "sequence" => "a list",
        "null" | "unit value" | "Option value" => "empty",
        "unit variant" => "a name without a value",
        "newtype variant" | "tuple variant" | "struct variant" | "enum" => "a name with a value",
        "newtype struct" | "byte array" => "of another type",
        other => quoted.or_else(|| other.split('`').nth(1)).unwrap_or(other),
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
    let expected = match expected {
        "a string" | "a borrowed string" => match shown {
            // A text with a colon and a space is read as a map.
            "a map" => "text; a text with ': ' must be in quotes",
            "a list" | "empty" => "text",
            _ => "text; write it in quotes",
        },
        "byte array" => "text",
        "a character" => "one character",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "unit" | "null" => "empty",
        "option" => "a value or empty",
        "an integer" => "a whole number",
        "a float" => "a number",
        "variant identifier" | "field identifier" => "a known name",
        "newtype variant" | "tuple variant" | "struct variant" => "a name with a value",
        other if other.starts_with("a YAML tag") => "a known name",
        other if other.starts_with("unit struct ") => "empty",
        other if other.starts_with("enum ") => "a known name",
        other
            if ["tuple", "a tuple ", "an array "]
                .iter()
                .any(|begin| other.starts_with(begin)) =>
        {
            "a list"
        }
        other if other.starts_with("struct ") => "a map",
        other if has_rust(other) => "of another type",
        other => other,
    };
    format!("is {shown}, must be {expected}")
}

/// Describes the numeric type `kind`, with its bounds if `found` exceeds them; returns `None` for any other type.
fn numbers(kind: &str, found: &str) -> Option<String> {
    let (least, most): (i128, i128) = match kind {
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i128" => (i128::MIN, i128::MAX),
        "u128" => (0, i128::MAX),
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

/// Returns the message for a list or map with too many or too few items. `rest` has the form `2, expected a tuple of size
/// 3`.
fn wrong_length(rest: &str) -> String {
    let (length, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
    let items = if length == "1" { "item" } else { "items" };
    let number = expected.split(' ').find(|word| word.parse::<u64>().is_ok());
    let must = match number {
        Some(number) => number,
        None if expected.starts_with("fewer") => "fewer",
        None => "another number",
    };
    format!("has {length} {items}, must have {must}")
}

fn has_rust(text: &str) -> bool {
    let mut words = text.split(|character: char| !character.is_ascii_alphanumeric());
    words.any(|word| RUST.contains(&word))
}
