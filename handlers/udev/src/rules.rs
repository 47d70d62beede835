//! Parses a rule in the syntax of a udev rules file: `KERNEL=="video[0-9]*", ATTRS{idVendor}!="046d"`.
//!
//! Only comparisons are accepted; the error names rejected assignments and actions. As in udev, white space and commas
//! separate terms, and `\"` is a quote within a value.

use leafhost_sdk::udev::{Field, Rule, Term};

/// Upper bounds of terms per rule and of bytes per value, as on the host.
const MAX_TERMS: usize = 32;
const MAX_VALUE: usize = 1 << 10;

/// Keys of rules files that do not compare a device with a pattern.
const UNSUPPORTED: [&str; 18] = [
    "ACTION",
    "CONST",
    "GOTO",
    "GROUP",
    "IMPORT",
    "LABEL",
    "MODE",
    "NAME",
    "OPTIONS",
    "OWNER",
    "PROGRAM",
    "RESULT",
    "RUN",
    "SECLABEL",
    "SYSCTL",
    "SYSTEMD_WANTS",
    "TEST",
    "WAIT_FOR",
];

/// Characters that editors and web pages write in place of a double quote, and the single quote.
const QUOTES: [char; 11] = ['“', '”', '„', '‟', '«', '»', '″', '＂', '‘', '’', '\''];

/// Syntax error in a rule, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Position of the character, from 1.
    at: usize,
    /// Description of the problem.
    what: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "character {}: {}", self.at, self.what)
    }
}

/// Parses one rule.
pub fn parse(text: &str) -> Result<Rule, Mistake> {
    let mut reader = Reader { text, rest: text };
    let mut terms = Vec::new();
    loop {
        reader.skip(|c| c.is_whitespace() || c == ',');
        if reader.rest.is_empty() {
            break;
        }
        if terms.len() == MAX_TERMS {
            return Err(reader.mistake(format!("a rule has at most {MAX_TERMS} terms")));
        }
        terms.push(term(&mut reader)?);
    }
    if terms.is_empty() {
        let what = "the rule is empty; write at least one term, such as KERNEL==\"video*\"";
        return Err(reader.mistake(what));
    }
    Ok(terms)
}

fn term(reader: &mut Reader<'_>) -> Result<Term, Mistake> {
    let start = *reader;
    let name = reader.take(|c| c.is_ascii_alphanumeric() || c == '_');
    let Some((field, needs_key)) = field(name) else {
        return Err(start.mistake(match name {
            "" => no_field(start.rest),
            "SYMLINK" => no_symlink(*reader),
            _ if UNSUPPORTED.contains(&name) => {
                format!("{name} is not about finding devices; remove it")
            }
            _ => unknown(name, *reader),
        }));
    };
    let key = key(reader, name, needs_key)?;
    reader.skip(char::is_whitespace);
    let negated = operator(reader, name)?;
    reader.skip(char::is_whitespace);
    let value = value(reader)?;
    Ok(Term {
        field,
        key,
        negated,
        value,
    })
}

/// Describes a word that is no field. `reader` is behind the word; if a comparison follows, the word is probably a field in another case, a
/// property of udev or an attribute.
fn unknown(name: &str, mut reader: Reader<'_>) -> String {
    reader.skip(char::is_whitespace);
    let is_compared = reader.eat("==") || reader.eat("!=");
    let upper = name.to_ascii_uppercase();
    if field(&upper).is_some() {
        format!("unknown field {name}; write {upper}")
    } else if is_compared && upper == name {
        format!("unknown field {name}; write a property of udev as ENV{{{name}}}")
    } else if is_compared {
        format!("unknown field {name}; write an attribute as ATTRS{{{name}}}")
    } else {
        format!(
            "unknown field {name}; known are ATTR{{key}}, ATTRS{{key}}, DEVPATH, DRIVER, DRIVERS, ENV{{key}}, \
             KERNEL, KERNELS, SUBSYSTEM, SUBSYSTEMS, TAG and TAGS"
        )
    }
}

/// Describes how to compare links without SYMLINK. `reader` is positioned after the word SYMLINK; the remedy contains the
/// value that follows, if any.
fn no_symlink(mut reader: Reader<'_>) -> String {
    let written = comparison(&mut reader).unwrap_or_default();
    let (negated, links) = match written {
        (_, links) if links.is_empty() => (false, "serial/by-id/usb-*".to_owned()),
        written => written,
    };
    let operator = if negated { "!=" } else { "==" };
    let globs = links.split('|').map(|link| {
        let link = link.strip_prefix("/dev/").unwrap_or(link);
        let glob = format!("*/dev/{link}");
        if link.ends_with('*') {
            glob
        } else {
            // A space follows every link but the last.
            format!("{glob}|{glob} *")
        }
    });
    let globs: Vec<String> = globs.collect();
    let globs = globs.join("|").replace('"', "\\\"");
    format!(
        "SYMLINK is not known here; compare all links of the device: ENV{{DEVLINKS}}{operator}\"{globs}\""
    )
}

/// Parses an operator and a value; `None` if the text has another form.
fn comparison(reader: &mut Reader<'_>) -> Option<(bool, String)> {
    reader.skip(char::is_whitespace);
    let negated = operator(reader, "SYMLINK").ok()?;
    reader.skip(char::is_whitespace);
    Some((negated, value(reader).ok()?))
}

/// Describes a text that does not begin with a field.
fn no_field(text: &str) -> String {
    let expected = "expected a field, such as KERNEL or ENV{ID_MODEL}";
    let mut characters = text.chars();
    let (first, second) = (characters.next(), characters.next());
    match (first, second) {
        (Some('#'), _) => {
            "# begins no comment in a rule; remove it and the text after it".to_owned()
        }
        (Some('\\'), Some(',')) => {
            "\\, is how helm --set writes a comma; in a file write the comma alone".to_owned()
        }
        (Some('\\'), None | Some('\n' | '\r')) => {
            "a \\ continues no line here; remove it: a rule may have several lines".to_owned()
        }
        (Some(c), _) => format!("{}, but {expected}", found(c)),
        (None, _) => expected.to_owned(),
    }
}

/// Names an unexpected character, with its code point unless it is visible ASCII.
fn found(c: char) -> String {
    if c.is_ascii_graphic() {
        format!("found {c}")
    } else {
        format!("found {c:?} (U+{:04X})", u32::from(c))
    }
}

/// Describes a text that does not begin with a value in double quotes.
fn no_value(text: &str) -> String {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some('i'), Some('"')) => {
            "i\"…\" is not known here; write both cases, as in \"[Vv]ideo*\"".to_owned()
        }
        (Some('e'), Some('"')) => {
            "e\"…\" is not known here; write \"…\" with the characters themselves in place of escapes".to_owned()
        }
        (Some(c), _) if QUOTES.contains(&c) => {
            format!("{}, which is not a double quote; write \"", found(c))
        }
        (Some(c), _) => format!("{}, but expected a value in double quotes", found(c)),
        (None, _) => "expected a value in double quotes".to_owned(),
    }
}

fn field(name: &str) -> Option<(Field, bool)> {
    Some(match name {
        "ATTR" => (Field::Attr, true),
        "ATTRS" => (Field::Attrs, true),
        "DEVPATH" => (Field::Devpath, false),
        "DRIVER" => (Field::Driver, false),
        "DRIVERS" => (Field::Drivers, false),
        "ENV" => (Field::Env, true),
        "KERNEL" => (Field::Kernel, false),
        "KERNELS" => (Field::Kernels, false),
        "SUBSYSTEM" => (Field::Subsystem, false),
        "SUBSYSTEMS" => (Field::Subsystems, false),
        "TAG" => (Field::Tag, false),
        "TAGS" => (Field::Tags, false),
        _ => return None,
    })
}

fn key(reader: &mut Reader<'_>, name: &str, needed: bool) -> Result<Option<String>, Mistake> {
    let start = *reader;
    if !reader.eat("{") {
        return if needed {
            Err(start.mistake(format!("{name} needs a key, as in {name}{{name}}")))
        } else {
            Ok(None)
        };
    }
    if !needed {
        return Err(start.mistake(format!("{name} takes no key")));
    }
    let key = reader.take(|c| c != '}' && c != '"');
    if !reader.eat("}") {
        return Err(reader.mistake("expected } after the key"));
    }
    if matches!(name, "ATTR" | "ATTRS") && (key.starts_with('[') || key.contains(['$', '%'])) {
        let what = "an attribute of another device ([) and substitutions ($, %) are not known here; write the attribute's name";
        return Err(start.mistake(what));
    }
    if key.is_empty() || key.len() > 256 || key.chars().any(char::is_control) {
        return Err(start.mistake("the key must be 1 to 256 bytes without control characters"));
    }
    Ok(Some(key.to_owned()))
}

/// Parses an operator; returns true for `!=`.
fn operator(reader: &mut Reader<'_>, name: &str) -> Result<bool, Mistake> {
    if reader.eat("==") {
        return Ok(false);
    }
    if reader.eat("!=") {
        return Ok(true);
    }
    for assignment in ["+=", "-=", ":=", "="] {
        if reader.rest.starts_with(assignment) {
            return Err(reader.mistake(format!(
                "{assignment} assigns, and a rule here only compares; use {name}== or {name}!="
            )));
        }
    }
    Err(reader.mistake(format!("expected == or != after {name}")))
}

fn value(reader: &mut Reader<'_>) -> Result<String, Mistake> {
    let start = *reader;
    if !reader.eat("\"") {
        return Err(start.mistake(no_value(start.rest)));
    }
    let mut value = String::new();
    loop {
        value.push_str(reader.take(|c| c != '"' && c != '\\'));
        if reader.eat("\\\"") {
            value.push('"');
        } else if reader.eat("\\") {
            value.push('\\');
        } else if reader.eat("\"") {
            break;
        } else {
            let quote = value.chars().rev().find(|c| QUOTES.contains(c));
            let found = quote.map(|c| format!("; {c} (U+{:04X}) is none", u32::from(c)));
            let what = "the value is not closed by a double quote";
            return Err(start.mistake(format!("{what}{}", found.unwrap_or_default())));
        }
    }
    if value.len() > MAX_VALUE {
        return Err(start.mistake(format!("a value has at most {MAX_VALUE} bytes")));
    }
    if value.chars().any(char::is_control) {
        return Err(start.mistake("a value has no control characters"));
    }
    Ok(value)
}

/// Returns true if the value contains syntax of a regular expression, as in Akri, that a glob does not use: `.*`, `+`, `(`,
/// or a backslash before a character without meaning in a glob.
pub fn looks_like_regex(value: &str) -> bool {
    let mut rest = value.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('\\', Some('\\' | '*' | '?' | '[' | ']' | '!' | '^' | '-')) => {
                rest.next();
            }
            ('+' | '(', _) | ('.', Some('*')) | ('\\', Some(_)) => return true,
            _ => {}
        }
    }
    false
}

/// Returns true if the value looks like a regular expression but is the natural glob for ports of a bus: `1-1.*` for those
/// of a hub, `0000:00:1f.*` for the functions of a PCI device. The attribute `devpath` contains a port without its bus.
pub fn looks_like_port(value: &str, key: Option<&str>) -> bool {
    let mut in_doubt = value
        .split('|')
        .filter(|text| looks_like_regex(text))
        .peekable();
    in_doubt.peek().is_some() && in_doubt.all(|text| is_port(text, key == Some("devpath")))
}

/// Returns true if the text consists of numbers and wildcards between `-`, `:` and `.`, with a bus before the port.
fn is_port(text: &str, has_bus: bool) -> bool {
    let (text, mut has_bus) = match text.strip_prefix("spi") {
        Some(port) => (port, true),
        None => (text, has_bus),
    };
    let mut is_empty = true;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '[' => {
                if !rest.any(|c| c == ']') {
                    return false;
                }
                is_empty = false;
            }
            '-' | ':' | '.' if is_empty => return false,
            '-' | ':' => (has_bus, is_empty) = (true, true),
            '.' => is_empty = true,
            '*' | '?' => is_empty = false,
            _ if c.is_ascii_hexdigit() => is_empty = false,
            _ => return false,
        }
    }
    has_bus && !is_empty && text.starts_with(|c: char| !c.is_ascii_alphabetic())
}

/// Returns the remark on a term that Akri read as a regular expression and udev does not.
pub fn remark(term: &Term) -> Option<String> {
    let was_regex = match term.field {
        Field::Driver
        | Field::Attrs
        | Field::Drivers
        | Field::Kernels
        | Field::Subsystems
        | Field::Tags => true,
        Field::Devpath | Field::Env | Field::Kernel | Field::Tag => term.negated,
        Field::Attr | Field::Subsystem => false,
    };
    let value = &term.value;
    if !was_regex || !looks_like_regex(value) {
        return None;
    }
    Some(if term.negated {
        format!(
            "{value:?} is a glob, as in udev, and excludes less than the regular expression it was in Akri; write it as a glob"
        )
    } else if looks_like_port(value, term.key.as_deref()) {
        format!(
            "{value:?} is read as a glob, because it looks like ports of a bus; for the regular expression that it was in Akri write \"({value})\""
        )
    } else {
        format!(
            "{value:?} is also read as a regular expression, as in Akri, and may match more than in udev, unless it fits a \
             device of the node as a glob; write it as a glob, for one with a dot [.]* instead of .*"
        )
    })
}

/// Cursor over a text.
#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, accepts: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accepts(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn skip(&mut self, accepts: impl Fn(char) -> bool) {
        self.take(accepts);
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn mistake(&self, what: impl Into<String>) -> Mistake {
        let read = self.text.len().saturating_sub(self.rest.len());
        let before = self.text.get(..read).unwrap_or_default();
        Mistake {
            at: before.chars().count() + 1,
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rule: &[Term]) -> Vec<String> {
        rule.iter()
            .map(|term| {
                format!(
                    "{:?}{{{}}}{}{}",
                    term.field,
                    term.key.as_deref().unwrap_or_default(),
                    if term.negated { "!=" } else { "==" },
                    term.value
                )
            })
            .collect()
    }

    #[test]
    fn rules_of_udev_and_akri_are_parsed() {
        let table: [(&str, &[&str]); 12] = [
            (
                r#"KERNEL=="video[0-9]*""#,
                &["Field::Kernel{}==video[0-9]*"],
            ),
            (
                r#"SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*""#,
                &[
                    "Field::Subsystem{}==video4linux",
                    "Field::Env{ID_V4L_CAPABILITIES}==*:capture:*",
                ],
            ),
            (
                r#"ATTRS{idVendor}!="046d",KERNELS=="1-1""#,
                &["Field::Attrs{idVendor}!=046d", "Field::Kernels{}==1-1"],
            ),
            (
                r#" ATTR{device/vendor} == "0x8086" , "#,
                &["Field::Attr{device/vendor}==0x8086"],
            ),
            (
                "TAG==\"a\"\n TAGS==\"b\" DRIVER!=\"\"",
                &["Field::Tag{}==a", "Field::Tags{}==b", "Field::Driver{}!="],
            ),
            (r#"DRIVERS=="a|b""#, &["Field::Drivers{}==a|b"]),
            (r#"SUBSYSTEMS=="usb""#, &["Field::Subsystems{}==usb"]),
            (
                r#"DEVPATH=="/devices/pci0000:00/*/{a}%k$x""#,
                &["Field::Devpath{}==/devices/pci0000:00/*/{a}%k$x"],
            ),
            (r#"ENV{A}=="a\"b""#, &["Field::Env{A}==a\"b"]),
            (r#"ENV{A}=="a\*\\b""#, &[r"Field::Env{A}==a\*\\b"]),
            (r#"ENV{A}=="Größe""#, &["Field::Env{A}==Größe"]),
            (r#"ENV{A}=="a, b==c""#, &["Field::Env{A}==a, b==c"]),
        ];
        for (text, expected) in table {
            let rule = parse(text).map(|rule| written(&rule));
            assert_eq!(
                rule,
                Ok(expected.iter().map(|&s| s.to_owned()).collect()),
                "{text}"
            );
        }
    }

    /// Checks the table that the test of the same function in `leafhost-udev` reads, too; that function decides how values
    /// match.
    #[test]
    fn values_that_look_like_regular_expressions_are_those_of_the_table() {
        for line in include_str!("../../../tests/contract/udev_patterns.txt").lines() {
            let (kind, value) = line.split_once(' ').unwrap_or((line, ""));
            let is_port = kind == "port";
            assert_eq!(
                looks_like_regex(value),
                kind == "regex" || is_port,
                "{line:?}"
            );
            assert_eq!(looks_like_port(value, None), is_port, "{line:?}");
        }
    }

    #[test]
    fn the_remedy_for_symlink_has_the_value() {
        for (text, remedy) in [
            (
                "SYMLINK==\"zigbee\"",
                "ENV{DEVLINKS}==\"*/dev/zigbee|*/dev/zigbee *\"",
            ),
            (
                "SYMLINK == \"/dev/serial/by-id/usb-X*\"",
                "ENV{DEVLINKS}==\"*/dev/serial/by-id/usb-X*\"",
            ),
            (
                "SYMLINK!=\"a*|b\"",
                "ENV{DEVLINKS}!=\"*/dev/a*|*/dev/b|*/dev/b *\"",
            ),
            ("SYMLINK==\"a\\\"*\"", "ENV{DEVLINKS}==\"*/dev/a\\\"*\""),
            (
                "SYMLINK+=\"zigbee\"",
                "ENV{DEVLINKS}==\"*/dev/serial/by-id/usb-*\"",
            ),
            ("SYMLINK", "ENV{DEVLINKS}==\"*/dev/serial/by-id/usb-*\""),
        ] {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.what.ends_with(remedy), "{text}: {mistake}");
            assert!(parse(remedy).is_ok(), "{remedy}");
        }
    }

    #[test]
    fn a_mistake_names_position_and_cause() {
        let many = r#"TAG=="a""#.repeat(MAX_TERMS + 1);
        let long = format!("TAG==\"{}\"", "x".repeat(MAX_VALUE + 1));
        let table = [
            ("", 1, "at least one term"),
            (" , ", 4, "at least one term"),
            ("kernel==\"a\"", 1, "unknown field kernel; write KERNEL"),
            ("idVendor==\"10c4\"", 1, "as ATTRS{idVendor}"),
            ("DEVNAME != \"/dev/a\"", 1, "as ENV{DEVNAME}"),
            ("ttyUSB0", 1, "unknown field ttyUSB0; known are"),
            ("KERNEL==\"a\", ACTION==\"add\"", 14, "ACTION is not about"),
            ("RUN{program}+=\"/bin/x\"", 1, "RUN is not about"),
            ("KERNEL=\"a\"", 7, "= assigns"),
            ("ENV{A}+=\"a\"", 7, "+= assigns"),
            ("KERNEL:=\"a\"", 7, ":= assigns"),
            ("KERNEL-=\"a\"", 7, "-= assigns"),
            ("KERNEL", 7, "expected == or !="),
            ("KERNEL==a", 9, "in double quotes"),
            ("KERNEL==e\"a\"", 9, "in place of escapes"),
            ("KERNEL==i\"a\"", 9, "[Vv]ideo"),
            (
                "KERNEL==“a”",
                9,
                "'“' (U+201C), which is not a double quote",
            ),
            ("KERNEL=='a'", 9, "found ', which is not a double quote"),
            ("KERNEL==\"a”", 9, "” (U+201D) is none"),
            ("KERNEL==\u{a0}\"a\" x", 14, "unknown field x"),
            ("KERNEL==\"a\"\\, TAG==\"b\"", 12, "helm --set"),
            ("KERNEL==\"a\", \\", 14, "continues no line"),
            ("KERNEL==\"a\", \\\n TAG==\"b\"", 14, "continues no line"),
            ("KERNEL==\"a\" # cameras", 13, "no comment"),
            ("KERNEL==\"a\", SYMLINK==\"zigbee\"", 14, "ENV{DEVLINKS}"),
            ("\u{200b}KERNEL==\"a\"", 1, "(U+200B), but expected a field"),
            ("ENV{A}==\"größer", 9, "not closed"),
            ("ENV{größe}==\"a\", X", 18, "unknown field X"),
            ("ENV==\"a\"", 4, "ENV needs a key"),
            ("ENV{}==\"a\"", 4, "the key must be"),
            ("ENV{A==\"a\"", 8, "expected }"),
            ("KERNEL{a}==\"a\"", 7, "KERNEL takes no key"),
            (
                "KERNEL==\"a\"; TAG==\"b\"",
                12,
                "found ;, but expected a field",
            ),
            ("TAG==\"a\u{1}\"", 6, "control characters"),
            ("ATTR{[dmi/id]sys_vendor}==\"a\"", 5, "not known here"),
            ("ATTRS{queue/$kernel}==\"a\"", 6, "not known here"),
            (many.as_str(), 257, "at most 32 terms"),
            (long.as_str(), 6, "at most 1024 bytes"),
        ];
        for (text, at, words) in table {
            let mistake = parse(text).unwrap_err();
            assert_eq!(mistake.at, at, "{text}: {mistake}");
            assert!(mistake.what.contains(words), "{text}: {mistake}");
        }
    }
}
