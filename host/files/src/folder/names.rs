//! Which names of files are used: whoever may write into a folder chooses them, and logs, tables and paths repeat them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use leafhost_core::text;

/// The most names that are told one by one.
const MAX_TOLD: usize = 20;

/// Why a file or folder of that name is not used, if so.
pub fn unusable(name: &OsStr, longest: usize) -> Option<String> {
    if name.as_bytes().len() > longest {
        return Some(format!("is longer than {longest} bytes"));
    }
    match name.to_str() {
        None => Some("is not UTF-8 text".to_owned()),
        Some(name) if name.contains(text::is_unprintable) => Some(
            "has a control character, or one that is invisible or sets the direction".to_owned(),
        ),
        Some(_) => None,
    }
}

/// The name in quotes with `\n`, `\u{202e}`, `\xff` and the like.
fn shown(name: &OsStr) -> String {
    let mut shown = String::from('"');
    for chunk in name.as_bytes().utf8_chunks() {
        shown.push_str(&text::escape(chunk.valid()));
        let invalid = chunk.invalid().iter();
        shown.extend(invalid.map(|byte| format!("\\x{byte:02x}")));
    }
    shown.push('"');
    shown
}

/// Names that are not used: the first of them, and how many there are.
#[derive(Debug, Default)]
pub struct Unusable {
    first: BTreeSet<OsString>,
    number: usize,
}

impl Unusable {
    /// One more; in a folder below, with that before it.
    pub fn add(&mut self, name: OsString) {
        self.number = self.number.saturating_add(1);
        self.first.insert(name);
        if self.first.len() > MAX_TOLD {
            self.first.pop_last();
        }
    }

    /// What is told of them.
    pub fn problems(&self, longest: usize) -> Vec<String> {
        let told = |name: &OsString| {
            let base = name.as_bytes().rsplit(|byte| *byte == b'/').next();
            let base = base.map_or(name.as_os_str(), OsStr::from_bytes);
            let why = unusable(base, longest).unwrap_or_else(|| "lies in such a folder".to_owned());
            format!("{} is not used, its name {why}; rename it", shown(name))
        };
        let mut problems: Vec<String> = self.first.iter().map(told).collect();
        let more = self.number.saturating_sub(self.first.len());
        if more > 0 {
            problems.push(format!(
                "has {more} more files whose names are not used: they are too long, not UTF-8, or have characters that do not show; rename them"
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_can_be_shown_as_they_are_are_used() {
        for (name, why) in [
            (b"a.yaml".as_slice(), None),
            ("größer 漢.yaml".as_bytes(), None),
            (b"a\nb.yaml", Some("control")),
            (b"a\x1b[2J.yaml", Some("control")),
            ("a\u{202e}b.yaml".as_bytes(), Some("direction")),
            ("a\u{200b}b.yaml".as_bytes(), Some("invisible")),
            (b"a\xff.yaml", Some("not UTF-8")),
            (b"0123456789.", Some("longer than 10 bytes")),
        ] {
            let longest = if name.starts_with(b"0") { 10 } else { 255 };
            let found = unusable(OsStr::from_bytes(name), longest);
            assert_eq!(found.is_some(), why.is_some(), "{name:?}");
            let (found, why) = (found.unwrap_or_default(), why.unwrap_or_default());
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn the_first_names_are_shown_escaped_and_the_others_counted() {
        let mut unusable = Unusable::default();
        for n in (0..1000).rev() {
            unusable.add(OsString::from(format!("{n:03}\n\u{202e}.yaml")));
        }
        let problems = unusable.problems(255);
        assert_eq!(problems.len(), MAX_TOLD + 1);
        assert_eq!(
            problems[0],
            "\"000\\n\\u{202e}.yaml\" is not used, its name has a control character, or one that is invisible or sets the direction; rename it"
        );
        assert!(problems[MAX_TOLD].starts_with("has 980 more files"));
        let mut bytes = Unusable::default();
        bytes.add(OsStr::from_bytes(b"sub/\xff.yaml").to_owned());
        let told = bytes.problems(255).concat();
        assert!(told.starts_with("\"sub/\\xff.yaml\" is not used"), "{told}");
    }
}
