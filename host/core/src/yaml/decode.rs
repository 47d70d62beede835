//! Decodes the bytes of a file as UTF-8, with a remedy for other encodings. Pure.

use super::Mistake;

/// Decodes the bytes of a file as UTF-8 without NUL characters.
pub fn decode(bytes: &[u8]) -> Result<&str, Mistake> {
    if is_utf16(bytes) {
        let message = "is not UTF-8 text, but UTF-16; save the file as UTF-8";
        return Err(Mistake::new(None, message));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let Some(place) = text.find('\0') else {
                return Ok(text);
            };
            let message = "has a NUL character; write the file again, without it";
            Err(Mistake::new(Some(line(bytes, place)), message))
        }
        Err(error) => {
            let place = error.valid_up_to();
            let byte = bytes.get(place).copied().unwrap_or_default();
            let message = format!(
                "is not UTF-8 text: it has the byte 0x{byte:02X}, as text in Latin-1 has; save the file as UTF-8"
            );
            Err(Mistake::new(Some(line(bytes, place)), message))
        }
    }
}

/// Returns true if the bytes begin with a UTF-16 byte order mark, or with two characters up to U+00FF in UTF-16.
fn is_utf16(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xff, 0xfe, ..]
            | [0xfe, 0xff, ..]
            | [1..=255, 0, 1..=255, 0, ..]
            | [0, 1..=255, 0, 1..=255, ..]
    )
}

/// Returns the line, from 1, of the byte at `place`.
fn line(bytes: &[u8], place: usize) -> usize {
    let before = bytes.get(..place).unwrap_or_default();
    before.split(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_another_encoding_is_told_with_line_and_remedy() {
        let wide = |text: &str| -> Vec<u8> {
            let units = text.encode_utf16();
            units.flat_map(u16::to_le_bytes).collect()
        };
        for (bytes, line, words) in [
            (wide("\u{feff}a: b"), None, "but UTF-16; save"),
            (wide("a: b"), None, "but UTF-16; save"),
            (b"\0a\0:\0 \0b".to_vec(), None, "but UTF-16; save"),
            (b"a: b\nc: \xe4\n".to_vec(), Some(2), "byte 0xE4, as"),
            (b"\xff".to_vec(), Some(1), "byte 0xFF, as"),
            (b"a: b\n\nc: \0\n".to_vec(), Some(3), "has a NUL"),
            (b"\0\0\0\0\0".to_vec(), Some(1), "has a NUL"),
        ] {
            let mistake = decode(&bytes).unwrap_err();
            assert_eq!(mistake.line, line, "{bytes:?}");
            assert!(mistake.message.contains(words), "{}", mistake.message);
        }
        for text in ["", "a", "\u{feff}a: ä\u{a0}\n", "ab"] {
            assert_eq!(decode(text.as_bytes()), Ok(text));
        }
    }
}
