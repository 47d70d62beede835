//! Quotes peers' texts for operators, and hashes texts for comparison.

use sha2::{Digest, Sha256};

/// Maximum number of characters quoted of a peer's text.
const MAX_QUOTED: usize = 120;

/// Quotes and shortens the text, with control characters escaped.
pub fn quoted(text: &str) -> String {
    let mut cut: String = text.chars().take(MAX_QUOTED).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// Returns a 64-bit hash of the bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    let digest = Sha256::digest(bytes);
    digest
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_is_shortened_to_one_line() {
        assert_eq!(
            quoted("PLC \"1\"\n\u{1b}[31m"),
            r#""PLC \"1\"\n\u{1b}[31m""#
        );
        assert_eq!(
            quoted(&"ä".repeat(200)),
            format!("\"{}…\"", "ä".repeat(120))
        );
    }
}
