//! Explains which term of a rule a device fails, in the words of the real host.

use super::{UdevDevice, is_plural};
use crate::udev::{Field, Rule, Term};

/// Returns the number of selective terms that hold, and why the rule does not hold; `None` if no such term holds. `chain` is
/// the device and its ancestors.
pub(super) fn reason(rule: &Rule, chain: &[&UdevDevice]) -> Option<(usize, String)> {
    let (plural, own): (Vec<&Term>, Vec<&Term>) =
        rule.iter().partition(|term| is_plural(term.field));
    let device = *chain.first()?;
    let (held, failed) = judge(&own, device);
    if let Some(term) = failed {
        let reason = || format!("{term} does not hold: {}", device.shown(term));
        return (held > 0).then(|| (held, reason()));
    }
    // Take the nearest of the devices at which most terms hold.
    let nearest = chain
        .iter()
        .rev()
        .map(|link| (judge(&plural, link), *link))
        .max_by_key(|((held, _), _)| *held)?;
    let ((above, Some(term)), link) = nearest else {
        return None;
    };
    let here = link.shown(term);
    let told = if std::ptr::eq(link, device) {
        format!("{here}, and no device above comes nearer to all terms on ancestors")
    } else {
        let kernel = &link.device.kernel;
        format!("of {kernel}, which comes nearest to all terms on ancestors, {here}")
    };
    let held = held + above;
    (held > 0).then(|| (held, format!("{term} does not hold: {told}")))
}

/// Returns the number of selective terms that hold, and the first term that does not. As on the host, terms that read a file
/// are not evaluated once one of the others has failed.
fn judge<'a>(terms: &[&'a Term], device: &UdevDevice) -> (usize, Option<&'a Term>) {
    let mut held = 0;
    let mut failed = None;
    for costs_a_file in [false, true] {
        for term in terms.iter().filter(|term| costs(term) == costs_a_file) {
            if !device.fits(term) {
                failed = failed.or(Some(*term));
            } else if !term.negated && !term.value.split('|').any(|glob| glob == "*") {
                held += 1;
            }
        }
        if failed.is_some() {
            break;
        }
    }
    (held, failed)
}

fn costs(term: &Term) -> bool {
    use Field::{Devpath, Kernel, Kernels, Subsystem, Subsystems};
    !matches!(
        term.field,
        Devpath | Kernel | Kernels | Subsystem | Subsystems
    )
}

impl UdevDevice {
    /// Describes the value that does not match `term`.
    fn shown(&self, term: &Term) -> String {
        let field = term.field.name().to_lowercase();
        let what = term.key.as_deref().unwrap_or(&field);
        let tags = self.device.tags.join(" ");
        let value = match term.field {
            Field::Tag | Field::Tags => Some(tags.as_str()),
            _ => self.value(term),
        };
        match value.filter(|value| !value.is_empty()) {
            Some(value) => format!("{what} is {value:?}"),
            None if matches!(term.field, Field::Attr | Field::Attrs) => {
                format!("{what} is absent or empty, and where it is absent no term holds")
            }
            None => format!("{what} is absent or empty"),
        }
    }
}
