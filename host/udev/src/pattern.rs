//! Patterns: udev's globs, and values that Akri read as regular expressions.
//!
//! As in udev, a glob has the meaning of `fnmatch(3)` without flags in the C locale: `*` and `?` match any byte, including `/` and a
//! leading dot. Both forms match in time bounded by the product of text and pattern.

use regex_lite::{Regex, RegexBuilder};

use crate::glob;

/// Maximum size of a compiled expression, in bytes: a few thousand steps.
const MAX_COMPILED: usize = 64 << 10;

/// Result of a match, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    /// The pattern does not match.
    No,
    /// The pattern matches as a regular expression only.
    Regex,
    /// The pattern matches as a glob, as in udev.
    Glob,
}

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// Globs separated by `|`.
    value: String,
    regex: Option<Regex>,
}

impl Pattern {
    /// Creates a pattern of globs separated by `|`.
    pub(crate) fn glob(value: &str) -> Self {
        Self {
            value: value.to_owned(),
            regex: None,
        }
    }

    /// Creates a glob that is also a regular expression for the whole text, if the value looks like a valid one.
    pub(crate) fn glob_or_regex(value: &str) -> Self {
        let mut pattern = Self::glob(value);
        // Compiled alone first: `a)|(b` is not an expression, but would become one between parentheses.
        if looks_like_regex(value) && compile(value).is_some() {
            pattern.regex = compile(&format!("^(?:{value})$"));
        }
        pattern
    }

    /// Matches `text`. An empty text never matches as a regular expression.
    pub(crate) fn matches(&self, text: &[u8]) -> Match {
        if self.matches_glob(text) {
            Match::Glob
        } else if !text.is_empty() && self.matches_regex(text) {
            Match::Regex
        } else {
            Match::No
        }
    }

    /// Returns the globs among the alternatives that look like regular expressions, if the value may be one.
    pub(crate) fn globs_in_doubt(&self) -> Option<Self> {
        self.regex.as_ref()?;
        let alternatives = self.value.split('|');
        let in_doubt: Vec<&str> = alternatives.filter(|text| looks_like_regex(text)).collect();
        (!in_doubt.is_empty()).then(|| Self::glob(&in_doubt.join("|")))
    }

    /// Restricts the pattern to a glob.
    pub(crate) fn read_as_glob(&mut self) {
        self.regex = None;
    }

    fn matches_glob(&self, text: &[u8]) -> bool {
        // As in udev: without any of these, alternatives are compared literally, including backslashes.
        let is_glob = self.value.contains(['*', '?', '[']);
        self.value.as_bytes().split(|c| *c == b'|').any(|pattern| {
            if is_glob {
                glob::matches(pattern, text)
            } else {
                pattern == text
            }
        })
    }

    fn matches_regex(&self, text: &[u8]) -> bool {
        self.regex
            .as_ref()
            .is_some_and(|regex| std::str::from_utf8(text).is_ok_and(|text| regex.is_match(text)))
    }

    /// Returns true if every text matches.
    pub(crate) fn is_any(&self) -> bool {
        self.value.split('|').any(|alternative| alternative == "*")
    }

    /// Returns true if the pattern may also be read as a regular expression.
    pub(crate) fn is_regex(&self) -> bool {
        self.regex.is_some()
    }

    /// Returns true if trailing white space of an attribute is ignored, that is, if the pattern itself does not end with white space. As in
    /// udev, the first non-empty alternative decides for all, and an empty pattern ignores nothing.
    pub(crate) fn trims(&self) -> bool {
        let first = self.value.split('|').find(|text| !text.is_empty());
        first.is_some_and(|text| !text.ends_with([' ', '\t', '\n', '\r', '\x0b', '\x0c']))
    }
}

/// Returns true if the value contains something that a glob does not use: `.*`, `+`, `(`, or a backslash before a character without
/// meaning in a glob.
fn looks_like_regex(value: &str) -> bool {
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

/// Returns true if the value looks like a regular expression but is the natural glob for ports of a bus: `1-1.*` for
/// those of a hub, `0000:00:1f.*` for the functions of a PCI device. The attribute `devpath` has a port without its bus.
pub(crate) fn looks_like_port(value: &str, key: Option<&str>) -> bool {
    let mut in_doubt = value
        .split('|')
        .filter(|text| looks_like_regex(text))
        .peekable();
    in_doubt.peek().is_some() && in_doubt.all(|text| is_port(text, key == Some("devpath")))
}

/// Returns true if the text consists of numbers and wildcards separated by `-`, `:` and `.`, with a bus before the port.
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

fn compile(text: &str) -> Option<Regex> {
    RegexBuilder::new(text)
        .dot_matches_new_line(true)
        .size_limit(MAX_COMPILED)
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_globs_if_one_of_them_is() {
        let table: [(&str, &[&str], &[&str]); 9] = [
            ("null", &["null"], &["nul", "nulll", ""]),
            ("a|b", &["a", "b"], &["a|b", "ab", ""]),
            ("sd*|nvme?", &["sda1", "nvme0"], &["nvme", "hda"]),
            ("", &[""], &["a"]),
            ("|a", &["", "a"], &["b"]),
            (r"a\b", &[r"a\b"], &["ab"]),
            (r"a\b|x*", &["ab", "x"], &[r"a\b"]),
            ("[a|b]", &["[a", "b]"], &["a", "b"]),
            ("*", &["", "x", "a\nb"], &[]),
        ];
        for (value, held, not) in table {
            let pattern = Pattern::glob(value);
            for text in held {
                assert_eq!(
                    pattern.matches(text.as_bytes()),
                    Match::Glob,
                    "{value:?} on {text:?}"
                );
            }
            for text in not {
                assert_eq!(
                    pattern.matches(text.as_bytes()),
                    Match::No,
                    "{value:?} on {text:?}"
                );
            }
        }
    }

    #[test]
    fn a_regular_expression_is_recognized_and_matches_the_whole_text() {
        let table = [
            ("n.*", "null", Match::Regex),
            ("n.*", "n.*", Match::Glob),
            ("video[0-9]+", "video10", Match::Regex),
            ("(a|ab)", "ab", Match::Regex),
            (r"00:1f\.3", "00:1f.3", Match::Regex),
            (r"v\d", "v1", Match::Regex),
            ("a)|(b", "b", Match::No),
            ("(", "(", Match::Glob),
            ("(x){1000}{1000}", "x", Match::No),
            // Globs stay globs.
            ("0*", "", Match::No),
            ("0*", "00", Match::Glob),
            ("0*", "1", Match::No),
            ("u*", "uuu", Match::Glob),
            ("vda?", "vda", Match::No),
            ("vd[!a]", "vda", Match::No),
            ("ttyS*", "tty", Match::No),
            ("tty1?", "tty1", Match::No),
            (r"a\*", "aa", Match::No),
            (r"a\\b", r"a\b", Match::No),
            ("[0-9]{2}", "12", Match::No),
            ("a.c", "abc", Match::No),
            ("^a$", "a", Match::No),
            // An expression never matches an empty text.
            (".*", "", Match::No),
            ("(a|)", "", Match::No),
        ];
        for (value, text, expected) in table {
            assert_eq!(
                Pattern::glob_or_regex(value).matches(text.as_bytes()),
                expected,
                "{value:?} on {text:?}"
            );
            assert_ne!(Pattern::glob(value).matches(text.as_bytes()), Match::Regex);
        }
    }

    /// Shares its table with the test of the udev handler, whose own function warns of such values.
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
    fn the_attribute_devpath_has_ports_without_a_bus() {
        for (value, key, expected) in [
            ("1.*", Some("devpath"), true),
            ("1.4.*|2.*", Some("devpath"), true),
            ("1.*", Some("idVendor"), false),
            ("1.*", None, false),
            (".*", Some("devpath"), false),
            ("1*", Some("devpath"), false),
        ] {
            assert_eq!(looks_like_port(value, key), expected, "{value} {key:?}");
        }
    }

    #[test]
    fn the_first_alternative_decides_whether_trailing_white_space_counts() {
        let table = [
            ("a", true),
            ("a ", false),
            ("a |b", false),
            ("a|b ", true),
            ("|a ", false),
            ("", false),
            ("|", false),
            ("*", true),
        ];
        for (value, expected) in table {
            assert_eq!(Pattern::glob(value).trims(), expected, "{value:?}");
        }
    }
}
