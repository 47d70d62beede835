//! Whether a rule holds for a device, and if not, what decided.
//!
//! Pure: asks [`Facts`], and asks for what costs a file only when what is at hand does not decide.

use std::borrow::Cow;

use crate::facts::{Facts, values};
use crate::pattern::{Match, Pattern};
use crate::rule::{CompiledTerm, Field, Rule};

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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Miss {
    /// How many positive terms hold.
    pub(crate) held: usize,
    /// The first term that does not.
    pub(crate) failed: usize,
    /// What the device has in its place; None: nothing.
    pub(crate) actual: Option<String>,
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
    let mut held = 0;
    let mut failed: Option<(usize, Option<String>)> = None;
    let mut as_regex = Vec::new();
    let mut paid = 0;
    for (index, term) in terms {
        let step = cost(term.term.field);
        if step > paid {
            // What is at hand has decided: files are not opened to count how near it was.
            if failed.is_some() {
                break;
            }
            paid = step;
        }
        match answer(term, chain) {
            Ok(matched) => {
                if matched == Match::Regex {
                    as_regex.push(index);
                }
                if !term.term.negated && !term.pattern.is_any() {
                    held += 1;
                }
            }
            Err(actual) => {
                if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                    failed = Some((index, actual));
                }
            }
        }
    }
    match failed {
        None => {
            as_regex.sort_unstable();
            Verdict::Holds { as_regex }
        }
        Some((failed, actual)) if held > 0 => Verdict::Misses(Miss {
            held,
            failed,
            actual,
        }),
        Some(_) => Verdict::Differs,
    }
}

/// What looking at a field costs, in steps: the path and its link; udev's database and a file of the device; files of
/// every ancestor.
fn cost(field: Field) -> u8 {
    match field {
        Field::Devpath | Field::Kernel | Field::Subsystem => 0,
        Field::Driver | Field::Env | Field::Tag | Field::Attr => 1,
        Field::Kernels | Field::Subsystems | Field::Drivers | Field::Tags | Field::Attrs => 2,
    }
}

/// How the term holds; or what the device itself has in its place.
fn answer(term: &CompiledTerm, chain: &Chain<'_>) -> Result<Match, Option<String>> {
    let own = values(&term.term, chain.own);
    let mut best = best_match(term, &own);
    if best != Match::Glob && term.term.field.is_plural() {
        for ancestor in chain.ancestors {
            match best_match(term, &values(&term.term, *ancestor)) {
                Match::Glob => {
                    best = Match::Glob;
                    break;
                }
                Match::Regex => best = Match::Regex,
                Match::No => {}
            }
        }
    }
    match (best, term.term.negated) {
        (Match::No, true) => Ok(Match::Glob),
        (Match::Glob | Match::Regex, false) => Ok(best),
        _ => {
            let text = own.join(" ");
            Err((!text.is_empty()).then_some(text))
        }
    }
}

pub(crate) fn best_match(term: &CompiledTerm, values: &[Cow<'_, str>]) -> Match {
    let mut best = Match::No;
    for value in values {
        match compare(term.term.field, &term.pattern, value) {
            Match::Glob => return Match::Glob,
            Match::Regex => best = Match::Regex,
            Match::No => {}
        }
    }
    best
}

fn compare(field: Field, pattern: &Pattern, value: &str) -> Match {
    if matches!(field, Field::Attr | Field::Attrs) && pattern.trims() {
        pattern.matches(value.trim_end())
    } else {
        pattern.matches(value)
    }
}

#[cfg(test)]
mod tests;
