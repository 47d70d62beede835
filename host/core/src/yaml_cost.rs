//! What it costs to read a text as YAML: readers take time by open brackets and room by aliases.
//!
//! Knows no reader: the text as it is, and whatever `serde` makes of it.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess as _,
    Visitor,
};

/// What a byte costs by itself, in steps.
const BYTE: u64 = 64;

/// The work of reading `text` once at most, in steps of some nanoseconds. At each word a reader looks at every bracket that is
/// open there; which are cannot be told without reading, so all count.
pub fn steps(text: &str) -> u64 {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{'));
    count(text.len()).saturating_mul(BYTE + count(brackets.count()))
}

/// Whether the aliases of `document`, a reader of `text`, stand for much more than is written.
pub fn has_alias_bomb<'de, D: Deserializer<'de>>(text: &str, document: D) -> bool {
    if !text.contains('*') {
        return false;
    }
    let mut left = 2 * text.len() + 10_000;
    // What else is wrong is found when it is read.
    let _ = Weigh(&mut left).deserialize(document);
    left == 0
}

/// Takes a byte for each value and each byte of text, until there is none left.
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
    fn what_is_written_out_is_never_too_much() {
        for text in [
            "[1, 2.5, true, null, \"*\"]".to_owned(),
            format!("[\"*\", {}0]", "0,".repeat(100_000)),
        ] {
            let mut reader = serde_json::Deserializer::from_str(&text);
            assert!(!has_alias_bomb(&text, &mut reader), "{}", text.len());
        }
        // As if a short text with a star stood for that.
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
