//! Evaluates a rule for a device, and finds the term that failed.
//!
//! As in udev, every term on the device itself must hold, and all terms on ancestors must hold at the same device: the device itself or one
//! ancestor. Pure: asks only [`DeviceInfo`], and opens files only if the cheap fields do not decide.

use crate::device_info::{DeviceInfo, Value, value};
use crate::pattern::{Match, Pattern};
use crate::rule::{CompiledTerm, Field, Rule};

/// Length to which udev cuts a text before it trims white space, in bytes.
const MAX_TRIMMED: usize = 511;

/// Result of a rule for a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every term holds; `as_regex` has the indexes of those that hold only as a regular expression.
    Holds { as_regex: Vec<usize> },
    /// Some terms hold, others do not.
    Misses(Miss),
    /// No positive, specific term holds.
    Differs,
}

/// A rule that a device nearly matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Miss {
    /// Number of positive terms that hold.
    pub(crate) held: usize,
    /// Index of the first term that does not hold.
    pub(crate) failed: usize,
    /// Actual value at the failed term; `None` if there is none.
    pub(crate) actual: Option<String>,
    /// Kernel name of the ancestor at which most terms on ancestors hold; `None` for the device itself.
    pub(crate) at: Option<String>,
}

/// Evaluates `rule` for a device. `ancestors` are those that the handler may see, nearest first.
pub(crate) fn judge(rule: &Rule, own: &dyn DeviceInfo, ancestors: &[&dyn DeviceInfo]) -> Verdict {
    let Partial {
        held,
        failed,
        mut as_regex,
    } = evaluate(rule, own, ancestors);
    match failed {
        None => {
            as_regex.sort_unstable();
            Verdict::Holds { as_regex }
        }
        Some(failed) if held > 0 => Verdict::Misses(Miss { held, ..failed }),
        Some(_) => Verdict::Differs,
    }
}

/// Returns the index of the term by which [`judge`] finds that the rule does not hold.
pub(crate) fn failed(
    rule: &Rule,
    own: &dyn DeviceInfo,
    ancestors: &[&dyn DeviceInfo],
) -> Option<usize> {
    let miss = evaluate(rule, own, ancestors).failed?;
    Some(miss.failed)
}

fn evaluate(rule: &Rule, own: &dyn DeviceInfo, ancestors: &[&dyn DeviceInfo]) -> Partial {
    let mut partial = Partial::default();
    partial.add(rule, false, own);
    let has_plural = rule.terms().any(|term| term.field.is_plural());
    if partial.failed.is_none() && has_plural {
        partial = at_nearest_ancestor(&partial, rule, own, ancestors);
    }
    partial
}

/// Evaluates the terms on ancestors at the device and each ancestor. Returns the result of the first device at which all hold, else that of
/// the nearest one at which the most terms hold.
fn at_nearest_ancestor(
    partial: &Partial,
    rule: &Rule,
    own: &dyn DeviceInfo,
    ancestors: &[&dyn DeviceInfo],
) -> Partial {
    let mut best: Option<Partial> = None;
    let ancestors = ancestors.iter().map(|device| (*device, true));
    for (device, is_above) in std::iter::once((own, false)).chain(ancestors) {
        let mut here = partial.clone();
        here.add(rule, true, device);
        let Some(failed) = &mut here.failed else {
            return here;
        };
        failed.at = is_above.then(|| device.kernel().to_owned());
        if best.as_ref().is_none_or(|best| here.held > best.held) {
            best = Some(here);
        }
    }
    best.unwrap_or_default()
}

/// Result after some of the terms.
#[derive(Debug, Clone, Default)]
struct Partial {
    held: usize,
    failed: Option<Miss>,
    as_regex: Vec<usize>,
}

impl Partial {
    /// Evaluates the terms on the device itself, or those on ancestors, against a device, cheap ones first. After one has failed, no file is
    /// opened to count how many hold.
    fn add(&mut self, rule: &Rule, on_ancestors: bool, device: &dyn DeviceInfo) {
        for costs_files in [false, true] {
            let terms = rule.compiled().iter().enumerate().filter(|(_, term)| {
                let field = term.term.field;
                field.is_plural() == on_ancestors && costs_a_file(field) == costs_files
            });
            for (index, term) in terms {
                self.add_term(index, term, device);
            }
            if self.failed.is_some() {
                break;
            }
        }
    }

    fn add_term(&mut self, index: usize, term: &CompiledTerm, device: &dyn DeviceInfo) {
        let found = value(&term.term, device);
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

/// Returns true if the field needs a file of the device or of udev's database.
fn costs_a_file(field: Field) -> bool {
    !matches!(
        field,
        Field::Devpath | Field::Kernel | Field::Kernels | Field::Subsystem | Field::Subsystems
    )
}

/// Evaluates the term for this device alone.
pub(crate) fn hold(term: &CompiledTerm, found: &Value<'_>) -> Match {
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
