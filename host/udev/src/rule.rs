//! Rules: terms that must all hold, each compiled once.
//!
//! Knows the form of rules and which are valid, but not how devices are looked up.

use std::fmt;

use crate::pattern::{Match, Pattern, looks_like_port};

/// Maximum number of terms per rule.
pub const MAX_TERMS: usize = 32;
/// Maximum length of a pattern, in bytes.
pub const MAX_VALUE: usize = 1 << 10;
/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 256;

/// Field that a term compares. The terms of a rule on plural fields must all hold for the device itself, or all for the same ancestor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Field {
    /// Sysfs attribute of the device.
    Attr,
    /// Sysfs attribute of the device or an ancestor.
    Attrs,
    /// Path below `/sys`.
    Devpath,
    /// Driver bound to the device.
    Driver,
    /// Driver bound to the device or an ancestor.
    Drivers,
    /// Kernel name of the device.
    Kernel,
    /// Kernel name of the device or an ancestor.
    Kernels,
    /// Property in udev's database.
    Env,
    /// Subsystem.
    Subsystem,
    /// Subsystem of the device or an ancestor.
    Subsystems,
    /// Tag in udev's database.
    Tag,
    /// Tag of the device or an ancestor.
    Tags,
}

impl Field {
    /// Returns true if a term on this field names a key.
    pub fn has_key(self) -> bool {
        matches!(self, Self::Attr | Self::Attrs | Self::Env)
    }

    /// Returns true if Akri compared an `==` term on this field as a regular expression.
    fn was_regex(self) -> bool {
        self == Self::Driver || self.is_plural()
    }

    /// Returns true if the field also looks at ancestors.
    pub fn is_plural(self) -> bool {
        matches!(
            self,
            Self::Attrs | Self::Drivers | Self::Kernels | Self::Subsystems | Self::Tags
        )
    }
}

/// One comparison. An absent driver, subsystem or property is an empty text; no term matches an absent attribute, negated or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Term {
    /// Field to compare.
    pub field: Field,
    /// Name of the attribute or property, if the field needs one.
    pub key: Option<String>,
    /// True for `!=`, which compares globs only.
    pub negated: bool,
    /// Shell glob with `|` between alternatives; or, see [`Term::is_regex`], a regular expression for the whole text.
    pub value: String,
}

impl Term {
    /// Returns true if the value is also read as a regular expression, which may match texts that the glob does not. That applies to `==`
    /// terms on fields that Akri read so, if the value looks like one (`.*`, `+`, `(`, or `\` before a character without meaning in a glob)
    /// and is not the natural glob for ports of a bus. [`crate::find()`] reads the value only as a glob if that matches a device.
    pub fn is_regex(&self) -> bool {
        self.pattern().is_regex()
    }

    /// Returns true for a glob that looks like ports of a bus, which Akri read as a regular expression.
    pub(crate) fn is_port(&self) -> bool {
        let key = self.key.as_deref();
        !self.negated && self.field.was_regex() && looks_like_port(&self.value, key)
    }

    fn pattern(&self) -> Pattern {
        if self.negated || !self.field.was_regex() || self.is_port() {
            Pattern::glob(&self.value)
        } else {
            Pattern::glob_or_regex(&self.value)
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.field)?;
        if let Some(key) = &self.key {
            write!(f, "{{{key}}}")?;
        }
        let operator = if self.negated { "!=" } else { "==" };
        write!(f, "{operator}\"{}\"", self.value.replace('"', "\\\""))
    }
}

/// Reason why terms are not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

/// Terms that must all hold for one device.
#[derive(Debug, Clone)]
pub struct Rule {
    terms: Vec<CompiledTerm>,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledTerm {
    pub(crate) term: Term,
    pub(crate) pattern: Pattern,
}

impl CompiledTerm {
    /// Returns the result of the term; `matched` is the result of its pattern.
    pub(crate) fn said(&self, matched: Match) -> Match {
        match (matched, self.term.negated) {
            (Match::No, true) => Match::Glob,
            (_, true) => Match::No,
            (matched, false) => matched,
        }
    }
}

impl Rule {
    /// Checks the terms and compiles their patterns.
    pub fn new(terms: Vec<Term>) -> Result<Self, InvalidRule> {
        if terms.is_empty() {
            return Err(InvalidRule("a rule needs at least one term".to_owned()));
        }
        if terms.len() > MAX_TERMS {
            return Err(InvalidRule(format!(
                "a rule has {} terms, at most {MAX_TERMS} are allowed",
                terms.len()
            )));
        }
        let terms = terms.into_iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Returns the terms as given.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.terms.iter().map(|compiled| &compiled.term)
    }

    /// Restricts a term to a glob.
    pub(crate) fn read_as_glob(&mut self, term: usize) {
        if let Some(compiled) = self.terms.get_mut(term) {
            compiled.pattern.read_as_glob();
        }
    }

    pub(crate) fn compiled(&self) -> &[CompiledTerm] {
        &self.terms
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.terms().map(ToString::to_string).collect();
        f.write_str(&terms.join(", "))
    }
}

fn compile(term: Term) -> Result<CompiledTerm, InvalidRule> {
    let field = term.field;
    let invalid = |why: String| Err(InvalidRule(why));
    if term.value.len() > MAX_VALUE {
        return invalid(format!(
            "the pattern of {field} has {} bytes, at most {MAX_VALUE} are allowed",
            term.value.len()
        ));
    }
    match &term.key {
        None if field.has_key() => {
            return invalid(format!("{field} needs a key, as in {field}{{name}}"));
        }
        Some(key) if !field.has_key() => {
            return invalid(format!("{field} takes no key, but {key:?} is given"));
        }
        Some(key) if key.is_empty() || key.len() > MAX_KEY || key.chars().any(char::is_control) => {
            return invalid(format!(
                "the key of {field} must be 1 to {MAX_KEY} bytes without control characters"
            ));
        }
        _ => {}
    }
    let pattern = term.pattern();
    Ok(CompiledTerm { term, pattern })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_term(field: Field, key: Option<&str>, negated: bool, value: &str) -> Term {
        Term {
            field,
            key: key.map(str::to_owned),
            negated,
            value: value.to_owned(),
        }
    }

    #[test]
    fn a_rule_is_displayed_as_in_a_rules_file() -> Result<(), InvalidRule> {
        let rule = Rule::new(vec![
            mk_term(Field::Kernel, None, false, "video*"),
            mk_term(Field::Env, Some("ID_X"), true, "y \"z\""),
        ])?;
        assert_eq!(
            rule.to_string(),
            r#"KERNEL=="video*", ENV{ID_X}!="y \"z\"""#
        );
        Ok(())
    }

    #[test]
    fn a_rule_beyond_a_limit_is_refused() {
        let kernel = mk_term(Field::Kernel, None, false, "a");
        let table = [
            (vec![], "at least one term"),
            (vec![kernel; MAX_TERMS + 1], "33 terms"),
            (
                vec![mk_term(Field::Tag, None, false, &"x".repeat(MAX_VALUE + 1))],
                "of TAG has 1025 bytes",
            ),
            (
                vec![mk_term(Field::Attrs, None, false, "")],
                "ATTRS needs a key, as in ATTRS{name}",
            ),
            (vec![mk_term(Field::Env, Some(""), false, "")], "key of ENV"),
            (
                vec![mk_term(Field::Attr, Some("a\0b"), false, "")],
                "key of ATTR",
            ),
            (
                vec![mk_term(Field::Driver, Some("x"), false, "")],
                "DRIVER takes no key",
            ),
        ];
        for (terms, words) in table {
            let message =
                Rule::new(terms).map_or_else(|error| error.to_string(), |_| String::new());
            assert!(
                message.contains(words),
                "{message:?} does not say {words:?}"
            );
        }
    }
}
