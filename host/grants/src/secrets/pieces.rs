//! The pieces of secrets: what a text may have nothing of.
//!
//! A piece is a whole value, a line of it, or a half of `user:password`, also as messages quote them. Short and common ones are none: they would
//! be found everywhere.

use std::collections::BTreeMap;

use super::LONGEST_PIECE;

/// The fewest bytes of a piece that is no whole value.
const SHORTEST_PIECE: usize = 8;
/// The most digits of a port: what has one behind a colon is an address.
const PORT: usize = 5;

/// All pieces, sorted.
#[derive(Default)]
pub struct Pieces {
    sorted: Vec<Piece>,
    /// The values that are numbers, without zeros in front, and the value that each is.
    numbers: BTreeMap<String, usize>,
}

struct Piece {
    bytes: Vec<u8>,
    /// The number of the value that it is of.
    value: usize,
    /// The longest other piece that this one begins with.
    inner: Option<usize>,
}

impl Pieces {
    /// Those of values that are trimmed.
    pub fn of(values: &[String]) -> Self {
        let mut pieces: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for (value, text) in values.iter().enumerate() {
            let lines = text.lines().map(str::trim).filter(|line| !is_frame(line));
            let parts = lines.flat_map(|line| [Some(line), left(line), right(line)]);
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

    /// The longest piece that `text` begins with: its length, and the value that it is of.
    pub fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        // What `text` begins with is not behind it, and what is between them begins with that.
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

    /// The value of which a piece is in `text`.
    pub fn find(&self, text: &[u8]) -> Option<usize> {
        if self.sorted.is_empty() {
            return None;
        }
        let mut rests = (0..text.len()).filter_map(|at| text.get(at..));
        rests.find_map(|rest| self.longest(rest).map(|(_, value)| value))
    }

    /// The value that is that number, or of which a long piece is in its digits.
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

/// Whether a line is the same in each secret of its kind, as `-----BEGIN PRIVATE KEY-----`.
fn is_frame(line: &str) -> bool {
    line.starts_with("-----") && line.ends_with("-----")
}

/// The password of `user:password`.
fn right(line: &str) -> Option<&str> {
    let (_, right) = halves(line)?;
    Some(right)
}

/// The user of `user:password`, unless it may be a word.
fn left(line: &str) -> Option<&str> {
    let (left, _) = halves(line)?;
    let is_letter = |c: char| c.is_alphabetic() || matches!(c, '-' | '_' | '.');
    (!left.chars().all(is_letter)).then_some(left)
}

/// The halves of a line that is neither an address nor a sentence.
fn halves(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.split_once(':')?;
    let is_port = right.len() <= PORT && right.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = !right.starts_with("//") && !line.contains(char::is_whitespace);
    (is_plain && !is_port).then_some((left, right))
}

/// `text` as it stands between the quotes of a message.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

/// `text` in pieces that are about as long as each other: none is so short that it is found everywhere.
fn in_pieces(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pieces = text.len().div_ceil(LONGEST_PIECE).max(1);
    text.chunks(text.len().div_ceil(pieces).max(1))
}
