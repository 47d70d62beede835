//! Sanitizes text written by others for display: on one line, in reading order, bounded.

use std::borrow::Cow;
use std::error::Error;

/// Returns true if `c` is invisible or alters the text around it: control characters, line and paragraph separators,
/// direction marks, and invisible characters. A space is neither.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{17b4}'
                | '\u{17b5}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns true if `c` is a control character other than tab, newline and carriage return.
pub fn is_foreign_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

/// Lists the first `most` names and the number of the others: `a, b and 7 more`.
pub fn few<T: ToString>(names: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names
        .by_ref()
        .take(most)
        .map(|name| name.to_string())
        .collect();
    let first = first.join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Returns the known name most similar to a misspelt one, if at most a third of its letters differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MAX_NAME: usize = 100;
    if name.len() > MAX_NAME {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let distance = |known: &str| strsim::osa_distance(&name, &known.to_ascii_lowercase());
    let known = known.into_iter().map(|known| (distance(known), known));
    let (distance, known) = known.min()?;
    (distance <= known.len() / 3).then_some(known)
}

/// Formats an error and its causes on one line, without causes that an error already repeats.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns the text with unprintable characters escaped as `\n`, `\u{202e}` and the like.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        push(&mut escaped, c);
    }
    Cow::Owned(escaped)
}

fn push(text: &mut String, c: char) {
    if is_unprintable(c) {
        text.extend(c.escape_default());
    } else {
        text.push(c);
    }
}

/// Returns at most `max` bytes of the escaped text, followed by `…` if it was cut. Never splits a character or an
/// escape.
pub fn clean(text: &str, max: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(max));
    for c in text.chars() {
        let before = cleaned.len();
        push(&mut cleaned, c);
        if cleaned.len() > max {
            cleaned.truncate(before);
            cleaned.push('…');
            return cleaned;
        }
    }
    cleaned
}

/// Returns the escaped text, cut to `max` bytes and an `…`. Keeps the beginning and the end of a longer text, since
/// messages end with the remedy.
pub fn abridge(text: &str, max: usize) -> String {
    if text.len() <= max {
        let escaped = escape(text);
        if escaped.len() <= max {
            return escaped.into_owned();
        }
    }
    let tail = max / 3;
    let mut abridged = clean(text, max - tail);
    let mut end = Vec::new();
    let mut left = tail;
    for c in text.chars().rev() {
        let mut shown = String::new();
        push(&mut shown, c);
        let Some(rest) = left.checked_sub(shown.len()) else {
            break;
        };
        left = rest;
        end.push(shown);
    }
    abridged.extend(end.into_iter().rev());
    abridged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_the_first_are_named_and_the_others_counted() {
        for (names, words) in [
            (&[][..], ""),
            (&["a"], "a"),
            (&["a", "b"], "a, b"),
            (&["a", "b", "c"], "a, b and 1 more"),
        ] {
            assert_eq!(few(names, 2), words);
        }
    }

    #[test]
    fn what_steers_reorders_or_hides_is_unprintable_and_what_is_read_is_not() {
        for c in [
            '\0',
            '\n',
            '\t',
            '\u{1b}',
            '\u{7f}',
            '\u{85}',
            '\u{9b}',
            '\u{ad}',
            '\u{61c}',
            '\u{115f}',
            '\u{1160}',
            '\u{180e}',
            '\u{200b}',
            '\u{200d}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{206f}',
            '\u{3164}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{fffb}',
            '\u{e0000}',
            '\u{e0041}',
            '\u{e007f}',
        ] {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in [
            ' ', 'a', '~', '\u{a0}', 'ä', 'ß', 'م', 'א', 'ㄱ', '漢', '…', '—', '\u{600}', '🎥',
            '\u{fe0f}',
        ] {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }

    #[test]
    fn unprintable_characters_are_shown_escaped_and_others_as_they_are() {
        for (text, shown) in [
            ("", ""),
            ("ä b", "ä b"),
            ("a\nb\r\t\0", "a\\nb\\r\\t\\u{0}"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\u{202e}gpj.exe", "a\\u{202e}gpj.exe"),
            ("a\u{feff}\u{e0041}", "a\\u{feff}\\u{e0041}"),
        ] {
            assert_eq!(escape(text), shown);
            assert_eq!(clean(text, 100), shown);
        }
    }

    #[test]
    fn a_cleaned_text_has_so_many_bytes_and_says_if_there_was_more() {
        for (text, max, shown) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "abc…"),
            ("äöü", 3, "ä…"),
            ("a\nb", 2, "a…"),
            ("a\nb", 3, "a\\n…"),
            ("a\nb", 4, "a\\nb"),
            ("a", 0, "…"),
        ] {
            assert_eq!(clean(text, max), shown, "{text:?} {max}");
        }
        assert_eq!(clean(&"\u{202e}".repeat(1 << 20), 80).len(), 83);
    }

    #[test]
    fn of_a_long_message_the_beginning_and_the_end_are_shown() {
        for (text, max, shown) in [
            ("abc", 3, "abc"),
            ("abcdefghij", 9, "abcdef…hij"),
            ("äöüäöüäöü", 9, "äöü…ü"),
            ("a\u{202e}bcdef", 9, "a…def"),
            ("abcdefghi\u{202e}", 10, "abcdefg…"),
            ("\u{202e}\u{202e}", 9, "…"),
        ] {
            assert_eq!(abridge(text, max), shown, "{text:?}");
        }
        let long = format!("is {:?}, must be small", "x".repeat(1 << 20));
        let shown = abridge(&long, 100);
        assert!(shown.len() <= 103, "{shown}");
        assert!(shown.starts_with("is \"xx") && shown.ends_with("xx\", must be small"));
    }
}
