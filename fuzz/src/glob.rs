//! Reference matcher of shell globs: a slow and simple table of which parts match which prefixes.

/// Dialect of globs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `fnmatch(3)` without flags: a backslash makes the next character literal.
    Udev,
    /// Paths in grants: `*`, `?` and sets do not match a `/`.
    Paths,
}

enum Part {
    Any,
    One,
    Just(char),
    /// Backslash at the end of the glob, which matches nothing.
    Nothing,
    Set {
        not: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Returns true if `text` matches `glob`, and `None` for sets that the matcher does not model.
#[must_use]
pub fn fits(dialect: Dialect, glob: &str, text: &str) -> Option<bool> {
    // For udev a character is a byte.
    let in_bytes = |text: &str| text.bytes().map(char::from).collect::<String>();
    let (glob, text) = match dialect {
        Dialect::Udev => (in_bytes(glob), in_bytes(text)),
        Dialect::Paths => (glob.to_owned(), text.to_owned()),
    };
    let parts = parts(dialect, &glob)?;
    let text: Vec<char> = text.chars().collect();
    // `row[n]` is true if the parts so far match the first n characters.
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for part in &parts {
        let mut next = vec![false; text.len() + 1];
        for n in 0..=text.len() {
            next[n] = match part {
                Part::Any => row[n] || (n > 0 && next[n - 1] && takes(dialect, part, text[n - 1])),
                _ => n > 0 && row[n - 1] && takes(dialect, part, text[n - 1]),
            };
        }
        row = next;
    }
    row.last().copied()
}

fn takes(dialect: Dialect, part: &Part, c: char) -> bool {
    match part {
        Part::Just(own) => *own == c,
        Part::Nothing => false,
        _ if dialect == Dialect::Paths && c == '/' => false,
        Part::Any | Part::One => true,
        Part::Set { not, ranges } => ranges.iter().any(|(a, b)| (*a..=*b).contains(&c)) != *not,
    }
}

/// Splits a glob into its parts; `None` for sets that the matcher does not model.
fn parts(dialect: Dialect, glob: &str) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = glob.chars();
    while let Some(c) = rest.next() {
        parts.push(match c {
            '*' => Part::Any,
            '?' => Part::One,
            '\\' if dialect == Dialect::Udev => match rest.next() {
                Some(own) => Part::Just(own),
                None => Part::Nothing,
            },
            '[' => {
                let (set, after) = set(rest.as_str())?;
                rest = after.chars();
                set
            }
            own => Part::Just(own),
        });
    }
    Some(parts)
}

/// Parses a plain set; `None` for classes, escapes, odd ranges and a bracket that is not closed.
fn set(text: &str) -> Option<(Part, &str)> {
    let (not, text) = match text.strip_prefix(['!', '^']) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (inner, after) = text.split_once(']')?;
    let odd = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.' | ':');
    if inner.is_empty() || inner.contains(odd) {
        return None;
    }
    let inner: Vec<char> = inner.chars().collect();
    let mut ranges = Vec::new();
    let mut rest = inner.as_slice();
    loop {
        rest = match rest {
            [] => return Some((Part::Set { not, ranges }, after)),
            ['-', ..] => return None,
            [a, '-', b, after @ ..] if a <= b && *b != '-' => {
                ranges.push((*a, *b));
                after
            }
            [_, '-', ..] => return None,
            [a, after @ ..] => {
                ranges.push((*a, *a));
                after
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_fit_as_the_book_says() {
        for (dialect, glob, text, expected) in [
            (Dialect::Udev, "video[0-9]*", "video10", Some(true)),
            (Dialect::Udev, "video[!0-9]", "video1", Some(false)),
            (Dialect::Udev, "a*c", "a/b/c", Some(true)),
            (Dialect::Udev, "a?c", "aéc", Some(false)),
            (Dialect::Udev, "a??c", "aéc", Some(true)),
            (Dialect::Udev, r"a\*", "a*", Some(true)),
            (Dialect::Udev, r"a\", "a\\", Some(false)),
            (Dialect::Udev, "[[:digit:]]", "1", None),
            (Dialect::Paths, "/dev/vfio/*", "/dev/vfio/7", Some(true)),
            (Dialect::Paths, "/dev/vfio/*", "/dev/vfio/7/8", Some(false)),
            (Dialect::Paths, "/dev?null", "/dev/null", Some(false)),
        ] {
            assert_eq!(fits(dialect, glob, text), expected, "{glob} {text}");
        }
    }
}
