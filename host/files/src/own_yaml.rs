//! Reads and writes YAML of the agent's own files. Opens no file.

use std::io;

use leafhost_core::yaml;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_saphyr::{Error, NonFiniteFloatPolicy};

/// Serializes a value as YAML.
pub fn write(value: &impl Serialize) -> io::Result<String> {
    yaml::write(value).map_err(io::Error::other)
}

/// Parses YAML that [`write`] or an earlier agent wrote. Earlier agents wrote texts such as `yes` and `1_000` without quotes.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    serde_saphyr::from_slice_with_options(text, options)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn texts_remain_texts_also_those_that_earlier_agents_wrote() {
        let texts = json!([
            "yes",
            "No",
            "on",
            "y",
            "true",
            "0123",
            "1_000",
            "5",
            "0x1F",
            "~",
            "null",
            "",
            " a ",
            "a: b",
            "- a",
            "# a",
            "a\n  b\n\n",
            "\n a",
            "\u{202e}\u{7}",
            "1e999",
            "2001-01-01",
            "<<",
            "{{ a }}",
        ]);
        let text = write(&texts).unwrap();
        assert_eq!(read::<Value>(text.as_bytes()).unwrap(), texts, "{text}");
        let earlier = "[yes, No, on, y, 1_000, 'true', '0123']";
        let expected = json!(["yes", "No", "on", "y", "1_000", "true", "0123"]);
        assert_eq!(read::<Value>(earlier.as_bytes()).unwrap(), expected);
    }
}
