//! Remedies for a rule that a device nearly matches: a value that differs only in case or by `0x`, a field that does not look at
//! ancestors, terms that hold at different ancestors. Pure: asks only [`DeviceInfo`].

use crate::device_info::{DeviceInfo, value};
use crate::pattern::{Match, Pattern};
use crate::rule::{CompiledTerm, Field, Rule, Term};
use crate::verdict::hold;

/// Maximum number of values in a hint.
const MAX_VALUES: usize = 6;

/// A device and the ancestors that the handler may see, nearest first.
#[derive(Clone, Copy)]
pub(super) struct Chain<'a> {
    /// Information about the device.
    pub(super) own: &'a dyn DeviceInfo,
    /// Information about the device's ancestors.
    pub(super) ancestors: &'a [&'a dyn DeviceInfo],
}

impl<'a> Chain<'a> {
    fn devices(self) -> impl Iterator<Item = &'a dyn DeviceInfo> {
        std::iter::once(self.own).chain(self.ancestors.iter().copied())
    }
}

/// Returns a remark for the operator about the term at `failed`, which does not hold for the device.
pub(super) fn hint(rule: &Rule, failed: usize, chain: Chain<'_>) -> Option<String> {
    let compiled = rule.compiled().get(failed)?;
    let remedy = || remedy(compiled, chain);
    if compiled.term.negated || !compiled.term.field.is_plural() {
        return remedy();
    }
    scattered(rule, compiled, chain)
        .or_else(remedy)
        .or_else(|| values(&compiled.term, chain))
}

/// Returns a change to a term with which it would hold for the device, if there is one; `None` for a term on ancestors that already holds
/// at one of them.
pub(super) fn remedy(compiled: &CompiledTerm, chain: Chain<'_>) -> Option<String> {
    let term = &compiled.term;
    if term.negated {
        return None;
    }
    if term.field.is_plural() {
        if chain.devices().any(|device| holds(compiled, device)) {
            return None;
        }
        return chain.devices().find_map(|device| spelling(term, device));
    }
    spelling(term, chain.own).or_else(|| above(term, chain))
}

/// Returns a remark with the values at the device and its ancestors, if there are several.
fn values(term: &Term, chain: Chain<'_>) -> Option<String> {
    let shown = |device| Some(at(&value(term, device).shown()?, device));
    let values: Vec<String> = chain.devices().filter_map(shown).take(MAX_VALUES).collect();
    (values.len() > 1).then(|| format!("its values are {}", values.join(", ")))
}

fn at(value: &str, device: &dyn DeviceInfo) -> String {
    format!("{value:?} at {}", device.kernel())
}

/// Returns the places at which the terms on ancestors hold, if each holds at some device but not all at the same one.
fn scattered(rule: &Rule, failed: &CompiledTerm, chain: Chain<'_>) -> Option<String> {
    let place = |compiled: &CompiledTerm| {
        let found = chain.devices().find(|device| holds(compiled, *device))?;
        Some(format!("{} holds at {}", compiled.term, found.kernel()))
    };
    let own = place(failed)?;
    let others = rule.compiled().iter().filter(|other| {
        other.term.field.is_plural() && !other.term.negated && other.term != failed.term
    });
    let mut places: Vec<String> = others.map(place).collect::<Option<_>>()?;
    places.push(own);
    Some(format!(
        "all terms on ancestors must hold at one device: {}",
        places.join(", ")
    ))
}

fn holds(compiled: &CompiledTerm, device: &dyn DeviceInfo) -> bool {
    hold(compiled, &value(&compiled.term, device)) != Match::No
}

/// Returns the term on ancestors that holds in place of a term on the device itself.
fn above(term: &Term, chain: Chain<'_>) -> Option<String> {
    let field = match term.field {
        Field::Attr => Field::Attrs,
        Field::Driver => Field::Drivers,
        Field::Kernel => Field::Kernels,
        Field::Subsystem => Field::Subsystems,
        Field::Tag => Field::Tags,
        _ => return None,
    };
    let wider = Term {
        field,
        ..term.clone()
    };
    let rule = Rule::new(vec![wider]).ok()?;
    let compiled = rule.compiled().first()?;
    let mut ancestors = chain.ancestors.iter();
    let found = ancestors.find(|device| holds(compiled, **device))?;
    Some(format!("{} holds at {}", compiled.term, found.kernel()))
}

/// Describes a value that the pattern would match except for case or `0x`.
fn spelling(term: &Term, device: &dyn DeviceInfo) -> Option<String> {
    let actual = value(term, device).shown()?;
    let actual = actual.trim_end();
    let matches =
        |pattern: &str, text: &str| Pattern::glob(pattern).matches(text.as_bytes()) != Match::No;
    if matches(&term.value, actual) {
        // The reason is not the spelling, but white space or a second tag.
        return None;
    }
    let pattern = term.value.to_ascii_lowercase();
    let is_hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    let lower = actual.to_ascii_lowercase();
    let remedy = if matches(&pattern, &lower) {
        "which differs only in case"
    } else if pattern
        .strip_prefix("0x")
        .is_some_and(|digits| is_hex(digits) && matches(digits, &lower))
    {
        "which has no 0x"
    } else if lower
        .strip_prefix("0x")
        .is_some_and(|digits| is_hex(digits) && matches(&pattern, digits))
    {
        "which begins with 0x"
    } else {
        return None;
    };
    Some(format!("the value is {}, {remedy}", at(actual, device)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_info::tests::Written;
    use crate::rule::InvalidRule;
    use crate::verdict::{Verdict, judge};

    /// A serial adapter behind a hub.
    fn mk_adapter() -> [Written; 4] {
        let usb = |devpath, vendor, driver| Written {
            devpath,
            subsystem: Some("usb"),
            driver: Some(driver),
            attributes: vec![("idVendor", vendor)],
            ..Written::default()
        };
        [
            Written {
                devpath: "/devices/usb1/1-1/1-1.4/1-1.4:1.0/ttyUSB0",
                subsystem: Some("tty"),
                ..Written::default()
            },
            usb("/devices/usb1/1-1/1-1.4", "1a86", "usb"),
            usb("/devices/usb1/1-1", "0A12", "hub"),
            Written {
                devpath: "/devices/pci0000:00/0000:00:14.0",
                subsystem: Some("pci"),
                attributes: vec![("vendor", "0x8086")],
                ..Written::default()
            },
        ]
    }

    type Terms<'a> = &'a [(Field, &'a str, &'a str)];

    #[test]
    fn a_near_miss_names_its_remedy() -> Result<(), InvalidRule> {
        use Field::{Attr, Attrs, Driver, Drivers, Kernel, Subsystem};
        let table: [(Terms<'_>, Option<&str>); 11] = [
            (
                &[(Subsystem, "", "tty"), (Attrs, "idVendor", "0403")],
                Some(r#"its values are "1a86" at 1-1.4, "0A12" at 1-1"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Attrs, "idVendor", "0a12")],
                Some(r#"the value is "0A12" at 1-1, which differs only in case"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Attrs, "idVendor", "0x1a86")],
                Some(r#"the value is "1a86" at 1-1.4, which has no 0x"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Attrs, "vendor", "8086")],
                Some(r#"the value is "0x8086" at 0000:00:14.0, which begins with 0x"#),
            ),
            (
                &[(Drivers, "", "hub"), (Attrs, "idVendor", "1a86")],
                Some(
                    r#"all terms on ancestors must hold at one device: DRIVERS=="hub" holds at 1-1, ATTRS{idVendor}=="1a86" holds at 1-1.4"#,
                ),
            ),
            (
                &[
                    (Subsystem, "", "tty"),
                    (Drivers, "", "hub"),
                    (Attrs, "idVendor", "1a86"),
                    (Attrs, "serial", "7"),
                ],
                Some(r#"its values are "usb" at 1-1.4, "hub" at 1-1"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Attr, "idVendor", "1a86")],
                Some(r#"ATTRS{idVendor}=="1a86" holds at 1-1.4"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Driver, "", "hub")],
                Some(r#"DRIVERS=="hub" holds at 1-1"#),
            ),
            (
                &[(Subsystem, "", "tty"), (Kernel, "", "TTYusb*")],
                Some(r#"the value is "ttyUSB0" at ttyUSB0, which differs only in case"#),
            ),
            (&[(Subsystem, "", "tty"), (Attr, "idVendor", "0403")], None),
            (&[(Subsystem, "", "tty"), (Attrs, "serial", "7")], None),
        ];
        for (terms, expected) in table {
            let terms = terms.iter().map(|(field, key, value)| Term {
                field: *field,
                key: field.has_key().then(|| (*key).to_owned()),
                negated: false,
                value: (*value).to_owned(),
            });
            let rule = Rule::new(terms.collect())?;
            let [own, ancestors @ ..] = mk_adapter();
            let ancestors: Vec<&dyn DeviceInfo> = ancestors
                .iter()
                .map(|written| written as &dyn DeviceInfo)
                .collect();
            let chain = Chain {
                own: &own,
                ancestors: &ancestors,
            };
            let Verdict::Misses(miss) = judge(&rule, &own, &ancestors) else {
                panic!("{rule} does not nearly hold");
            };
            let told = hint(&rule, miss.failed, chain);
            // Of the terms on ancestors either may be the one that failed.
            let told = told.map(|text| {
                text.replace(
                    r#"ATTRS{idVendor}=="1a86" holds at 1-1.4, DRIVERS=="hub" holds at 1-1"#,
                    r#"DRIVERS=="hub" holds at 1-1, ATTRS{idVendor}=="1a86" holds at 1-1.4"#,
                )
            });
            assert_eq!(told.as_deref(), expected, "{rule}");
        }
        Ok(())
    }
}
