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
    let mut so_far = SoFar::default();
    so_far.add(rule, false, chain.own);
    if so_far.failed.is_none()
        && rule
            .compiled()
            .iter()
            .any(|term| term.term.field.is_plural())
    {
        so_far = at_one_of_them(&so_far, rule, chain);
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

/// What comes of all terms if those on ancestors are held against the device and its ancestors one by one: the first at
/// which all hold; else the nearest of those at which most do.
fn at_one_of_them(so_far: &SoFar, rule: &Rule, chain: &Chain<'_>) -> SoFar {
    let mut best: Option<SoFar> = None;
    let ancestors = chain.ancestors.iter().map(|facts| (*facts, true));
    for (facts, is_above) in std::iter::once((chain.own, false)).chain(ancestors) {
        let mut here = so_far.clone();
        here.add(rule, true, facts);
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
    /// Holds the terms on the device itself, or those on ancestors, against a device; the cheap ones first. Once one of
    /// them has failed, files are not opened to count how near it was.
    fn add(&mut self, rule: &Rule, on_ancestors: bool, facts: &dyn Facts) {
        for costs_files in [false, true] {
            let terms = rule.compiled().iter().enumerate().filter(|(_, term)| {
                let field = term.term.field;
                field.is_plural() == on_ancestors && costs_a_file(field) == costs_files
            });
            for (index, term) in terms {
                self.add_term(index, term, facts);
            }
            if self.failed.is_some() {
                break;
            }
        }
    }

    fn add_term(&mut self, index: usize, term: &CompiledTerm, facts: &dyn Facts) {
        let found = value(&term.term, facts);
        match hold(term, &found) {
            Match::No => {
                if self.failed.is_none() {
                    self.failed = Some(Miss {
                        held: 0,
                        failed: index,
                        actual: found.shown(),
                        at: None,
                    });
                }
                return;
            }
            Match::Glob => {}
            Match::Regex => self.as_regex.push(index),
        }
        if !term.term.negated && !term.pattern.is_any() {
            self.held += 1;
        }
    }
}

/// Whether looking at a field opens a file: of the device, or of udev's database. Else the path and its link tell.
fn costs_a_file(field: Field) -> bool {
    !matches!(
        field,
        Field::Devpath | Field::Kernel | Field::Kernels | Field::Subsystem | Field::Subsystems
    )
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
