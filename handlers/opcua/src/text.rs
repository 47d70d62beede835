//! Words of peers in sentences for operators.

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

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
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
