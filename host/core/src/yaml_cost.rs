//! Cost of reading a text as YAML: readers need time for open brackets and memory for aliases.
//!
//! Depends on no reader: works on the text, and on any `serde` deserializer.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess as _, Visitor,
};

/// Cost of one byte, in steps.
const BYTE: u64 = 64;

/// Returns an upper bound of the work to read `text` once, in steps of some nanoseconds. At each word a reader checks
/// every open bracket. Only a reader knows which are open, so all count.
pub fn steps(text: &str) -> u64 {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{'));
    count(text.len()).saturating_mul(BYTE + count(brackets.count()))
}

/// Maximum depth of nested brackets.
pub const MAX_NESTING: usize = 64;
/// Maximum work to read a text that is not JSON: a second or two.
const MAX_STEPS: u64 = 1 << 30;

/// Returns true if brackets are, or may be, nested so deep that readers take long. In YAML only a reader knows which
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

/// Returns true if the aliases of `document`, a reader of `text`, expand to much more than is written.
pub fn has_alias_bomb<'de, D: Deserializer<'de>>(text: &str, document: D) -> bool {
    if !text.contains('*') {
        return false;
    }
    let mut left = 2 * text.len() + 10_000;
    // Ignore other errors: the actual read reports them.
    let _ = Weigh(&mut left).deserialize(document);
    left == 0
}

/// Budget of bytes: each value costs one byte and the length of its text.
struct Weigh<'a>(&'a mut usize);

impl Weigh<'_> {
    fn take<E: Error>(&mut self, text: usize) -> Result<(), E> {
        *self.0 = self.0.saturating_sub(1 + text);
        if *self.0 == 0 {
            return Err(E::custom("stands for too much"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Weigh<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weigh<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.take(0)
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_i128<E: Error>(mut self, _: i128) -> Result<(), E> {
        self.take(0)
    }

    fn visit_u128<E: Error>(mut self, _: u128) -> Result<(), E> {
        self.take(0)
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.take(text.len())
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.take(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        self.take(0)?;
        while list.next_element_seed(Weigh(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.take(0)?;
        while map.next_key_seed(Weigh(self.0))?.is_some() {
            map.next_value_seed(Weigh(self.0))?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let ((), value) = tagged.variant_seed(Weigh(self.0))?;
        value.newtype_variant_seed(Weigh(self.0))
    }
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

    #[test]
    fn what_is_written_out_is_never_too_much() {
        for text in [
            "[1, 2.5, true, null, \"*\"]".to_owned(),
            format!("[\"*\", {}0]", "0,".repeat(100_000)),
        ] {
            let mut reader = serde_json::Deserializer::from_str(&text);
            assert!(!has_alias_bomb(&text, &mut reader), "{}", text.len());
        }
        // Simulate a short text with an alias that expands to a long list.
        let long = format!("[{}0]", "0,".repeat(100_000));
        assert!(has_alias_bomb(
            "*",
            &mut serde_json::Deserializer::from_str(&long)
        ));
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(100_000));
        assert!(has_alias_bomb(
            "*",
            &mut serde_json::Deserializer::from_str(&long)
        ));
    }
}
