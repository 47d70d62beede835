//! Text that a guest wrote, made fit for logs and terminals: bounded, on one line, without secrets.
//!
//! What it takes to mask secrets depends on how much is shown, not on how much a guest says or how long the secrets are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use leafhost_core::session::Property;
pub(crate) use leafhost_core::text::clean;

/// What stands for a secret.
const MASK: &str = "***";

/// At most `max` bytes of `text`, cut between characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// A line of a secret with several lines is masked by itself if it has so many bytes: guests write line by line.
const MASKED_LINE: usize = 8;
/// Longer secrets are masked in pieces of at most so many bytes: whoever has that much of a text before them has the whole of a piece.
pub(crate) const LONGEST_PIECE: usize = 1024;
/// So many bytes of a piece are looked for; the rest is compared where they are found.
const SOUGHT: usize = 16;

/// The values that must not be seen.
#[derive(Default)]
pub(crate) struct Secrets {
    /// By the name of the property.
    values: Vec<(String, String)>,
    /// Finds how pieces begin.
    beginnings: Option<AhoCorasick>,
    /// The pieces, by their beginning: values and their lines, also as messages quote them.
    pieces: Vec<Vec<String>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets")
            .field("values", &self.values.len())
            .finish_non_exhaustive()
    }
}

/// `text` as it stands between the quotes of a message.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

/// `text` in pieces that are about as long as each other: none is so short that it is found everywhere.
fn in_pieces(mut text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let left = text.len().div_ceil(LONGEST_PIECE);
        let (piece, rest) = match cut(text, text.len().div_ceil(left)).len() {
            0 => (text, ""),
            end => text.split_at(end),
        };
        pieces.push(piece.to_owned());
        text = rest;
    }
    pieces
}

impl Secrets {
    /// The secret ones of `properties`. A value that ends in a line end is also known without.
    pub(crate) fn new(properties: &[Property]) -> Self {
        let mut values = Vec::new();
        for property in properties.iter().filter(|property| property.secret) {
            let Some(value) = property.value.as_deref() else {
                continue;
            };
            let text = String::from_utf8_lossy(value).trim().to_owned();
            if !text.is_empty() {
                values.push((property.name.clone(), text));
            }
        }
        let lines = values.iter().flat_map(|(_, value)| value.lines());
        let lines = lines.map(str::trim);
        let masked = lines
            .filter(|line| line.len() >= MASKED_LINE)
            .chain(values.iter().map(|(_, value)| value.as_str()))
            .flat_map(|text| [text.to_owned(), escaped(text)]);
        let mut by_beginning: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
        for piece in masked.flat_map(|text| in_pieces(&text)) {
            let beginning = piece.bytes().take(SOUGHT).collect();
            let pieces = by_beginning.entry(beginning).or_default();
            if !pieces.contains(&piece) {
                pieces.push(piece);
            }
        }
        let found = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(by_beginning.keys());
        Self {
            values,
            // Without patterns there is nothing to find; of more than there can be in memory there are none.
            beginnings: found.ok().filter(|_| !by_beginning.is_empty()),
            pieces: by_beginning.into_values().collect(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The name of a property whose value is in `text`.
    pub(crate) fn find(&self, text: &str) -> Option<&str> {
        self.values
            .iter()
            .find(|(_, value)| text.contains(value.as_str()))
            .map(|(name, _)| name.as_str())
    }

    /// At most `max` bytes of `text` without secrets, cleaned; `…` says that there is more. One that the end goes through is masked
    /// as a whole.
    pub(crate) fn clean(&self, text: &str, max: usize) -> String {
        let shown = cut(text, max);
        let (masked, end) = self.masked(text, shown.len());
        let mut cleaned = clean(&masked, max);
        if end < text.len() && !cleaned.ends_with('…') {
            cleaned.push('…');
        }
        cleaned
    }

    /// `text` without secrets.
    pub(crate) fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.masked(text, text.len()).0
    }

    /// The first `shown` bytes of `text` without secrets, and where what follows begins.
    fn masked<'a>(&self, text: &'a str, shown: usize) -> (Cow<'a, str>, usize) {
        let part = |from, to| text.get(from..to).unwrap_or_default();
        let secrets = self.within(text.as_bytes(), shown);
        if secrets.is_empty() {
            return (part(0, shown).into(), shown);
        }
        let (mut masked, mut at) = (String::new(), 0);
        for secret in secrets {
            masked.push_str(part(at, secret.start));
            masked.push_str(MASK);
            at = secret.end;
        }
        masked.push_str(part(at, shown));
        (masked.into(), at.max(shown))
    }

    /// Where a line that has no end yet is cut: at `at`, or behind a secret there.
    pub(crate) fn cut_at(&self, line: &[u8], at: usize) -> usize {
        let last = self.within(line, at).pop();
        last.map_or(at, |last| last.end.max(at))
    }

    /// Where there are secrets that begin before `end`, in order, those that overlap as one.
    fn within(&self, text: &[u8], end: usize) -> Vec<Range<usize>> {
        let Some(beginnings) = &self.beginnings else {
            return Vec::new();
        };
        let looked_at = end.saturating_add(SOUGHT).min(text.len());
        let looked_at = text.get(..looked_at).unwrap_or_default();
        let mut found: Vec<Range<usize>> = beginnings
            .find_overlapping_iter(looked_at)
            .filter(|beginning| beginning.start() < end)
            .filter_map(|beginning| {
                let start = beginning.start();
                let rest = text.get(start..)?;
                let pieces = self.pieces.get(beginning.pattern().as_usize())?;
                let there = pieces
                    .iter()
                    .filter(|piece| rest.starts_with(piece.as_bytes()));
                let longest = there.map(String::len).max()?;
                Some(start..start + longest)
            })
            .collect();
        found.sort_by_key(|secret| secret.start);
        found.dedup_by(|next, before| {
            let overlaps = next.start < before.end;
            if overlaps {
                before.end = before.end.max(next.end);
            }
            overlaps
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let properties: Vec<Property> = values
            .iter()
            .map(|value| Property {
                name: format!("n{value}").trim().to_owned(),
                value: Some(value.as_bytes().into()),
                secret: true,
            })
            .collect();
        Secrets::new(&properties)
    }

    #[test]
    fn text_is_cut_between_characters_and_kept_on_one_line() {
        assert_eq!(clean("a\nb\u{1b}[31m\0", 100), "a\\nb\\u{1b}[31m\\u{0}");
        assert_eq!(clean("äöü", 3), "ä…");
        assert_eq!(clean("abc", 3), "abc");
        for (text, shown) in [
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{61c}b", "a\\u{61c}b"),
            ("a\u{200b}\u{200f}", "a\\u{200b}\\u{200f}"),
            ("\u{feff}a\u{ad}", "\\u{feff}a\\u{ad}"),
            ("a\u{e0041}\u{3164}", "a\\u{e0041}\\u{3164}"),
        ] {
            assert_eq!(clean(text, 100), shown);
        }
    }

    #[test]
    fn secrets_are_masked_also_at_the_cut_and_inside_each_other() {
        let secrets = secrets(&["hunter2\n", "hunter2000"]);
        assert_eq!(secrets.clean("pw=hunter2000, hunter2", 100), "pw=***, ***");
        assert_eq!(secrets.clean("0123456 hunter2", 12), "0123456 ***");
        assert_eq!(secrets.find("xhunter2y"), Some("nhunter2"));
        assert_eq!(secrets.find("other"), None);
    }

    #[test]
    fn a_secret_of_several_lines_is_masked_line_by_line() {
        let secrets = secrets(&["-----BEGIN KEY-----\nMIIEvQIBADAN\nab\n-----END KEY-----\n"]);
        assert_eq!(secrets.clean("key MIIEvQIBADAN", 100), "key ***");
        assert_eq!(secrets.clean("cable", 100), "cable");
        assert_eq!(secrets.find("-----BEGIN KEY-----"), None);
    }

    #[test]
    fn of_a_cut_text_no_part_of_a_secret_is_shown_whatever_was_masked_before_it() {
        let long: String = (0..1000)
            .map(|n: u64| char::from(b'a' + u8::try_from(n * n % 25).unwrap()))
            .collect();
        let secrets = secrets(&[&long]);
        let text = format!("{long}{}{long}", "-".repeat(524));
        let shown = secrets.clean(&text, 1024);
        assert_eq!(shown, format!("***{}…", "-".repeat(24)));
        let shown = secrets.clean(&text, 1600);
        assert_eq!(shown, format!("***{}***", "-".repeat(524)));
        let lines = format!("{}{long}{}", "-".repeat(4000), "-".repeat(4000));
        assert_eq!(secrets.cut_at(lines.as_bytes(), 4096), 5000);
        assert_eq!(secrets.cut_at(lines.as_bytes(), 5000), 5000);
        assert_eq!(secrets.cut_at(lines.as_bytes(), 3999), 3999);
    }

    #[test]
    fn a_secret_longer_than_a_piece_is_masked_and_so_are_those_that_overlap() {
        for length in [1024, 1025, 5000, 100_000] {
            let long: String = (0..length)
                .map(|n: u64| char::from(b'a' + u8::try_from(n * n % 25).unwrap()))
                .collect();
            let secrets = secrets(&[&long]);
            let masked = secrets.mask(&long).into_owned();
            assert!(masked.bytes().all(|byte| byte == b'*'), "{masked}");
        }
        let overlapping = secrets(&["abcdefgh", "efghijkl"]);
        assert_eq!(overlapping.clean("-abcdefghijkl-", 100), "-***-");
        assert_eq!(secrets(&["äöü"]).clean("äöüäö", 100), "***äö");
    }

    #[test]
    fn what_is_not_shown_costs_nothing() {
        let pem: Vec<String> = (0..100).map(|line| format!("{line:064}")).collect();
        let secrets = secrets(&[&pem.join("\n")]);
        let text = pem.join(" ").repeat(1000);
        let begin = std::time::Instant::now();
        for _ in 0..1000 {
            assert!(secrets.clean(&text, 1024).len() < 1100);
        }
        // The whole of it would be 6 GB.
        let took = begin.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn what_is_no_secret_stays() {
        let property = Property {
            name: "user".into(),
            value: Some(b"admin".as_slice().into()),
            secret: false,
        };
        let secrets = Secrets::new(&[property]);
        assert_eq!(secrets.clean("admin", 100), "admin");
    }
}
