//! Whether a rule holds for a device, and if not, what decided.
//!
//! As in udev: every term on the device itself must hold, and all terms on ancestors must hold at one and the same of
//! them, the device included. Pure: asks [`Facts`], and asks for what costs a file only when what is at hand does not decide.

use crate::facts::{Facts, Value, value};
use crate::pattern::{Match, Pattern};
use crate::rule::{CompiledTerm, Field, Rule};

/// The longest text that udev takes the white space at its end from: the rest of it is not looked at.
const MAX_TRIMMED: usize = 511;

/// A rule held against a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every term holds; the indexes of those that do so only as a regular expression.
    Holds { as_regex: Vec<usize> },
    /// Some terms hold, others do not.
    Misses(Miss),
    /// No positive term holds that says something.
    Differs,
}

/// A rule that a device nearly fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Miss {
    /// How many positive terms hold.
    pub(crate) held: usize,
    /// The first term that does not.
    pub(crate) failed: usize,
    /// What is there in its place; None: nothing.
    pub(crate) actual: Option<String>,
    /// The ancestor at which the terms on ancestors come nearest to holding; None: the device itself.
    pub(crate) at: Option<String>,
}

/// A device and the ancestors that may be looked at, nearest first.
pub(crate) struct Chain<'a> {
    /// The device.
    pub(crate) own: &'a dyn Facts,
    /// Its ancestors.
    pub(crate) ancestors: &'a [&'a dyn Facts],
}

/// Holds `rule` against a device.
pub(crate) fn judge(rule: &Rule, chain: &Chain<'_>) -> Verdict {
    let mut terms: Vec<(usize, &CompiledTerm)> = rule.compiled().iter().enumerate().collect();
    terms.sort_by_key(|(_, term)| cost(term.term.field));
    let (plural, own): (Vec<_>, Vec<_>) = terms
        .into_iter()
        .partition(|(_, term)| term.term.field.is_plural());
    let mut so_far = SoFar::default();
    so_far.add_all(&own, chain.own);
    if so_far.failed.is_none() && !plural.is_empty() {
        so_far = at_one_of_them(&so_far, &plural, chain);
    }
    let SoFar {
        held,
        failed,
        mut as_regex,
    } = so_far;
    match failed {
        None => {
            as_regex.sort_unstable();
            Verdict::Holds { as_regex }
        }
        Some(failed) if held > 0 => Verdict::Misses(Miss { held, ..failed }),
        Some(_) => Verdict::Differs,
    }
}

/// What comes of all terms if those in `plural` are held against the device and its ancestors one by one: the first
/// at which all hold; else the nearest of those at which most do.
fn at_one_of_them(so_far: &SoFar, plural: &[(usize, &CompiledTerm)], chain: &Chain<'_>) -> SoFar {
    let mut best: Option<SoFar> = None;
    let ancestors = chain.ancestors.iter().map(|facts| (*facts, true));
    for (facts, is_above) in std::iter::once((chain.own, false)).chain(ancestors) {
        let mut here = so_far.clone();
        here.add_all(plural, facts);
        let Some(failed) = &mut here.failed else {
            return here;
        };
        failed.at = is_above.then(|| facts.kernel().to_owned());
        if best.as_ref().is_none_or(|best| here.held > best.held) {
            best = Some(here);
        }
    }
    best.unwrap_or_default()
}

/// What is known after some of the terms.
#[derive(Debug, Clone, Default)]
struct SoFar {
    held: usize,
    failed: Option<Miss>,
    as_regex: Vec<usize>,
}

impl SoFar {
    /// Holds the terms against a device, the cheap ones first. Once one of them has failed, files are not opened to
    /// count how near it was.
    fn add_all(&mut self, terms: &[(usize, &CompiledTerm)], facts: &dyn Facts) {
        let mut paid = 0;
        for (index, term) in terms {
            let step = cost(term.term.field);
            if step > paid && self.failed.is_some() {
                break;
            }
            paid = step;
            let found = value(&term.term, facts);
            match hold(term, &found) {
                Match::No => {
                    if self
                        .failed
                        .as_ref()
                        .is_none_or(|first| *index < first.failed)
                    {
                        self.failed = Some(Miss {
                            held: 0,
                            failed: *index,
                            actual: found.shown(),
                            at: None,
                        });
                    }
                    continue;
                }
                Match::Glob => {}
                Match::Regex => self.as_regex.push(*index),
            }
            if !term.term.negated && !term.pattern.is_any() {
                self.held += 1;
            }
        }
    }
}

/// What looking at a field costs, in steps: the path and its link; udev's database or a file of the device.
fn cost(field: Field) -> u8 {
    match field {
        Field::Devpath | Field::Kernel | Field::Kernels | Field::Subsystem | Field::Subsystems => 0,
        Field::Driver
        | Field::Drivers
        | Field::Env
        | Field::Tag
        | Field::Tags
        | Field::Attr
        | Field::Attrs => 1,
    }
}

/// How the term holds for this very device.
pub(crate) fn holds(term: &CompiledTerm, facts: &dyn Facts) -> Match {
    hold(term, &value(&term.term, facts))
}

fn hold(term: &CompiledTerm, found: &Value<'_>) -> Match {
    let pattern = &term.pattern;
    let matched = match found {
        Value::Absent => return Match::No,
        Value::Tags(tags) => tags
            .iter()
            .map(|tag| pattern.matches(tag.as_bytes()))
            .max()
            .unwrap_or(Match::No),
        Value::Text(text) => match term.term.field {
            Field::Attr | Field::Attrs => pattern.matches(trimmed(text, pattern)),
            _ => pattern.matches(text),
        },
    };
    term.said(matched)
}

fn trimmed<'a>(text: &'a [u8], pattern: &Pattern) -> &'a [u8] {
    if !pattern.trims() {
        return text;
    }
    let mut text = text.get(..MAX_TRIMMED).unwrap_or(text);
    while let [rest @ .., b' ' | b'\t' | b'\n' | b'\r'] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests;
