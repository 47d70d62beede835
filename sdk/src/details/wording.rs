//! Rewords parse errors in the details for the operator, without the terms of the YAML reader and of Rust.

/// Rust terms that no operator should read.
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
const WORDS: [(&str, &str); 9] = [
    ("flow sequence", "list in brackets"),
    ("block sequence", "list"),
    ("flow mapping", "map in braces"),
    ("block mapping", "map"),
    ("block scalar", "text block"),
    ("nested enum", "a name with a value inside of another"),
    ("sequence", "list"),
    ("mapping", "map"),
    ("scalar", "text"),
];
/// Phrases that mark a message of the YAML reader in which [`WORDS`] must be replaced.
const READER: [&str; 5] = [
    "while parsing a",
    "while scanning a",
    "not allowed in this context",
    "for merging",
    "nested enum",
];
/// Message for a colon where no field may begin.
const COLON: &str =
    "has ': ' where no field may begin; write the value in quotes, or correct the indentation";
/// Message for a line in which a space is missing.
const NO_FIELD: &str =
    "has a line that is neither a field nor a list item; write a space after ':' and '-'";
/// Message for a tab, and for a character that only begins a value in quotes.
const NO_TOKEN: &str = "has a tab, or a value that begins with @, ` or %; indent with spaces, or write the value in quotes";

/// Rewords a message of the YAML reader for the operator.
pub fn reworded(message: &str) -> String {
    let (mistake, place) = placed(message);
    if mistake.starts_with("could not find expected ':'") {
        return format!("{NO_FIELD}{place}");
    }
    if let Some(rest) = message.strip_prefix("found character that cannot start any token") {
        let place = rest.split(',').next().unwrap_or_default();
        return format!("{NO_TOKEN}{place}");
    }
    if let Some(name) = mistake.strip_prefix("duplicate field `") {
        let name = name.split('`').next().unwrap_or_default();
        return format!("has {name} twice; remove one");
    }
    if mistake.starts_with("data did not match any variant of") {
        return "has none of the known forms; compare it with the example of the handler"
            .to_owned();
    }
    if mistake.starts_with("untagged and internally tagged") {
        return "has a tag; remove the word with '!'".to_owned();
    }
    if let Some(rest) = mistake.strip_prefix("invalid length ") {
        return wrong_length(rest);
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|begin| mistake.strip_prefix(begin));
    if let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        return wrong_type(found, expected);
    }
    if mistake.contains("mapping values are not allowed") {
        return format!("{COLON}{place}");
    }
    if !READER.iter().any(|words| message.contains(words)) {
        return message.to_owned();
    }
    WORDS
        .iter()
        .fold(message.to_owned(), |text, (theirs, ours)| {
            text.replace(*theirs, ours)
        })
}

/// Splits a position such as ` at line 1 column 2` off the end of a message.
fn placed(message: &str) -> (&str, &str) {
    let Some(start) = message.rfind(" at line ") else {
        return (message, "");
    };
    let (mistake, place) = message.split_at(start);
    let is_place = place
        .split(' ')
        .all(|word| matches!(word, "" | "at" | "line" | "column") || word.parse::<u64>().is_ok());
    if is_place {
        (mistake, place)
    } else {
        (message, "")
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::super::parse;
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    #[allow(dead_code, reason = "the values are only read")]
    struct Every {
        text: String,
        letter: Option<char>,
        number: i64,
        small: Option<u8>,
        share: f64,
        is: bool,
        list: Vec<String>,
        map: BTreeMap<String, u8>,
        inner: Option<Inner>,
        word: Option<Word>,
        form: Option<Form>,
        pair: Option<(u8, u8)>,
        three: Option<[u8; 3]>,
        wrapped: Option<Wrapped>,
        nothing: (),
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    struct Inner {
        a: u8,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    enum Word {
        One,
        Other(u8),
        Pair(u8, u8),
        Named { a: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "the values are only read")]
    enum Form {
        Small(u8),
        Named { a: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    struct Wrapped(u8);

    const FIELDS: [&str; 15] = [
        "text", "letter", "number", "small", "share", "is", "list", "map", "inner", "word", "form",
        "pair", "three", "wrapped", "nothing",
    ];
    const VALUES: [&str; 20] = [
        "5",
        "-1",
        "300",
        "1.5",
        "18446744073709551616",
        "x y",
        "'7'",
        "true",
        "~",
        "[]",
        "[1]",
        "[1, 2, 3, 4]",
        "[~]",
        "[a, {}]",
        "{}",
        "{a: x}",
        "{a: ~}",
        "Pair",
        "!Other x",
        "!Named []",
    ];
    /// Documents that are not read at all.
    const BROKEN: [&str; 12] = [
        "5",
        "[1]",
        "word",
        "a: b: c",
        "text: [a",
        "text: {a: b",
        "text: {a: [}",
        "text: 'a' b",
        "text: \"\\q\"",
        "text: |a\n  b",
        "- a\nb: c",
        "text: - a",
    ];
    const WORDS_OF_RUST: [&str; 20] = [
        "struct",
        "enum",
        "variant",
        "tuple",
        "newtype",
        "unit",
        "Option",
        "sequence",
        "mapping",
        "scalar",
        "identifier",
        "integer",
        "boolean",
        "floating",
        "i64",
        "u8",
        "f64",
        "Every",
        "Inner",
        "Word",
    ];

    #[test]
    fn no_message_has_a_word_of_rust() {
        let fields = FIELDS
            .iter()
            .flat_map(|field| VALUES.map(|value| format!("{field}: {value}")));
        let mut wrong = 0;
        for text in fields.chain(BROKEN.map(str::to_owned)) {
            for problem in parse::<Every>(&text).err().unwrap_or_default() {
                let message = problem.message;
                let mut words = message.split(|letter: char| !letter.is_ascii_alphanumeric());
                let rust = words.find(|word| WORDS_OF_RUST.contains(word));
                assert_eq!(rust, None, "{text}: {message}");
                wrong += 1;
            }
        }
        assert!(wrong > 150, "{wrong}");
    }

    #[test]
    fn what_the_reader_says_is_said_in_words_of_yaml() {
        for (theirs, ours) in [
            (
                "invalid type: integer `5`, expected a string at line 1 column 7",
                "is 5, must be text; write it in quotes",
            ),
            (
                "invalid type: map, expected a string at line 2 column 3",
                "is a map, must be text; a text with ': ' must be in quotes",
            ),
            (
                "invalid length 4, expected sequence of 3 elements",
                "has 4 items, must have 3",
            ),
            (
                "invalid type: map, expected a character",
                "is a map, must be one character",
            ),
            (
                "invalid type: integer `5`, expected a tuple of size 2",
                "is 5, must be a list",
            ),
            (
                "invalid type: unit variant, expected newtype variant",
                "is a name without a value, must be a name with a value",
            ),
            (
                "invalid length 1, expected a tuple of size 2",
                "has 1 item, must have 2",
            ),
            (
                "invalid length 4, expected fewer elements in sequence",
                "has 4 items, must have fewer",
            ),
            (
                "mapping values are not allowed in this context at line 2 column 5",
                "has ': ' where no field may begin; write the value in quotes, or correct the indentation at line 2 column 5",
            ),
            (
                "did not find expected ',' or ']' at line 2 column 1, while parsing a flow sequence at line 1 column 12",
                "did not find expected ',' or ']' at line 2 column 1, while parsing a list in brackets at line 1 column 12",
            ),
            (
                "the sequence number is too large at line 1 column 2",
                "the sequence number is too large at line 1 column 2",
            ),
        ] {
            assert_eq!(reworded(theirs), ours, "{theirs}");
        }
    }

    #[test]
    fn messages_that_the_host_words_too_have_the_same_words() {
        for (theirs, ours) in include!("wording.cases") {
            assert_eq!(reworded(theirs), ours, "{theirs}");
        }
    }
}
