//! Text that a guest wrote, made fit for logs and terminals: bounded, on one line, without secrets.

use std::borrow::Cow;

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

/// The values that must not be seen.
#[derive(Default)]
pub(crate) struct Secrets {
    /// By the name of the property.
    values: Vec<(String, String)>,
    /// The values and their lines, also as messages quote them, the longest first, so that a secret within another leaves no rest of it.
    masked: Vec<String>,
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
        let mut masked: Vec<String> = lines
            .map(str::trim)
            .filter(|line| line.len() >= MASKED_LINE)
            .chain(values.iter().map(|(_, value)| value.as_str()))
            .flat_map(|text| [text.to_owned(), escaped(text)])
            .collect();
        masked.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        masked.dedup();
        Self { values, masked }
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

    /// `text` without secrets, cleaned. Masked before it is cut, so that no part of a secret stays at the end.
    pub(crate) fn clean(&self, text: &str, max: usize) -> String {
        clean(&self.mask(text), max)
    }

    /// `text` without secrets.
    pub(crate) fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        for value in &self.masked {
            if masked.contains(value.as_str()) {
                masked = masked.replace(value.as_str(), MASK).into();
            }
        }
        masked
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
