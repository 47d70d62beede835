//! Words of peers in sentences for operators, and what two texts are compared by.

use sha2::{Digest, Sha256};

/// How much of a peer's text is repeated.
const MAX_QUOTED: usize = 120;

/// The text in quotes, cut, with control characters written out.
pub fn quoted(text: &str) -> String {
    let mut cut: String = text.chars().take(MAX_QUOTED).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// A number that stands for these bytes.
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
    fn a_peers_text_stays_short_and_on_one_line() {
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
