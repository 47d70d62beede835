//! Pieces of secrets, none of which may appear in a text.
//!
//! A piece is a whole value, a line of it, or a half of `user:password`, each also as escaped in messages. Short and
//! common parts are left out, because they would match everywhere.

use std::collections::BTreeMap;

use super::LONGEST_PIECE;

/// Minimum length of a piece that is not a whole value, in bytes.
const SHORTEST_PIECE: usize = 8;
/// Maximum number of digits of a port: a text with a port after the colon is an address.
const PORT: usize = 5;

/// All pieces, sorted.
#[derive(Default)]
pub struct Pieces {
    sorted: Vec<Piece>,
    /// Numeric values without leading zeros, with the index of the value.
    numbers: BTreeMap<String, usize>,
}

struct Piece {
    bytes: Vec<u8>,
    /// Index of the value that contains the piece.
    value: usize,
    /// Index of the longest other piece that is a prefix of this one.
    inner: Option<usize>,
}

impl Pieces {
    /// Collects the pieces of `values`, which must be trimmed.
    pub fn of(values: &[String]) -> Self {
        let mut pieces: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for (value, text) in values.iter().enumerate() {
            let lines = text.lines().map(str::trim).filter(|line| !is_frame(line));
            let parts = lines.flat_map(|line| {
                let (user, password) = halves(line).unzip();
                [Some(line), user.filter(|user| !is_word(user)), password]
            });
            let parts = parts.flatten().filter(|part| part.len() >= SHORTEST_PIECE);
            for text in parts.chain([text.as_str()]) {
                let digits = text.trim_start_matches('0');
                if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
                    numbers.entry(digits.to_owned()).or_insert(value);
                }
                for form in [text, &escaped(text)] {
                    for piece in in_pieces(form.as_bytes()) {
                        pieces.entry(piece.to_vec()).or_insert(value);
                    }
                }
            }
        }
        let mut sorted: Vec<Piece> = Vec::with_capacity(pieces.len());
        for (bytes, value) in pieces {
            let mut inner = sorted.len().checked_sub(1);
            while let Some(piece) = inner.and_then(|at| sorted.get(at))
                && !bytes.starts_with(&piece.bytes)
            {
                inner = piece.inner;
            }
            sorted.push(Piece {
                bytes,
                value,
                inner,
            });
        }
        Self { sorted, numbers }
    }

    /// Returns the length of the longest piece that is a prefix of `text`, and the index of its value.
    pub fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        // Prefixes of `text` sort before it, and every piece between the longest of them and `text` begins with that
        // prefix.
        let behind = self
            .sorted
            .partition_point(|piece| piece.bytes.as_slice() <= text);
        let mut at = behind.checked_sub(1);
        while let Some(piece) = at.and_then(|at| self.sorted.get(at)) {
            if text.starts_with(&piece.bytes) {
                return Some((piece.bytes.len(), piece.value));
            }
            at = piece.inner;
        }
        None
    }

    /// Returns the index of a value that has a piece in `text`.
    pub fn find(&self, text: &[u8]) -> Option<usize> {
        if self.sorted.is_empty() {
            return None;
        }
        let mut rests = (0..text.len()).filter_map(|at| text.get(at..));
        rests.find_map(|rest| self.longest(rest).map(|(_, value)| value))
    }

    /// Returns the index of a value that equals the number, or that has a long piece in its digits.
    pub fn find_number(&self, number: u64) -> Option<usize> {
        let digits = number.to_string();
        let whole = self.numbers.get(digits.trim_start_matches('0')).copied();
        whole.or_else(|| {
            let mut rests = (0..digits.len()).filter_map(|at| digits.as_bytes().get(at..));
            rests.find_map(|rest| {
                let (length, value) = self.longest(rest)?;
                (length >= SHORTEST_PIECE).then_some(value)
            })
        })
    }
}

/// Returns true if the line is the same in each secret of its kind, such as `-----BEGIN PRIVATE KEY-----`.
fn is_frame(line: &str) -> bool {
    line.starts_with("-----") && line.ends_with("-----")
}

/// Returns true if the text may be an ordinary word.
fn is_word(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || matches!(c, '-' | '_' | '.');
    text.chars().all(is_letter)
}

/// Splits `user:password` at the colon, unless it is an address or a sentence.
fn halves(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.split_once(':')?;
    let is_port = right.len() <= PORT && right.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = !right.starts_with("//") && !line.contains(char::is_whitespace);
    (is_plain && !is_port).then_some((left, right))
}

/// Returns `text` as escaped between the quotes of a message.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

/// Splits `text` into pieces of similar length, so that none is short enough to match everywhere.
fn in_pieces(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pieces = text.len().div_ceil(LONGEST_PIECE).max(1);
    text.chunks(text.len().div_ceil(pieces).max(1))
}
