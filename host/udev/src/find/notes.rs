//! Notes of a search, bounded, the most useful first.

use std::collections::BTreeMap;

use super::readings::Glob;
use super::{MAX_NOTES, Note};
use crate::listing::Listing;
use crate::pattern::Match;
use crate::rule::{Field, Rule, Term};
use crate::verdict::Miss;

/// Maximum number of devices for which a hint is looked up.
const MAX_HINTS: usize = 100;

/// Collects notes.
#[derive(Debug, Default)]
pub(super) struct Notes<'a> {
    /// Terms that are read as globs, each with the reason.
    globs: Vec<(Glob, &'static str)>,
    /// First device and number of devices, by rule and term.
    as_regex: BTreeMap<(u32, usize), (&'a str, usize)>,
    missed: Vec<(u32, &'a str, Miss)>,
    forgotten: usize,
}

impl<'a> Notes<'a> {
    /// Starts with the notes on how terms are read.
    pub(super) fn new(rules: &[Rule], globs: Vec<Glob>) -> Self {
        let fits = "because it fits this device as one";
        let mut globs: Vec<_> = globs.into_iter().map(|glob| (glob, fits)).collect();
        for (rule, of_rule) in (0..).zip(rules) {
            let ports = of_rule.terms().enumerate().filter(|(_, it)| it.is_port());
            globs.extend(ports.map(|(term, _)| {
                let devpath = "this machine".to_owned();
                let glob = Glob {
                    rule,
                    term,
                    devpath,
                };
                (glob, "because it looks like ports of a bus")
            }));
        }
        Self {
            globs,
            ..Self::default()
        }
    }

    /// Records a term that holds only as a regular expression.
    pub(super) fn matched_as_regex(&mut self, rule: u32, term: usize, devpath: &'a str) {
        self.as_regex.entry((rule, term)).or_insert((devpath, 0)).1 += 1;
    }

    /// Records a rule that nearly held.
    pub(super) fn missed(&mut self, rule: u32, devpath: &'a str, miss: Miss) {
        self.missed.push((rule, devpath, miss));
        if self.missed.len() > 8 * MAX_NOTES {
            self.sort();
            self.forgotten += self.missed.len() - MAX_NOTES;
            self.missed.truncate(MAX_NOTES);
        }
    }

    /// Sorts the near misses by the number of terms that held, largest first.
    fn sort(&mut self) {
        self.missed.sort_by(|a, b| {
            let held = b.2.held.cmp(&a.2.held);
            held.then_with(|| (&a.1, a.0).cmp(&(&b.1, b.0)))
        });
    }

    /// Returns the notes as texts, and the number of dropped ones. Adds what `hint` says of the first devices that nearly match.
    pub(super) fn written(
        mut self,
        rules: &[Rule],
        hint: impl Fn(&Rule, usize, &str) -> Option<String>,
    ) -> (Vec<Note>, u64) {
        let read = self.globs.len() + self.as_regex.len();
        let total = read + self.missed.len() + self.forgotten;
        self.sort();
        let globs = self.globs.into_iter().filter_map(|(glob, why)| {
            let (rule, term) = lookup(rules, glob.rule, glob.term)?;
            Some(Note {
                subject: glob.devpath,
                rule: rule.to_string(),
                reason: format!(
                    "{term} is read as a glob, {why}; for the regular expression that it was in Akri write \"({})\"",
                    term.value
                ),
            })
        });
        let as_regex = self
            .as_regex
            .into_iter()
            .filter_map(|((rule, term), (devpath, count))| {
                let (rule, term) = lookup(rules, rule, term)?;
                let others = match count {
                    0 | 1 => String::new(),
                    _ => format!(" (and {} other devices)", count - 1),
                };
                let dot = if term.value.contains(".*") {
                    ", for one with a dot [.]* instead of .*"
                } else {
                    ""
                };
                Some(Note {
                    subject: devpath.to_owned(),
                    rule: rule.to_string(),
                    reason: format!(
                        "{term} holds only as a regular expression, as Akri read it{others}; write it as a glob{dot}"
                    ),
                })
            });
        let missed = self.missed.into_iter().enumerate();
        let missed = missed.filter_map(|(place, (rule, devpath, miss))| {
            let (rule, term) = lookup(rules, rule, miss.failed)?;
            let value = found(term, &miss);
            let is_first = place < MAX_HINTS;
            let hint = is_first.then(|| hint(rule, miss.failed, devpath)).flatten();
            let why = match hint {
                Some(hint) => format!("{value}; {hint}"),
                None => value,
            };
            Some(near(devpath, rule, term, &why))
        });
        let notes: Vec<Note> = globs
            .chain(as_regex)
            .chain(missed)
            .take(MAX_NOTES)
            .collect();
        let dropped = total.saturating_sub(notes.len());
        (notes, u64::try_from(dropped).unwrap_or(u64::MAX))
    }
}

/// Returns the note about a device that a rule nearly matches.
pub(super) fn near(devpath: &str, rule: &Rule, term: &Term, why: &str) -> Note {
    Note {
        subject: devpath.to_owned(),
        rule: rule.to_string(),
        reason: format!("{term} does not hold: {why}"),
    }
}

/// Returns the note about a rule that no device nearly matches.
pub(super) fn nothing(rule: &Rule, listing: &Listing) -> Note {
    let mut terms = rule.compiled().iter();
    let absent = terms.find(|compiled| {
        let fits = |(_, subsystem): (&str, &str)| {
            compiled.pattern.matches(subsystem.as_bytes()) != Match::No
        };
        let Term { field, negated, .. } = compiled.term;
        field == Field::Subsystem && !negated && !listing.iter().any(fits)
    });
    Note {
        subject: "this machine".to_owned(),
        rule: rule.to_string(),
        reason: match absent {
            Some(absent) => format!("no {} device on this machine", absent.term.value),
            None => "no device that the handler may see comes near to the rule".to_owned(),
        },
    }
}

fn lookup(rules: &[Rule], rule: u32, term: usize) -> Option<(&Rule, &Term)> {
    let rule = rules.get(usize::try_from(rule).ok()?)?;
    Some((rule, rule.terms().nth(term)?))
}

/// Returns the value that does not match.
fn found(term: &Term, miss: &Miss) -> String {
    let what = term
        .key
        .clone()
        .unwrap_or_else(|| term.field.to_string().to_lowercase());
    let is_attribute = matches!(term.field, Field::Attr | Field::Attrs);
    let here = match &miss.actual {
        Some(actual) => format!("{what} is {actual:?}"),
        None if is_attribute => {
            format!("{what} is absent or empty, and where it is absent no term holds")
        }
        None => format!("{what} is absent or empty"),
    };
    match (&miss.at, term.field.is_plural()) {
        (_, false) => here,
        (Some(at), true) => {
            format!("of {at}, which comes nearest to all terms on ancestors, {here}")
        }
        (None, true) => {
            format!("{here}, and no device above comes nearer to all terms on ancestors")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::InvalidRule;

    #[test]
    fn the_most_useful_notes_are_kept() -> Result<(), InvalidRule> {
        let term = |field| Term {
            field,
            key: None,
            negated: false,
            value: "x*".to_owned(),
        };
        let rules = [Rule::new(vec![
            term(Field::Kernel),
            term(Field::Driver),
            term(Field::Tag),
        ])?];
        let miss = |held, actual: Option<&str>| Miss {
            held,
            failed: 2,
            actual: actual.map(str::to_owned),
            at: None,
        };
        let paths: Vec<String> = (0..10_000)
            .map(|number| format!("/devices/x{number:05}"))
            .collect();
        let mut notes = Notes::default();
        for path in &paths {
            notes.missed(0, path, miss(1, Some("y")));
        }
        notes.missed(0, "/devices/z", miss(2, None));
        notes.matched_as_regex(0, 0, "/devices/x00000");
        let (written, dropped) = notes.written(&rules, |_, _, _| None);
        assert_eq!(written.len(), MAX_NOTES);
        assert_eq!(dropped, 10_002 - 1_000);
        let reasons: Vec<(&str, &str)> = written
            .iter()
            .take(3)
            .map(|note| (note.subject.as_str(), note.reason.as_str()))
            .collect();
        assert_eq!(
            reasons,
            [
                (
                    "/devices/x00000",
                    r#"KERNEL=="x*" holds only as a regular expression, as Akri read it; write it as a glob"#
                ),
                (
                    "/devices/z",
                    r#"TAG=="x*" does not hold: tag is absent or empty"#
                ),
                ("/devices/x00000", r#"TAG=="x*" does not hold: tag is "y""#),
            ]
        );
        Ok(())
    }
}
