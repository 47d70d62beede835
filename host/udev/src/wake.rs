//! Decides from an event alone if it may have changed the result of a rule.
//!
//! An event wakes too often rather than too seldom: a superfluous call costs some milliseconds, a missing one a device. So a term that the
//! event does not answer is assumed to hold: attributes, drivers, tags and information about ancestors except their names; properties that the
//! event itself may have changed, or that udevd has yet to add; regular expressions, which take long to compare.

use crate::event::Event;
use crate::pattern::Match;
use crate::rule::{CompiledTerm, Field, Rule};
use crate::subsystems::Subsystems;
use crate::tree;

impl Rule {
    /// Returns true if the event may have changed the result of the rule. Calls `in_time` before each term: once it returns false, the
    /// remaining terms are assumed to hold.
    pub fn wakes_on(
        &self,
        event: &Event,
        allowed: &Subsystems,
        in_time: &dyn Fn() -> bool,
    ) -> bool {
        if event.is_lost() {
            return true;
        }
        if !allowed.allows(event.subsystem.as_deref()) {
            return false;
        }
        let all_may_hold = |terms: &[&CompiledTerm], device: Device<'_>| {
            let mut terms = terms.iter();
            terms.all(|term| !in_time() || may_hold(term, event, device))
        };
        let terms = self.compiled().iter();
        let (plural, own): (Vec<_>, Vec<_>) = terms.partition(|term| term.term.field.is_plural());
        // As in udev, all terms on ancestors must hold at the same device: the device itself or one ancestor.
        all_may_hold(&own, Device::Own)
            && (all_may_hold(&plural, Device::Own)
                || tree::above(&event.devpath)
                    .any(|path| all_may_hold(&plural, Device::Above(path))))
    }
}

/// Device that a term is compared with.
#[derive(Debug, Clone, Copy)]
enum Device<'a> {
    /// Device of the event.
    Own,
    /// Ancestor at this path.
    Above(&'a str),
}

/// Returns true if the term may hold for the device, as far as the event shows.
fn may_hold(term: &CompiledTerm, event: &Event, device: Device<'_>) -> bool {
    let text = match (term.term.field, device) {
        // A new name also changes the paths of devices below.
        (Field::Devpath | Field::Kernel | Field::Kernels, _) if event.action == "move" => None,
        (Field::Kernel | Field::Kernels, Device::Own) => Some(event.kernel()),
        (Field::Kernels, Device::Above(path)) => Some(tree::kernel_of(path).into_owned()),
        (Field::Subsystem | Field::Subsystems, Device::Own) => {
            Some(event.subsystem.clone().unwrap_or_default())
        }
        (Field::Devpath, _) => Some(event.devpath.clone()),
        (Field::Env, _) => property(term, event),
        _ => None,
    };
    text.is_none_or(|text| {
        term.pattern.is_regex() || term.said(term.pattern.matches(text.as_bytes())) != Match::No
    })
}

/// Returns the value of a property; `None` if the event cannot know it.
fn property(term: &CompiledTerm, event: &Event) -> Option<String> {
    if !matches!(event.action.as_str(), "add" | "remove") {
        return None;
    }
    let key = term.term.key.as_deref().unwrap_or_default();
    match event.properties.get(key) {
        Some(value) => Some(value.clone()),
        None if event.settle.is_some() => None,
        None => Some(String::new()),
    }
}

#[cfg(test)]
mod tests;
