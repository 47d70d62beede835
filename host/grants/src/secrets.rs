//! Sanitizes text from handlers for logs and terminals: bounded, on one line, without secrets. A device that contains
//! one of the masked pieces is not offered.
//!
//! The cost of masking depends on the length of the displayed text, not on the length of the handler's output or of the
//! secrets.

use std::borrow::Cow;
use std::ops::Range;

use leafhost_core::session::Property;
use leafhost_core::text::clean;

mod pieces;

use pieces::Pieces;

/// Replacement for a secret.
const MASK: &str = "***";

/// Returns at most `max` bytes of `text`, cut between characters.
pub fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max))
        .unwrap_or_default()
}

/// Maximum length of a masked piece, in bytes. Longer secrets are split, so that a text cut into longer parts shows no
/// piece.
pub const LONGEST_PIECE: usize = 1024;

/// Secret values that must not be shown.
#[derive(Default)]
pub struct Secrets {
    /// Names of the secret properties.
    names: Vec<String>,
    /// Pieces that are masked, and not allowed in devices.
    pieces: Pieces,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets")
            .field("values", &self.names.len())
            .finish_non_exhaustive()
    }
}

impl Secrets {
    /// Collects the secret values of `properties`, trimmed of surrounding whitespace.
    pub fn new(properties: &[Property]) -> Self {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for property in properties.iter().filter(|property| property.secret) {
            let Some(value) = property.value.as_deref() else {
                continue;
            };
            let text = String::from_utf8_lossy(value).trim().to_owned();
            if !text.is_empty() {
                names.push(property.name.clone());
                values.push(text);
            }
        }
        Self {
            pieces: Pieces::of(&values),
            names,
        }
    }

    /// Returns true if there are no secrets.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the name of a property whose value, or a piece of it, is in `text`.
    pub fn find(&self, text: &str) -> Option<&str> {
        self.named(self.pieces.find(text.as_bytes())?)
    }

    /// Returns the name of a property whose value is `number`, or has a piece in its digits.
    pub fn find_number(&self, number: i64) -> Option<&str> {
        self.named(self.pieces.find_number(number.unsigned_abs())?)
    }

    fn named(&self, value: usize) -> Option<&str> {
        self.names.get(value).map(String::as_str)
    }

    /// Returns at most `max` bytes of `text`, masked and cleaned, followed by `…` if it was cut. Masks a secret as a
    /// whole if the cut splits it.
    pub fn clean(&self, text: &str, max: usize) -> String {
        let shown = cut(text, max);
        let (masked, end) = self.masked(text, shown.len());
        let mut cleaned = clean(&masked, max);
        if end < text.len() && !cleaned.ends_with('…') {
            cleaned.push('…');
        }
        cleaned
    }

    /// Returns `text` with all secrets masked.
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.masked(text, text.len()).0
    }

    /// Masks the first `shown` bytes of `text`. Also returns the position where the rest begins.
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

    /// Returns the position at which to cut an unfinished line: `at`, or the end of a secret that spans it.
    pub fn cut_at(&self, line: &[u8], at: usize) -> usize {
        let last = self.within(line, at).pop();
        last.map_or(at, |last| last.end.max(at))
    }

    /// Returns the ranges of secrets that begin before `end`, in order; overlapping ones are merged.
    fn within(&self, text: &[u8], end: usize) -> Vec<Range<usize>> {
        let searched = end.saturating_add(LONGEST_PIECE).min(text.len());
        let searched = text.get(..searched).unwrap_or_default();
        let mut found: Vec<Range<usize>> = Vec::new();
        for start in 0..end.min(searched.len()) {
            let rest = searched.get(start..).unwrap_or_default();
            let Some((length, _)) = self.pieces.longest(rest) else {
                continue;
            };
            let secret = start..start + length;
            match found.last_mut() {
                Some(before) if secret.start < before.end => {
                    before.end = before.end.max(secret.end);
                }
                _ => found.push(secret),
            }
        }
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
        assert_eq!(
            secrets.clean("-----BEGIN KEY-----", 100),
            "-----BEGIN KEY-----"
        );
    }

    #[test]
    fn what_is_masked_of_a_secret_is_found_in_a_device_too_and_common_words_are_neither() {
        let pem = "-----BEGIN KEY-----\nMIIEvQIBADAN\nab\n-----END KEY-----\n";
        let long = "0123456789abcdef".repeat(100);
        for (secret, text, is_secret) in [
            (pem, "id-MIIEvQIBADAN", true),
            (pem, "-----END KEY-----", false),
            (pem, "cable", false),
            ("admin:hunter2hunter2", "rtsp://hunter2hunter2@cam", true),
            ("admin:hunter2hunter2", "administrator", false),
            ("key-4711:hunter2hunter2", "key-4711", true),
            ("password: hunter2hunter2", "the password", false),
            ("admin:hunter2", "hunter2", false),
            ("10.0.0.50:4840", "10.0.0.50", false),
            ("https://cam.example.com/a", "//cam.example.com/b", false),
            ("a:b", "a:b", true),
            (&long, &long[..1000], true),
        ] {
            let secrets = secrets(&[secret]);
            assert_eq!(secrets.find(text).is_some(), is_secret, "{secret} {text}");
            assert_eq!(
                secrets.clean(text, 4096) != text,
                is_secret,
                "{secret} {text}"
            );
        }
    }

    #[test]
    fn a_number_that_is_a_secret_is_found_and_one_with_the_same_digits_in_it_is_not() {
        for (secret, number, is_secret) in [
            ("1234", 1234, true),
            ("1234", -1234, true),
            ("1234", 12345, false),
            ("0042", 42, true),
            ("12345678", 9_123_456_789, true),
            ("pin:0012345678", 12_345_678, true),
            ("x", 0, false),
        ] {
            let secrets = secrets(&[secret]);
            assert_eq!(
                secrets.find_number(number).is_some(),
                is_secret,
                "{secret} {number}"
            );
        }
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
        // Masking the whole text would process 6 GB.
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
