//! Output with colours and a size on a terminal, or plain to a file or pipe.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::ValueEnum;
pub use leafhost_core::text::escape;
use leafhost_core::yaml;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// JSON; with --watch one line for each change
    Json,
    /// YAML; with --watch one document for each change
    Yaml,
}

/// Meaning of a text, which selects its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Good,
    /// State that deserves attention.
    Warning,
    Bad,
    /// Text less important than the rest.
    Faint,
}

/// Colour setting of an output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub const PLAIN: Self = Self(false);
    #[cfg(test)]
    pub const COLOURED: Self = Self(true);

    /// Enables colours if stdout is a terminal with colours and `NO_COLOR` is not set.
    pub fn stdout() -> Self {
        Self(std::io::stdout().is_terminal() && wanted())
    }

    /// Enables colours if stderr is a terminal with colours and `NO_COLOR` is not set.
    pub fn stderr() -> Self {
        Self(std::io::stderr().is_terminal() && wanted())
    }

    pub fn is_on(self) -> bool {
        self.0
    }

    /// Colours the text by its tone. Unprintable characters are escaped, so that a handler's text cannot control the
    /// terminal.
    pub fn apply(self, tone: Tone, text: &str) -> String {
        let text = escape(text);
        let code = match tone {
            Tone::Plain => None,
            Tone::Heading => Some("1"),
            Tone::Good => Some("32"),
            Tone::Warning => Some("33"),
            Tone::Bad => Some("31"),
            Tone::Faint => Some("2"),
        };
        match code {
            Some(code) if self.0 && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.into_owned(),
        }
    }
}

fn wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns true if standard input and output are terminals.
pub fn is_interactive() -> bool {
    is_terminal() && std::io::stdin().is_terminal()
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
}

/// Returns the size of this terminal; 80 × 24 if it is unknown.
pub fn size() -> Size {
    let size = terminal_size::terminal_size();
    let (width, height) = size.map_or((80, 24), |(width, height)| (width.0, height.0));
    Size {
        width: usize::from(width),
        height: usize::from(height),
    }
}

/// Formats a number of things: `1 handler`, `2 handlers`.
pub fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// Wraps the text between words to lines of at most `width` columns. Does not break a longer word.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.width() + 1 + word.width() > width {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Returns what fits into `width` columns of a line that may contain colours; a cut line ends in `…`.
pub fn cut(line: &str, width: usize) -> Cow<'_, str> {
    let mut shown = 0;
    // End of what fits beside the `…`.
    let mut end = 0;
    let mut rest = line.char_indices();
    while let Some((start, c)) = rest.next() {
        if c == '\x1b' {
            for (_, c) in rest.by_ref() {
                if c == 'm' {
                    break;
                }
            }
            continue;
        }
        shown += c.width().unwrap_or_default();
        if shown > width {
            let kept = line.get(..end).unwrap_or_default();
            let end = if line.contains('\x1b') { "\x1b[0m" } else { "" };
            return Cow::Owned(format!("{kept}…{end}"));
        }
        if shown < width {
            end = start + c.len_utf8();
        }
    }
    Cow::Borrowed(line)
}

/// Returns what fits into `width` columns of a text without colours; a cut text has its beginning, `…` and its end.
pub fn cut_middle(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    let end = fitting(text.chars().rev(), room - room / 2);
    let mut kept: String = fitting(text.chars(), room / 2).iter().collect();
    kept.push('…');
    kept.extend(end.iter().rev());
    Cow::Owned(kept)
}

/// Returns the first characters that fit into `width` columns.
fn fitting(characters: impl Iterator<Item = char>, width: usize) -> Vec<char> {
    let mut shown = 0;
    let fits = |character: &char| {
        shown += character.width().unwrap_or_default();
        shown <= width
    };
    characters.take_while(fits).collect()
}

/// Formats a value as JSON or YAML. In a `stream` each value is one line of JSON or one YAML document.
pub fn document(output: Output, stream: bool, value: &impl Serialize) -> Result<String> {
    Ok(match (output, stream) {
        (Output::Yaml, _) => {
            let start = if stream { "---\n" } else { "" };
            format!("{start}{}", yaml::write(value)?)
        }
        (_, true) => format!("{}\n", serde_json::to_string(value)?),
        (_, false) => format!("{}\n", serde_json::to_string_pretty(value)?),
    })
}

/// Writes to stdout and flushes. If the reader has gone, the error is of kind `BrokenPipe`, on which the program exits
/// silently.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| {
            std::io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handlers_text_cannot_control_the_terminal() {
        assert_eq!(
            Paint::PLAIN.apply(Tone::Bad, "a\x1b[2Jb\nc"),
            "a\\u{1b}[2Jb\\nc"
        );
        assert_eq!(
            Paint::PLAIN.apply(Tone::Plain, "a\u{202e}b\u{200b}c\u{e0041}"),
            "a\\u{202e}b\\u{200b}c\\u{e0041}"
        );
        assert_eq!(
            Paint::COLOURED.apply(Tone::Bad, "a\x07"),
            "\x1b[31ma\\u{7}\x1b[0m"
        );
    }

    #[test]
    fn long_texts_are_wrapped_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("one-two-three four", 5), ["one-two-three", "four"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("相机 相机", 8), ["相机", "相机"]);
    }

    #[test]
    fn a_long_line_is_cut_with_an_ellipsis() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("\x1b[32mabc\x1b[0m", 3), "\x1b[32mabc\x1b[0m");
        assert_eq!(cut("\x1b[32mabcd\x1b[0m", 3), "\x1b[32mab…\x1b[0m");
        assert_eq!(cut("äöü", 2), "ä…");
        // A wide character takes two columns.
        assert_eq!(cut("相机", 4), "相机");
        assert_eq!(cut("相机相机", 5), "相机…");
        assert_eq!(cut("相机", 3), "相…");
        assert_eq!(cut("相机", 2), "…");
    }

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        for (text, width, expected) in [
            ("abcd", 4, "abcd"),
            ("abcdefgh", 5, "ab…gh"),
            ("abcdefgh", 4, "a…gh"),
            ("abcdefgh", 1, "…"),
            ("相机相机", 5, "相…机"),
            ("相机相机", 4, "…机"),
        ] {
            assert_eq!(cut_middle(text, width), expected);
        }
    }

    #[test]
    fn plain_texts_are_unchanged() {
        assert_eq!(Paint::COLOURED.apply(Tone::Plain, "ä"), "ä");
        assert_eq!(Paint::PLAIN.apply(Tone::Good, "ok"), "ok");
        assert_eq!(Paint::COLOURED.apply(Tone::Good, ""), "");
    }
}
