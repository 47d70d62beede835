//! Notes of a search, bounded, the most useful first.

use std::collections::{BTreeMap, BTreeSet};

use super::Note;
use super::readings::Glob;
use crate::listing::Listing;
use crate::pattern::Match;
use crate::rule::{Field, Rule, Term};
use crate::verdict::Miss;

/// Maximum number of notes; near misses are cut to this number once there are eight times as many.
const MOST: usize = 1_000;
/// Maximum number of devices for which a hint is looked up.
const MAX_HINTS: usize = 100;
/// Subject of a note about no single device.
const MACHINE: &str = "this machine";

/// Collects notes.
#[derive(Debug, Default)]
pub(super) struct Notes<'a> {
    /// Terms that are read as globs, each with the reason.
    globs: Vec<(Glob, &'static str)>,
    /// First device and number of devices, by rule and term.
    as_regex: BTreeMap<(u32, usize), (&'a str, usize)>,
    missed: Vec<Told<'a>>,
    forgotten: usize,
}

/// A device that a rule nearly matches.
#[derive(Debug)]
struct Told<'a> {
    rule: u32,
    devpath: &'a str,
    miss: Miss,
    hint: Option<String>,
}

impl Told<'_> {
    /// Returns true if nothing is known of the device except that the value is absent.
    fn is_bare(&self) -> bool {
        self.hint.is_none() && self.miss.actual.is_none() && self.miss.at.is_none()
    }

    /// Returns the indexes of the rule and of the term that failed.
    fn place(&self) -> (u32, usize) {
        (self.rule, self.miss.failed)
    }
}

impl<'a> Notes<'a> {
    /// Creates the notes, beginning with those on how terms are read.
    pub(super) fn new(rules: &[Rule], globs: Vec<Glob>) -> Self {
        let fits = "because it fits this device as one";
        let mut globs: Vec<_> = globs.into_iter().map(|glob| (glob, fits)).collect();
        for (rule, of_rule) in (0..).zip(rules) {
            let ports = of_rule.terms().enumerate().filter(|(_, it)| it.is_port());
            globs.extend(ports.map(|(term, _)| {
                let devpath = MACHINE.to_owned();
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
        self.missed.push(Told {
            rule,
            devpath,
            miss,
            hint: None,
        });
        if self.missed.len() > 8 * MOST {
            self.sort();
            self.forgotten += self.missed.len() - MOST;
            self.missed.truncate(MOST);
        }
    }

    /// Sorts the near misses by the number of terms that held, largest first.
    fn sort(&mut self) {
        self.missed.sort_by(|a, b| {
            let held = b.miss.held.cmp(&a.miss.held);
            held.then_with(|| (a.devpath, a.rule).cmp(&(b.devpath, b.rule)))
        });
    }

    /// Returns the notes as texts, and the number of dropped ones. Adds the result of `hint` to the notes on the first devices that nearly
    /// match.
    pub(super) fn written(
        mut self,
        rules: &[Rule],
        hint: impl Fn(&Rule, usize, &str) -> Option<String>,
    ) -> (Vec<Note>, u64) {
        self.sort();
        let globs = self.globs.into_iter().filter_map(|(glob, why)| {
            let (rule, term) = lookup(rules, glob.rule, glob.term)?;
            let reason = format!(
                "{term} is read as a glob, {why}; for the regular expression that it was in Akri write \"({})\"",
                term.value
            );
            Some(note(&glob.devpath, rule, reason))
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
                let reason = format!(
                    "{term} holds only as a regular expression, as Akri read it{others}; write it as a glob{dot}"
                );
                Some(note(devpath, rule, reason))
            });
        let mut missed = self.missed;
        for told in missed.iter_mut().take(MAX_HINTS) {
            let failed = told.miss.failed;
            told.hint = lookup(rules, told.rule, failed)
                .and_then(|(rule, _)| hint(rule, failed, told.devpath));
        }
        let bare = folded(&missed);
        let mut said = BTreeSet::new();
        let missed = missed.iter().filter_map(|told| {
            let (rule, term) = lookup(rules, told.rule, told.miss.failed)?;
            if told.is_bare()
                && let Some(count) = bare.get(&told.place())
            {
                let why = format!("{count} devices that come near have no {}", wanted(term));
                let is_new = said.insert(told.place());
                return is_new.then(|| near(MACHINE, rule, term, &why));
            }
            let value = found(term, &told.miss);
            let why = match &told.hint {
                Some(hint) => format!("{value}; {hint}"),
                None => value,
            };
            Some(near(told.devpath, rule, term, &why))
        });
        let mut all = globs.chain(as_regex).chain(missed);
        let notes = all.by_ref().take(MOST).collect();
        // Counts the others one by one: the text of each may be long.
        let dropped = self.forgotten + all.count();
        (notes, u64::try_from(dropped).unwrap_or(u64::MAX))
    }
}

/// Returns the numbers of devices that share a note, by rule and term.
fn folded(missed: &[Told<'_>]) -> BTreeMap<(u32, usize), usize> {
    let mut bare: BTreeMap<(u32, usize), usize> = BTreeMap::new();
    for told in missed.iter().filter(|told| told.is_bare()) {
        *bare.entry(told.place()).or_default() += 1;
    }
    bare.retain(|_, count| *count > 1);
    bare
}

/// Returns the name and the value that a term asks for.
fn wanted(term: &Term) -> String {
    let than = if term.negated { "other than " } else { "" };
    format!("{} {than}{:?}", name(term), term.value)
}

/// Returns the key of a term, else its field.
fn name(term: &Term) -> String {
    let field = || term.field.to_string().to_lowercase();
    term.key.clone().unwrap_or_else(field)
}

/// Returns the note about a device that a rule nearly matches.
pub(super) fn near(devpath: &str, rule: &Rule, term: &Term, why: &str) -> Note {
    note(devpath, rule, format!("{term} does not hold: {why}"))
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
    let reason = match absent {
        Some(absent) => format!("no {} device on this machine", absent.term.value),
        None => "no device that the handler may see comes near to the rule".to_owned(),
    };
    note(MACHINE, rule, reason)
}

fn note(subject: &str, rule: &Rule, reason: String) -> Note {
    Note {
        subject: subject.to_owned(),
        rule: rule.to_string(),
        reason,
    }
}

fn lookup(rules: &[Rule], rule: u32, term: usize) -> Option<(&Rule, &Term)> {
    let rule = rules.get(usize::try_from(rule).ok()?)?;
    Some((rule, rule.terms().nth(term)?))
}

/// Describes the value that does not match.
fn found(term: &Term, miss: &Miss) -> String {
    let what = name(term);
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
        assert_eq!((written.len(), dropped), (1_000, 9_002));
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

    #[test]
    fn devices_without_the_value_share_a_note() -> Result<(), InvalidRule> {
        let term = |field, key: &str, value: &str| Term {
            field,
            key: (!key.is_empty()).then(|| key.to_owned()),
            negated: false,
            value: value.to_owned(),
        };
        let tty = || term(Field::Subsystem, "", "tty");
        let rules = [
            Rule::new(vec![
                tty(),
                term(Field::Attrs, "idVendor", "10c4"),
                term(Field::Attrs, "idProduct", "ea60"),
            ])?,
            Rule::new(vec![
                tty(),
                term(Field::Kernel, "", "tty*"),
                term(Field::Env, "ID_MODEL", "x"),
            ])?,
        ];
        let miss = |failed| Miss {
            held: 1,
            failed,
            actual: None,
            at: None,
        };
        let paths: Vec<String> = (0..68).map(|number| format!("/devices/{number}")).collect();
        let written = |rule: u32, failed: usize, near: &str| {
            let mut notes = Notes::default();
            for path in &paths {
                notes.missed(rule, path, miss(failed));
            }
            let hint = |_: &Rule, _: usize, path: &str| (path == near).then(|| "near".to_owned());
            let (written, dropped) = notes.written(&rules, hint);
            assert_eq!(dropped, 0);
            let texts = written.into_iter().map(|note| (note.subject, note.reason));
            texts.collect::<Vec<(String, String)>>()
        };
        let machine = "this machine".to_owned();
        assert_eq!(
            written(0, 1, ""),
            [(
                machine.clone(),
                r#"ATTRS{idVendor}=="10c4" does not hold: 68 devices that come near have no idVendor "10c4""#
                    .to_owned()
            )]
        );
        assert_eq!(
            written(1, 2, "/devices/0"),
            [
                (
                    "/devices/0".to_owned(),
                    r#"ENV{ID_MODEL}=="x" does not hold: ID_MODEL is absent or empty; near"#
                        .to_owned()
                ),
                (
                    machine,
                    r#"ENV{ID_MODEL}=="x" does not hold: 67 devices that come near have no ID_MODEL "x""#
                        .to_owned()
                ),
            ]
        );
        Ok(())
    }
}
