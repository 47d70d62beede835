//! Patterns: udev's globs, and the same text read as a regular expression.
//!
//! A glob is what udev takes from `fnmatch(3)` without flags: `*` and `?` match any character, `/` and a leading dot
//! included. Both forms are matched in time linear in text and pattern, whoever wrote them.

use regex_lite::{Regex, RegexBuilder};

/// What a compiled pattern may take, in bytes: some thousand steps.
const MAX_COMPILED: usize = 64 << 10;

/// How a text matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// Not at all.
    No,
    /// As a glob: what udev would say.
    Glob,
    /// As a regular expression only.
    Regex,
}

/// A pattern, ready to match.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    alternatives: Vec<Alternative>,
    regex: Option<Regex>,
    trims: bool,
}

#[derive(Debug, Clone)]
enum Alternative {
    Text(String),
    Any,
    Glob(Regex),
}

impl Pattern {
    /// Globs between `|`.
    pub(crate) fn glob(value: &str) -> Self {
        let is_glob = value.contains(['*', '?', '[']);
        let alternatives = value
            .split('|')
            .filter_map(|alternative| match alternative {
                "*" => Some(Alternative::Any),
                _ if is_glob => translate(alternative)
                    .and_then(|text| compile(&text))
                    .map(Alternative::Glob),
                text => Some(Alternative::Text(text.to_owned())),
            })
            .collect();
        Self {
            alternatives,
            regex: None,
            trims: !value.ends_with(char::is_whitespace),
        }
    }

    /// Globs, or a regular expression for the whole text.
    pub(crate) fn glob_or_regex(value: &str) -> Self {
        let mut pattern = Self::glob(value);
        // Compiled for itself first: `a)|(b` is no expression, but would become one between parentheses.
        if regex_lite::escape(value) != value && compile(value).is_some() {
            pattern.regex = compile(&format!("^(?:{value})$"));
        }
        pattern
    }

    /// How `text` matches.
    pub(crate) fn matches(&self, text: &str) -> Match {
        let glob = self
            .alternatives
            .iter()
            .any(|alternative| match alternative {
                Alternative::Any => true,
                Alternative::Text(expected) => expected == text,
                Alternative::Glob(regex) => regex.is_match(text),
            });
        if glob {
            Match::Glob
        } else if self
            .regex
            .as_ref()
            .is_some_and(|regex| regex.is_match(text))
        {
            Match::Regex
        } else {
            Match::No
        }
    }

    /// Whether every text matches, so that a match says nothing.
    pub(crate) fn is_any(&self) -> bool {
        self.alternatives
            .iter()
            .any(|alternative| matches!(alternative, Alternative::Any))
    }

    /// Whether white space at the end of an attribute is left out of the comparison, as in udev: yes, unless the
    /// pattern itself ends with some.
    pub(crate) fn trims(&self) -> bool {
        self.trims
    }
}

fn compile(text: &str) -> Option<Regex> {
    RegexBuilder::new(text)
        .dot_matches_new_line(true)
        .size_limit(MAX_COMPILED)
        .build()
        .ok()
}

/// The regular expression for one glob. None for a glob that matches nothing, such as one that ends in `\`.
fn translate(glob: &str) -> Option<String> {
    let mut out = String::from("^");
    let mut rest = glob;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            // One star does for many: `**…*` must not cost more than `*`.
            '*' if out.ends_with(".*") => {}
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '\\' => {
                let escaped = rest.chars().next()?;
                push_literal(&mut out, escaped);
                rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
            }
            '[' => match bracket(rest) {
                Some((class, after)) => {
                    out.push_str(&class);
                    rest = after;
                }
                None => push_literal(&mut out, '['),
            },
            literal => push_literal(&mut out, literal),
        }
    }
    out.push('$');
    Some(out)
}

/// The class after `[` and what follows it, or None where no `]` closes it: then the `[` stands for itself.
fn bracket(text: &str) -> Option<(String, &str)> {
    let mut class = String::from("[");
    let mut rest = text;
    if let Some(negated) = rest.strip_prefix(['!', '^']) {
        class.push('^');
        rest = negated;
    }
    let mut first = true;
    loop {
        if let Some(named) = rest.strip_prefix("[:")
            && let Some((name, after)) = named.split_once(":]")
        {
            class.push_str("[:");
            class.push_str(name);
            class.push_str(":]");
            rest = after;
            first = false;
            continue;
        }
        let c = rest.chars().next()?;
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            ']' if !first => {
                class.push(']');
                return Some((class, rest));
            }
            '\\' => {
                let escaped = rest.chars().next()?;
                push_literal(&mut class, escaped);
                rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
            }
            // Between two characters a range; at either end a minus.
            '-' if !first && !rest.starts_with(']') => class.push('-'),
            literal => push_literal(&mut class, literal),
        }
        first = false;
    }
}

fn push_literal(out: &mut String, c: char) {
    out.push_str(&regex_lite::escape(c.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_udev() {
        let table: [(&str, &[&str], &[&str]); 23] = [
            ("null", &["null"], &["nul", "nulll", ""]),
            ("video*", &["video", "video0", "video/x"], &["avideo0"]),
            ("video[0-9]*", &["video0", "video10"], &["video", "videox"]),
            ("a?c", &["abc", "a/c", "aéc"], &["ac", "abbc"]),
            ("a|b", &["a", "b"], &["a|b", "ab", ""]),
            ("sd*|nvme?", &["sda1", "nvme0"], &["nvme", "hda"]),
            ("[!n]*", &["zero"], &["null", ""]),
            ("[^n]*", &["zero"], &["null"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[-a]", &["a", "-"], &["b"]),
            ("[[:digit:]]x", &["1x"], &["ax"]),
            ("[a&&b]", &["&", "a"], &["c"]),
            ("a[b", &["a[b"], &["ab"]),
            ("[z-a]", &[], &["z", "a"]),
            ("?*", &["x"], &[""]),
            ("", &[""], &["a"]),
            ("|a", &["", "a"], &["b"]),
            ("a.c*", &["a.c", "a.cd"], &["abc"]),
            (r"a\**", &["a*b"], &["ab"]),
            (r"a\b", &[r"a\b"], &["ab"]),
            (r"*\", &[], &["", "a", r"\"]),
            ("*", &["", "x", "a\nb"], &[]),
        ];
        for (glob, held, not) in table {
            let pattern = Pattern::glob(glob);
            for text in held {
                assert_eq!(pattern.matches(text), Match::Glob, "{glob:?} on {text:?}");
            }
            for text in not {
                assert_eq!(pattern.matches(text), Match::No, "{glob:?} on {text:?}");
            }
        }
    }

    #[test]
    fn a_regular_expression_must_match_the_whole_text() {
        let table = [
            ("n.*", "null", Match::Regex),
            ("n.*", "n.*", Match::Glob),
            ("video[0-9]+", "video10", Match::Regex),
            ("a|ab", "ab", Match::Glob),
            ("(a|ab)", "ab", Match::Regex),
            ("[0-9]{2}", "12", Match::Regex),
            ("[0-9]{2}", "123", Match::No),
            ("a)|(b", "b", Match::No),
            ("(", "(", Match::Glob),
            ("x{1000}{1000}", "x", Match::No),
        ];
        for (value, text, expected) in table {
            assert_eq!(
                Pattern::glob_or_regex(value).matches(text),
                expected,
                "{value:?} on {text:?}"
            );
            assert_ne!(Pattern::glob(value).matches(text), Match::Regex);
        }
    }
}
