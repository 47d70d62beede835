//! Decides how to read a value that may be a glob or a regular expression, such as `snd.*`.
//!
//! A value that matches a device of this machine as a glob is read only as a glob: as a regular expression it would match other devices,
//! too.

use crate::device_info::{DeviceInfo, value};
use crate::pattern::Match;
use crate::rule::{CompiledTerm, Rule};
use crate::verdict::hold;

/// Undecided terms, and those that are globs.
#[derive(Debug, Default)]
pub(super) struct Readings {
    open: Vec<(u32, usize, CompiledTerm)>,
    globs: Vec<Glob>,
}

/// A term that is a glob here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Glob {
    /// Index of the rule.
    pub(super) rule: u32,
    /// Index of the term.
    pub(super) term: usize,
    /// Device that the glob matches.
    pub(super) devpath: String,
}

impl Readings {
    /// Collects the terms that may be regular expressions.
    pub(super) fn new(rules: &[Rule]) -> Self {
        let mut readings = Self::default();
        for (index, rule) in (0..).zip(rules) {
            for (number, term) in rule.compiled().iter().enumerate() {
                if let Some(pattern) = term.pattern.globs_in_doubt() {
                    let term = term.term.clone();
                    let glob = CompiledTerm { term, pattern };
                    readings.open.push((index, number, glob));
                }
            }
        }
        readings
    }

    /// Returns true if every term is decided.
    pub(super) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Compares the open terms with a device.
    pub(super) fn look_at(&mut self, device: &dyn DeviceInfo) {
        let globs = &mut self.globs;
        self.open.retain(|(rule, term, glob)| {
            let fits = hold(glob, &value(&glob.term, device)) == Match::Glob;
            if fits {
                globs.push(Glob {
                    rule: *rule,
                    term: *term,
                    devpath: device.devpath().to_owned(),
                });
            }
            !fits
        });
    }

    /// Restricts the decided terms to globs, and returns these terms.
    pub(super) fn settle(self, rules: &mut [Rule]) -> Vec<Glob> {
        for Glob { rule, term, .. } in &self.globs {
            let index = usize::try_from(*rule).ok();
            if let Some(rule) = index.and_then(|index| rules.get_mut(index)) {
                rule.read_as_glob(*term);
            }
        }
        self.globs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_info::tests::Written;
    use crate::rule::{Field, Term};

    const PORT: &str = "/devices/platform/soc/fe980000.usb";

    fn mk_rule(field: Field, key: Option<&str>, negated: bool, value: &str) -> Rule {
        let term = Term {
            field,
            key: key.map(str::to_owned),
            negated,
            value: value.to_owned(),
        };
        Rule::new(vec![term]).unwrap()
    }

    #[test]
    fn what_fits_a_device_as_a_glob_is_no_regular_expression() {
        let device = Written {
            devpath: PORT,
            subsystem: Some("platform"),
            driver: Some("dwc2.x"),
            attributes: vec![("name", "a.b\n"), ("serial", "")],
            ..Written::default()
        };
        for (field, key, value, is_glob) in [
            (Field::Kernels, None, "fe980000.*", true),
            (Field::Kernels, None, "fe980000.*|eth.*", true),
            (Field::Kernels, None, "fe98.*", false),
            // An alternative that is a glob in both readings decides nothing about the other one.
            (Field::Kernels, None, "fe98*|eth.*", false),
            (Field::Kernels, None, r"fe980000\.usb", false),
            (Field::Kernels, None, "(fe980000.*)", false),
            (Field::Drivers, None, "dwc2.*", true),
            (Field::Drivers, None, "dwc.*", false),
            (Field::Attrs, Some("name"), "a.*", true),
            (Field::Attrs, Some("serial"), ".*", false),
            (Field::Attrs, Some("none"), ".*", false),
        ] {
            let mut rules = [mk_rule(field, key, false, value)];
            let mut readings = Readings::new(&rules);
            assert!(!readings.is_done(), "{value}");
            readings.look_at(&device);
            assert_eq!(readings.is_done(), is_glob, "{field} {value}");
            let globs = readings.settle(&mut rules);
            let expected = is_glob.then(|| PORT.to_owned());
            assert_eq!(globs.into_iter().map(|glob| glob.devpath).next(), expected);
            let [rule] = &rules;
            let is_regex = rule.compiled().iter().any(|term| term.pattern.is_regex());
            assert_eq!(is_regex, !is_glob, "{field} {value}");
        }
        for rule in [
            mk_rule(Field::Kernels, None, true, "fe980000.*"),
            mk_rule(Field::Kernels, None, false, "fe98*"),
            mk_rule(Field::Kernel, None, false, "fe98.*"),
        ] {
            assert!(Readings::new(&[rule]).is_done());
        }
    }
}
