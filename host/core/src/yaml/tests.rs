//! Tests against kubectl, and of places and limits.

use std::collections::BTreeMap;

use super::*;

/// Fields of a document, and what kubectl 1.32 makes of them, `None` if it refuses them. Measured by
/// `kubectl annotate --local --filename - a=b --output json`, with an apiVersion, a kind and a name in front.
const LIKE_KUBECTL: &[(&str, Option<&str>)] = &[
    (
        "x: [true, True, TRUE, yes, Yes, YES, on, On, ON, y, Y]",
        Some(r#"{"x": [true, true, true, true, true, true, true, true, true, true, true]}"#),
    ),
    (
        "x: [false, False, FALSE, no, No, NO, off, Off, OFF, n, N]",
        Some(
            r#"{"x": [false, false, false, false, false, false, false, false, false, false, false]}"#,
        ),
    ),
    (
        r#"x: ['yes', "no", !!str on, yes.]"#,
        Some(r#"{"x": ["yes", "no", "on", "yes."]}"#),
    ),
    (
        "x: [017, 0o17, -017, 0x1F, 0b101, +12, -7, 1_000]",
        Some(r#"{"x": [15, 15, -15, 31, 5, 12, -7, 1000]}"#),
    ),
    (
        "x: [08, 0.5, .5, 1., 1e3, -1.5e-3, 6.0]",
        Some(r#"{"x": [8, 0.5, 0.5, 1, 1000, -0.0015, 6]}"#),
    ),
    (
        "x: [9223372036854775807, 18446744073709551615, 18446744073709551616]",
        Some(r#"{"x": [9223372036854775807, 18446744073709552000, 18446744073709552000]}"#),
    ),
    (
        r#"x: [a~, 'null', '~', "", '']"#,
        Some(r#"{"x": ["a~", "null", "~", "", ""]}"#),
    ),
    (
        "x:\nv: ~\nz: null\nw: 1",
        Some(r#"{"v": null, "w": 1, "x": null, "z": null}"#),
    ),
    (
        "x: [2001-01-01, 2001-12-14t21:59:43.10-05:00, 12:30:45, 1.2.3]",
        Some(r#"{"x": ["2001-01-01", "2001-12-14t21:59:43.10-05:00", "12:30:45", "1.2.3"]}"#),
    ),
    (
        "x: &a {b: 1, c: 2}\nv: {<<: *a, c: 3}",
        Some(r#"{"v": {"b": 1, "c": 3}, "x": {"b": 1, "c": 2}}"#),
    ),
    (
        "x: &a {b: 1}\nv: &b {b: 2, d: 3}\nz: {<<: [*a, *b], e: 4}",
        Some(r#"{"v": {"b": 2, "d": 3}, "x": {"b": 1}, "z": {"b": 1, "d": 3, "e": 4}}"#),
    ),
    (
        "x: &a [1, 2]\nv: [*a, *a]",
        Some(r#"{"v": [[1, 2], [1, 2]], "x": [1, 2]}"#),
    ),
    ("x: a # b\n# c\nv: a#b", Some(r#"{"v": "a#b", "x": "a"}"#)),
    (
        "x: |\n  a\n   b\n\n  c\nv: |-\n  a\nz: |+\n  a\n\nw: 1",
        Some(r#"{"v": "a", "w": 1, "x": "a\n b\n\nc\n", "z": "a\n\n"}"#),
    ),
    (
        "x: >\n  a\n  b\n\n  c\nv: >-\n  a\n  b",
        Some(r#"{"v": "a b", "x": "a b\nc\n"}"#),
    ),
    (
        "'x y': 1\n\"z\\tw\": 2\n? u\n: 3",
        Some(r#"{"u": 3, "x y": 1, "z\tw": 2}"#),
    ),
    (
        "x: 'it''s'\nv: \"a\\u00e9\\n\"\nz: a\n  b",
        Some(r#"{"v": "aé\n", "x": "it's", "z": "a b"}"#),
    ),
    (
        "x:\n- a\n- b: 1\n  c: 2\n- - d",
        Some(r#"{"x": ["a", {"b": 1, "c": 2}, ["d"]]}"#),
    ),
    (
        r#"{"x": {"k": [1, 2.5, true, null, "z"]}, "w": 1}"#,
        Some(r#"{"w": 1, "x": {"k": [1, 2.5, true, null, "z"]}}"#),
    ),
    (
        "x: {a: , b: 1}\nv: {c, d}",
        Some(r#"{"v": {"c": null, "d": null}, "x": {"a": null, "b": 1}}"#),
    ),
    (
        "x: !!binary aGVsbG8=\nv: !!int '3'\nz: !!float 3\nw: !foo bar",
        Some(r#"{"v": 3, "w": "bar", "x": "hello", "z": 3}"#),
    ),
    ("x: a\tb\nv:\t1", Some(r#"{"v": 1, "x": "a\tb"}"#)),
    ("1: a\n2.5: b", Some(r#"{"1": "a", "2.5": "b"}"#)),
    ("x: [{a: 1}, [], {}]", Some(r#"{"x": [{"a": 1}, [], {}]}"#)),
    (
        "x: a:b\nv: http://a/b?c#d\nz: -a",
        Some(r#"{"v": "http://a/b?c#d", "x": "a:b", "z": "-a"}"#),
    ),
    ("x: [.inf]", None),
    ("x: [.nan]", None),
    ("x: .Inf", None),
    ("x: 0o18", Some(r#"{"x": "0o18"}"#)),
    ("x: 0x_1F", Some(r#"{"x": 31}"#)),
    ("x: 190:20:30", Some(r#"{"x": "190:20:30"}"#)),
    ("x: 0777_7", Some(r#"{"x": 4095}"#)),
    ("x: 0b", Some(r#"{"x": "0b"}"#)),
    ("x: =", Some(r#"{"x": "="}"#)),
    ("x: [a, b, ]", Some(r#"{"x": ["a", "b"]}"#)),
    ("x:\n\ty: 1", None),
    ("x: [a\n b]", Some(r#"{"x": ["a b"]}"#)),
    ("x: \"a\n  b\"", Some(r#"{"x": "a b"}"#)),
    ("x: @a", None),
    ("x: a: b", None),
    ("x: *a", None),
    ("<<: 1", None),
    ("x: &a [*a]", None),
    ("? [a]\n: b", None),
    ("null: a", None),
    ("x: -0", Some(r#"{"x": 0}"#)),
    ("x: 0", Some(r#"{"x": 0}"#)),
    ("x: 00", Some(r#"{"x": 0}"#)),
    ("x: 0.0", Some(r#"{"x": 0}"#)),
    ("x: -.5", Some(r#"{"x": -0.5}"#)),
    ("x: +.5", Some(r#"{"x": 0.5}"#)),
    ("x: 1e+3", Some(r#"{"x": 1000}"#)),
    ("x: 1E3", Some(r#"{"x": 1000}"#)),
    ("x: 0x1f.8", Some(r#"{"x": "0x1f.8"}"#)),
    ("x: 1,000", Some(r#"{"x": "1,000"}"#)),
    ("x: '\\n'", Some(r#"{"x": "\\n"}"#)),
    ("x: !!str 1", Some(r#"{"x": "1"}"#)),
    ("x: !!null ''", Some(r#"{"x": null}"#)),
    ("x: !!bool 'yes'", Some(r#"{"x": true}"#)),
    ("x: |2\n    a\n  b", Some(r#"{"x": "  a\nb\n"}"#)),
    ("---\nx: 1\n...", Some(r#"{"x": 1}"#)),
    (
        "x: [!!set {a, b}]",
        Some(r#"{"x": [{"a": null, "b": null}]}"#),
    ),
    (
        "x: NULL\nv: Null\nz: 1",
        Some(r#"{"v": null, "x": null, "z": 1}"#),
    ),
    ("x: nULL", Some(r#"{"x": "nULL"}"#)),
    ("x: 1 \nv: 2", Some(r#"{"v": 2, "x": 1}"#)),
];

/// Fields that kubectl reads differently: what it makes of them, and what is read here.
const UNLIKE_KUBECTL: &[(&str, Option<&str>, Option<&str>)] = &[
    // A key is a text, as written.
    (
        "yes: 1\non: 2",
        Some(r#"{"true": 2}"#),
        Some(r#"{"on": 2, "yes": 1}"#),
    ),
    // Only whole numbers may have underscores between digits.
    (
        "x: 1_0.5",
        Some(r#"{"x": 10.5}"#),
        Some(r#"{"x": "1_0.5"}"#),
    ),
    // Booleans have any case.
    ("x: yEs", Some(r#"{"x": "yEs"}"#), Some(r#"{"x": true}"#)),
    ("x: 1__0", Some(r#"{"x": 10}"#), Some(r#"{"x": "1__0"}"#)),
    // A number that is too large is not read as text.
    ("x: 1e999", Some(r#"{"x": "1e999"}"#), None),
    // A key that occurs twice is refused; kubectl drops the first silently.
    ("x: 1\nx: 2", Some(r#"{"x": 2}"#), None),
    // A line that is not nested may begin with a tab.
    ("\tx: 1", None, Some(r#"{"x": 1}"#)),
    // The escapes are those of YAML 1.2, with all of JSON.
    (r#"x: "\x41\/""#, None, Some(r#"{"x": "A/"}"#)),
    // There is no type for times.
    (
        "x: !!timestamp 2001-01-01",
        Some(r#"{"x": "2001-01-01"}"#),
        None,
    ),
];

/// Returns a value without fields that have none, and with numbers of one kind.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, plain(value)))
            .collect(),
        Value::Array(list) => list.into_iter().map(plain).collect(),
        Value::Number(number) => number.as_f64().into(),
        other => other,
    }
}

#[test]
fn a_text_is_read_as_kubectl_reads_it() {
    let ours = |text: &str| Document::read(text).ok().map(|read| plain(read.value()));
    let json = |json: &str| plain(serde_json::from_str(json).unwrap());
    for (text, expected) in LIKE_KUBECTL {
        assert_eq!(ours(text), expected.map(json), "{text}");
    }
    for (text, theirs, expected) in UNLIKE_KUBECTL {
        assert_eq!(ours(text), expected.map(json), "{text}");
        assert_ne!(expected.map(json), theirs.map(json), "{text}");
    }
}

#[test]
fn a_field_has_the_line_of_its_key_and_an_item_that_of_its_begin() {
    let text = "a:\n  b: |\n    x\n  a.b: &m\n    c: 1\nl:\n- x\n- <<: *m\n  'd': {e: [f]}\n";
    let document = Document::read(text).unwrap();
    for (path, line) in [
        ("", None),
        ("x", None),
        ("a", Some(1)),
        ("a.b", Some(2)),
        ("a.x", Some(1)),
        ("a.a.b", Some(4)),
        ("a.a.b.c", Some(5)),
        ("l[1]", Some(8)),
        ("l[2]", Some(6)),
        ("l[1].d.e[0]", Some(9)),
        ("l[1].d.x", Some(9)),
        // A merged field has the line where it is written.
        ("l[1].c", Some(5)),
    ] {
        assert_eq!(document.line(path), line, "{path}");
    }
}

#[test]
fn documents_are_read_until_one_is_broken() {
    assert_eq!(
        read_all("a: 1\n---\n# nothing\n---\n{b: on, c: ~}\n").unwrap(),
        [serde_json::json!({"a": 1}), serde_json::json!({"b": true})]
    );
    assert_eq!(read_all("a: 1\n---\nb: [\n").unwrap_err().line, Some(3));
}

#[test]
fn numbers_and_booleans_become_the_texts_that_are_written() {
    let text = "a: {b: 0x1F, c: on, d: 'e', f: [1]}\nl: [{n: 1.50, m: 2}, {n: x}]\n";
    let mut document = Document::read(text).unwrap();
    let mut found = Vec::new();
    for field in ["a{}", "l[].n", "a.b.c", "l"] {
        document.make_text(field, |path, _, text| found.push(format!("{path}={text}")));
    }
    assert_eq!(found, ["a.b=0x1F", "a.c=on", "l[0].n=1.50"]);
    assert_eq!(
        document.value(),
        serde_json::json!({
            "a": {"b": "0x1F", "c": "on", "d": "e", "f": [1]},
            "l": [{"n": "1.50", "m": 2}, {"n": "x"}],
        })
    );
}

#[test]
fn what_nests_deep_or_stands_for_too_much_is_refused() {
    let long = "x".repeat(20_000);
    for (text, words) in [
        ("[".repeat(1_000), "nested more than 32 deep"),
        ("{a: ".repeat(1_000), "nested more than 32 deep"),
        ("- ".repeat(1_000), "nested more than 32 deep"),
        (format!("[&a {long}, {}]", "*a, ".repeat(1_000)), "aliases"),
        (
            format!("[&a [{}0], {}]", "0, ".repeat(1_000), "*a, ".repeat(1_000)),
            "aliases",
        ),
        ("x: &a [*a]".to_owned(), "ecursive"),
    ] {
        let message = Document::read(&text).unwrap_err().message;
        assert!(message.contains(words), "{words}: {message}");
    }
    let nested = format!("{}{}", "{a: ".repeat(32), "}".repeat(32));
    assert!(Document::read(&nested).is_ok());
}

#[test]
fn a_wrong_type_is_told_in_words_of_yaml() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        #[serde(rename = "text")]
        _text: Option<String>,
        #[serde(rename = "number")]
        _number: Option<i64>,
        #[serde(rename = "count")]
        _count: Option<u32>,
        #[serde(rename = "is")]
        _is: Option<bool>,
        #[serde(rename = "list")]
        _list: Option<Vec<String>>,
        #[serde(rename = "inner", default)]
        _inner: Inner,
    }
    #[derive(Debug, Deserialize, Default)]
    #[serde(default)]
    struct Inner {
        #[serde(rename = "text")]
        _text: String,
    }
    for (text, path, message) in [
        ("text: 5", "text", "is 5, must be text; write it in quotes"),
        (
            "text: no",
            "text",
            "is false, must be text; write it in quotes",
        ),
        (
            "text: {}",
            "text",
            "is a map, must be text; a text with ': ' must be in quotes",
        ),
        ("number: '5'", "number", "is \"5\"; write 5 without quotes"),
        (
            "number: many",
            "number",
            "is \"many\", must be a whole number",
        ),
        ("number: 1.5", "number", "is 1.5, must be a whole number"),
        ("count: -1", "count", "is -1, must be a whole number from 0"),
        ("is: 'yes'", "is", "is \"yes\", must be true or false"),
        ("list: a", "list", "is \"a\", must be a list"),
        ("is: 'true'", "is", "is \"true\"; write true without quotes"),
        (
            "text: \"a\"b\"\"",
            "",
            "has text after the closing quote; write a quote within \"…\" as \\\", and within '…' as ''",
        ),
        ("list: [a, ]\ntext: [", "", "unclosed bracket '['"),
        ("- a", "", "is a list, must be a map"),
        ("inner: []", "inner", "is a list, must be a map"),
        ("inner: [a]", "inner", "is a list, must be a map"),
    ] {
        let mistake = read::<Fields>(text).unwrap_err();
        assert_eq!(
            (mistake.path.as_str(), mistake.message.as_str()),
            (path, message),
            "{text}"
        );
        assert!(mistake.line.is_some(), "{text}");
    }
    assert!(read::<Fields>("text:\nlist: ~").is_ok());
}

#[test]
fn a_text_with_a_colon_that_is_not_in_quotes_has_its_line_and_the_remedy() {
    for (text, line, words) in [
        (
            "rules:\n- KERNEL==\"a: b\"\n",
            2,
            "a text with ': ' must be in quotes",
        ),
        (
            "rules:\n- x\n- KERNEL==\"a: b: c\"\n",
            3,
            "write the value in quotes",
        ),
        ("note: a: b\n", 1, "write the value in quotes"),
    ] {
        let mistake = read::<BTreeMap<String, Vec<String>>>(text).unwrap_err();
        assert_eq!(mistake.line, Some(line), "{text}: {mistake:?}");
        assert!(mistake.message.contains(words), "{text}: {mistake:?}");
    }
}

#[test]
fn only_a_text_with_line_ends_is_written_in_several_lines() {
    let (long, bytes) = ("word ".repeat(50), "ab12".repeat(500));
    let value = serde_json::json!({"bytes": bytes, "lines": "a: 1\nb: 2\n", "long": long.trim()});
    let text = write(&value).unwrap();
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(
        text.contains(&format!("bytes: {bytes}\nlines: |\n")),
        "{text}"
    );
    assert_eq!(read::<Value>(&text).unwrap(), value);
}

mod every_type {
    //! Types of all kinds, to be read from wrong values.

    use std::collections::BTreeMap;

    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[allow(dead_code, reason = "the values are only read")]
    pub struct Every {
        text: Option<String>,
        letter: Option<char>,
        number: Option<i64>,
        small: Option<u8>,
        share: Option<f64>,
        is: Option<bool>,
        list: Option<Vec<String>>,
        map: Option<BTreeMap<String, u8>>,
        inner: Option<Inner>,
        word: Option<Word>,
        form: Option<Form>,
        pair: Option<(u8, u8)>,
        three: Option<[u8; 3]>,
        wrapped: Option<Wrapped>,
        empty: Option<Empty>,
        nothing: Option<()>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    pub struct Inner {
        a: u8,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    pub enum Word {
        One,
        Other(u8),
        Pair(u8, u8),
        Named { a: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "the values are only read")]
    pub enum Form {
        Small(u8),
        Named { a: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the values are only read")]
    pub struct Wrapped(u8);

    #[derive(Debug, Deserialize)]
    pub struct Empty;

    pub const FIELDS: [&str; 17] = [
        "text", "letter", "number", "small", "share", "is", "list", "map", "inner", "word", "form",
        "pair", "three", "wrapped", "empty", "nothing", "other",
    ];
    pub const VALUES: [&str; 25] = [
        "5",
        "-1",
        "300",
        "1.5",
        "18446744073709551615",
        "\"x y\"",
        "\"7\"",
        "true",
        "[]",
        "[1]",
        "[null]",
        "[\"a\", {}]",
        "{}",
        "{\"a\": \"x\"}",
        "{\"a\": null}",
        "{\"b\": [1]}",
        "{\"One\": 1}",
        "{\"Other\": \"x\"}",
        "{\"Pair\": 1}",
        "{\"Pair\": [1]}",
        "{\"Pair\": [1, 2, 3]}",
        "{\"Named\": 1}",
        "{\"Named\": []}",
        "\"Pair\"",
        "{\"Nope\": 1}",
    ];
    /// Words of Rust and of its readers.
    pub const RUST: &[&str] = &[
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
        "invalid",
        "null",
        "i64",
        "u8",
        "f64",
        "Every",
        "Inner",
        "Word",
        "Form",
        "Wrapped",
        "Empty",
    ];

    /// Returns the first word of Rust in a message.
    pub fn of_rust(message: &str) -> Option<&str> {
        let mut words = message.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.find(|word| RUST.contains(word))
    }
}

#[test]
fn a_no_break_space_in_a_comment_hides_no_mistake() {
    let text = "# Cam\u{e9}ra:\u{a0}ici\na: [b\n";
    assert_eq!(no_break_space(text), None);
    let mistake = read::<Value>(text).unwrap_err();
    assert!(!mistake.message.contains("no-break"), "{}", mistake.message);
    assert_eq!(no_break_space("a:\u{a0}b").unwrap().line, Some(1));
}

#[test]
fn no_message_has_a_word_of_rust() {
    use every_type::{Every, FIELDS, VALUES, of_rust};
    let mut wrong = 0;
    for (field, value) in FIELDS
        .iter()
        .flat_map(|field| VALUES.map(|value| (field, value)))
    {
        let text = format!("{{\"{field}\": {value}}}");
        let yaml = read::<Every>(&text).err().map(|mistake| mistake.message);
        let json = serde_json::from_str::<Value>(&text).unwrap();
        let json = serde_json::from_value::<Every>(json).err();
        let json = json.map(|error| reworded(&error.to_string()));
        for message in yaml.into_iter().chain(json) {
            assert_eq!(of_rust(&message), None, "{text}: {message}");
            wrong += 1;
        }
    }
    assert!(wrong > 400, "{wrong}");
    for text in [
        "5",
        "[1]",
        "text",
        "a: b: c",
        "x: [a, {b: c]",
        "x: {a: [}",
        "? [a]\n: b",
        "x: 'a' b",
        "x: \"\\q\"",
        "x: - a",
        "- a\nb: c",
        "<<: 1",
        "x: |a\n  b",
        "x: &a [*a]",
        "x: *a",
        "x: @a",
    ] {
        let mistake = read::<Every>(text).unwrap_err();
        let known = of_rust(&mistake.message).filter(|word| *word != "invalid");
        assert_eq!(known, None, "{text}: {}", mistake.message);
    }
}

#[test]
fn what_a_reader_says_is_said_in_words_of_yaml() {
    for (theirs, ours) in [
        (
            "invalid type: null, expected struct DiscoveryHandlerInfo",
            "is empty, must be a map",
        ),
        (
            "invalid type: sequence, expected PodSpec",
            "is a list, must be a map",
        ),
        (
            "invalid type: map, expected IntOrString",
            "is a map, must be a whole number or text",
        ),
        (
            "unknown variant `a`, expected one of `b`, `c`",
            "is \"a\", must be one of b, c",
        ),
        ("missing field `name` at line 1 column 2", "has no name"),
    ] {
        assert_eq!(reworded(theirs), ours, "{theirs}");
    }
}

#[test]
fn messages_that_the_sdk_words_too_have_the_same_words() {
    for (theirs, ours) in include!("../../../../sdk/src/details/wording.cases") {
        assert_eq!(reworded(theirs), ours, "{theirs}");
    }
}
