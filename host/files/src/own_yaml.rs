//! Reads and writes YAML of the agent's own files. Opens no file.

use std::io;

use leafhost_core::yaml;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_saphyr::Error;

/// Serializes a value as YAML.
pub fn write(value: &impl Serialize) -> io::Result<String> {
    yaml::write(value).map_err(io::Error::other)
}

/// Parses YAML that [`write`] wrote.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_slice_with_options(text, options)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn texts_remain_texts() {
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
    }
}
