//! Shell globs, matched byte by byte like `fnmatch(3)` without flags in the C locale, as in udev.

/// Returns true if the glob matches the whole text, in at most as many steps as the product of their lengths.
pub(crate) fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut glob, mut text) = (glob, text);
    // Rest of both after the last star: the point to continue from after a mismatch.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        match step(glob, text) {
            Step::Ends => return true,
            Step::Star(rest) => {
                glob = rest;
                again = Some((rest, text));
            }
            Step::Fits(rest_of_glob, rest_of_text) => (glob, text) = (rest_of_glob, rest_of_text),
            Step::Differs => {
                let Some((after_star, [_, later @ ..])) = again else {
                    return false;
                };
                again = Some((after_star, later));
                (glob, text) = (after_star, later);
            }
        }
    }
}

enum Step<'a> {
    /// Both have ended.
    Ends,
    /// A star, with the rest of the glob.
    Star(&'a [u8]),
    /// One byte matches, with the rest of both.
    Fits(&'a [u8], &'a [u8]),
    Differs,
}

fn step<'a>(glob: &'a [u8], text: &'a [u8]) -> Step<'a> {
    let Some((first, rest)) = glob.split_first() else {
        return if text.is_empty() {
            Step::Ends
        } else {
            Step::Differs
        };
    };
    if *first == b'*' {
        return Step::Star(rest);
    }
    let Some((byte, text)) = text.split_first() else {
        return Step::Differs;
    };
    let after = match (first, rest) {
        (b'?', _) => Some(rest),
        // A backslash at the end matches nothing.
        (b'\\', []) => None,
        (b'\\', [literal, rest @ ..]) => (literal == byte).then_some(rest),
        (b'[', _) => match Set(rest).matches(*byte) {
            In::Fits(rest) => Some(rest),
            In::Differs => None,
            In::Open => (*byte == b'[').then_some(rest),
        },
        (literal, _) => (literal == byte).then_some(rest),
    };
    after.map_or(Step::Differs, |after| Step::Fits(after, text))
}

/// Result of comparing a set with a byte.
enum In<'a> {
    /// The byte matches, with the glob after the set.
    Fits(&'a [u8]),
    Differs,
    /// No `]` closes the set, so the `[` is a literal.
    Open,
}

/// Glob after a `[`.
struct Set<'a>(&'a [u8]);

impl<'a> Set<'a> {
    fn matches(mut self, byte: u8) -> In<'a> {
        let negated = matches!(self.0, [b'!' | b'^', ..]);
        if negated {
            self.next();
        }
        let mut is_first = true;
        loop {
            match self.0 {
                [] => return In::Open,
                [b']', rest @ ..] if !is_first => {
                    return if negated { In::Fits(rest) } else { In::Differs };
                }
                _ => {}
            }
            is_first = false;
            match self.part(byte) {
                None => return In::Differs,
                Some(false) => {}
                Some(true) => {
                    return match self.skip() {
                        In::Fits(_) if negated => In::Differs,
                        end => end,
                    };
                }
            }
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns true if the next part has the byte; `None` if the set cannot match anything.
    fn part(&mut self, byte: u8) -> Option<bool> {
        let low = match self.0 {
            [b'[', b':', rest @ ..] if class_end(rest).is_some() => {
                let (name, rest) = rest.split_at_checked(class_end(rest)?)?;
                self.0 = rest.get(2..)?;
                return class(name, byte);
            }
            [b'[', b'=', same, b'=', b']', rest @ ..] => {
                self.0 = rest;
                return Some(*same == byte);
            }
            _ => self.end_of_range()?,
        };
        // A minus between two bytes makes a range; at either end it is a literal.
        let high = match self.0 {
            [b'-', b']', ..] => low,
            [b'-', rest @ ..] => {
                self.0 = rest;
                self.end_of_range()?
            }
            _ => low,
        };
        Some((low..=high).contains(&byte))
    }

    fn end_of_range(&mut self) -> Option<u8> {
        if let [b'[', b'.', rest @ ..] = self.0 {
            let [one, b'.', b']', rest @ ..] = rest else {
                return None;
            };
            self.0 = rest;
            return Some(*one);
        }
        match self.next()? {
            b'\\' => self.next(),
            byte => Some(byte),
        }
    }

    /// Skips to the end of the set after a part has matched.
    fn skip(mut self) -> In<'a> {
        loop {
            match self.0 {
                [b'[', b':', rest @ ..] if class_end(rest).is_some() => {
                    self.0 = class_end(rest)
                        .and_then(|end| rest.get(end + 2..))
                        .unwrap_or_default();
                }
                [b'[', b'=', _, b'=', b']', rest @ ..]
                | [b'[', b'.', _, b'.', b']', rest @ ..]
                | [b'\\', _, rest @ ..] => self.0 = rest,
                [b'[', b'=' | b'.', ..] | [b'\\'] => return In::Differs,
                [b']', rest @ ..] => return In::Fits(rest),
                [_, rest @ ..] => self.0 = rest,
                [] => return In::Open,
            }
        }
    }
}

/// Returns the end of a class name that is followed by `:]`.
fn class_end(text: &[u8]) -> Option<usize> {
    let end = text.iter().position(|c| !c.is_ascii_lowercase())?;
    text.get(end..)?.starts_with(b":]").then_some(end)
}

/// Returns true if the byte is in the class; `None` if there is no such class.
fn class(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte == b' ' || byte.is_ascii_graphic(),
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == b'\x0b',
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn globs_match_as_udev_does() {
        let table: [(&str, &[&str], &[&str]); 34] = [
            ("video*", &["video", "video0", "video/x"], &["avideo0"]),
            ("video[0-9]*", &["video0", "video10"], &["video", "videox"]),
            ("*a*b*c", &["abc", "xaxbxc", "abcabc"], &["acb", "abcx"]),
            // A byte is a character.
            ("a?c", &["abc", "a/c"], &["ac", "abbc", "aéc"]),
            ("a??c", &["aéc"], &["abc"]),
            ("[é]*", &["é", "ê"], &["e"]),
            ("[é][é]", &["é"], &["e"]),
            ("[!n]*", &["zero"], &["null", ""]),
            ("[^n]*", &["zero"], &["null"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[!]a]", &["b"], &["]", "a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[-a]", &["a", "-"], &["b"]),
            ("[[:digit:]]x", &["1x"], &["ax"]),
            ("[![:digit:]a]x", &["bx"], &["1x", "ax"]),
            ("[[:nothing:]]", &[], &["n", ":"]),
            ("[[:digit]", &["[", ":", "d"], &["1"]),
            ("[[=a=]b]", &["a", "b"], &["="]),
            ("[[.-.]b]", &["-", "b"], &["."]),
            (r"[\]a]", &["]", "a"], &[r"\"]),
            (r"[a\-z]", &["a", "-", "z"], &["b", r"\"]),
            ("[a&&b]", &["&", "a"], &["c"]),
            ("a[b", &["a[b"], &["ab"]),
            ("a[!b", &["a[!b"], &["ac"]),
            ("[[", &["[["], &["["]),
            ("[a-", &[], &["a", "[a-"]),
            ("[z-a]", &[], &["z", "a"]),
            ("?*", &["x"], &[""]),
            ("", &[""], &["a"]),
            ("a.c*", &["a.c", "a.cd"], &["abc"]),
            (r"a\**", &["a*b"], &["ab"]),
            (r"*\", &[], &["", "a", r"\"]),
            (r"*\\", &[r"\", r"a\"], &["a"]),
            ("*", &["", "x", "a\nb"], &[]),
        ];
        for (glob, held, not) in table {
            for text in held {
                let fits = super::matches(glob.as_bytes(), text.as_bytes());
                assert!(fits, "{glob:?} on {text:?}");
            }
            for text in not {
                let fits = super::matches(glob.as_bytes(), text.as_bytes());
                assert!(!fits, "{glob:?} on {text:?}");
            }
        }
    }

    #[test]
    fn a_pattern_of_stars_takes_bounded_time() {
        let glob = "*a".repeat(500) + "b";
        let text = "a".repeat(4000);
        let started = std::time::Instant::now();
        assert!(!super::matches(glob.as_bytes(), text.as_bytes()));
        assert!(started.elapsed() < std::time::Duration::from_secs(2));
    }
}
