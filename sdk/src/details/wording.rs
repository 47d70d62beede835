//! Rewords parse errors in the details for the operator, without the terms of the YAML reader and of Rust.

use super::mistakes::{COLON, of_value, without_terms};

/// Phrases that mark a message of the YAML reader whose terms must be replaced.
const READER: [&str; 5] = [
    "while parsing a",
    "while scanning a",
    "not allowed in this context",
    "for merging",
    "nested enum",
];
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
    if let Some(message) = of_value(mistake, |expected| expected) {
        return message;
    }
    if mistake.starts_with("untagged and internally tagged") {
        return "has a tag; remove the word with '!'".to_owned();
    }
    if mistake.contains("mapping values are not allowed") {
        return format!("{COLON}{place}");
    }
    if !READER.iter().any(|words| message.contains(words)) {
        return message.to_owned();
    }
    without_terms(message.to_owned())
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
