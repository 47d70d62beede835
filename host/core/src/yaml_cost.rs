//! Cost of reading a text as YAML in a handler, whose reader may need much time for open brackets. Knows no reader.

use serde::de::IgnoredAny;

/// Cost of one byte, in steps.
const BYTE: u64 = 64;

/// Returns an upper bound of the work to read `text` once, in steps of some nanoseconds. At each word a reader checks
/// every open bracket. Only a reader knows which are open, so all count.
fn steps(text: &str) -> u64 {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{'));
    count(text.len()).saturating_mul(BYTE + count(brackets.count()))
}

/// Maximum depth of nested brackets.
const MAX_NESTING: usize = 64;
/// Maximum work to read a text that is not JSON: a second or two.
const MAX_STEPS: u64 = 1 << 30;

/// Returns true if brackets are, or may be, nested so deeply that readers take long. In YAML only a reader knows which
/// brackets are text, and a closing one that is text hides an open one.
pub fn is_nested_too_deep(text: &str) -> bool {
    // The JSON reader takes one step per byte at any depth.
    let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
    nesting(text, is_json) > MAX_NESTING || !is_json && steps(text) > MAX_STEPS
}

/// Returns the maximum number of brackets open at once. In JSON those within strings do not count.
fn nesting(text: &str, is_json: bool) -> usize {
    let (mut open, mut most) = (0_usize, 0_usize);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            b'"' if is_json => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_cost_at_every_byte() {
        assert_eq!(steps(""), 0);
        assert_eq!(steps("abcd"), 4 * BYTE);
        assert_eq!(steps("[{}]"), 4 * (BYTE + 2));
    }

    #[test]
    fn brackets_are_refused_where_they_may_be_deep_and_not_where_they_are_text() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let rules = "- KERNEL==\"video[0-9]*\"\n".repeat(3_000);
        let list = format!("[{}0]", "{\"url\": \"[\", \"ids\": [1]},\n".repeat(8_000));
        for (text, expected) in [
            (String::new(), false),
            (nested(64), false),
            (nested(65), true),
            (format!("a: {}", nested(65)), true),
            (format!("\"{}\"", "[".repeat(65)), false),
            ("[".repeat(200_000), true),
            ("{a: ".repeat(200_000), true),
            // The real nesting is as deep, though as many brackets seem to be closed.
            ("[\"]\",".repeat(40_000), true),
            ("[ # ]\n".repeat(40_000), true),
            (rules, false),
            (list, false),
        ] {
            let begin: String = text.chars().take(40).collect();
            assert_eq!(is_nested_too_deep(&text), expected, "{begin}");
        }
    }
}
