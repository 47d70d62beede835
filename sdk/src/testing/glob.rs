//! Shell globs as udev understands them, for the fake.

/// Whether the whole text matches one of the alternatives between `|`. As in udev a character is a byte, and without any of
/// `*`, `?` and `[` alternatives are compared as they are.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let is_glob = pattern.contains(['*', '?', '[']);
    pattern.split('|').any(|alternative| {
        if is_glob {
            one(alternative.as_bytes(), text.as_bytes())
        } else {
            alternative == text
        }
    })
}

fn one(pattern: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return text.is_empty();
    };
    if *first == b'*' {
        return (0..=text.len()).any(|skip| text.get(skip..).is_some_and(|text| one(rest, text)));
    }
    let Some((c, text)) = text.split_first() else {
        return false;
    };
    match first {
        b'?' => one(rest, text),
        b'\\' => rest
            .split_first()
            .is_some_and(|(literal, rest)| literal == c && one(rest, text)),
        b'[' => match class(rest) {
            Some((negated, members, rest)) => member(members, *c) != negated && one(rest, text),
            None => c == first && one(rest, text),
        },
        literal => literal == c && one(rest, text),
    }
}

/// Splits `^a-z]rest` into whether it is negated, its members, and the rest. `None` where no `]` follows.
fn class(pattern: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let (negated, pattern) = match pattern.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let end = 1 + pattern.iter().skip(1).position(|c| *c == b']')?;
    Some((negated, pattern.get(..end)?, pattern.get(end + 1..)?))
}

fn member(members: &[u8], c: u8) -> bool {
    match members {
        [low, b'-', high, rest @ ..] => (*low..=*high).contains(&c) || member(rest, c),
        [one, rest @ ..] => *one == c || member(rest, c),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn patterns_match_as_in_udev() {
        for (pattern, text, holds) in [
            ("video*", "video0", true),
            ("video*", "a video0", false),
            ("video[0-9]", "video7", true),
            ("video[!0-9]", "video7", false),
            ("video[^a-c]x", "video7x", true),
            ("[]x]", "]", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("046d|04b4", "04b4", true),
            ("a|", "", true),
            ("", "", true),
            ("*", "", true),
            ("?*", "", false),
            ("[", "[", true),
            (r"\*", "*", true),
            (r"\*", "x", false),
            (r"a\b", r"a\b", true),
            ("a?c", "aéc", false),
            ("a??c", "aéc", true),
        ] {
            assert_eq!(super::matches(pattern, text), holds, "{pattern:?} {text:?}");
        }
    }
}
