//! Decides from an event alone if it may have changed the result of a rule.
//!
//! Errs on the side of waking: a superfluous call costs some milliseconds, a missing one a device. So a term that the event alone cannot
//! decide is assumed to hold: attributes, drivers, tags and information about ancestors except their names; properties that the event itself
//! may have changed, or that udevd has yet to add; regular expressions, which take long to compare.

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
        let all_may_hold = |terms: &[&CompiledTerm], above: Option<&str>| {
            let mut terms = terms.iter();
            terms.all(|term| !in_time() || may_hold(term, event, above))
        };
        let terms = self.compiled().iter();
        let (plural, own): (Vec<_>, Vec<_>) = terms.partition(|term| term.term.field.is_plural());
        // As in udev, all terms on ancestors must hold at the same device: the device itself or one ancestor.
        all_may_hold(&own, None)
            && (all_may_hold(&plural, None)
                || tree::above(&event.devpath).any(|path| all_may_hold(&plural, Some(path))))
    }
}

/// Returns true if the term may hold for the ancestor at the path `above`, or else for the device of the event, as far as the event shows.
fn may_hold(term: &CompiledTerm, event: &Event, above: Option<&str>) -> bool {
    let kernel = |devpath: &str| Some(tree::kernel_of(devpath).into_owned());
    let text = match (term.term.field, above) {
        // A new name also changes the paths of devices below.
        (Field::Devpath | Field::Kernel | Field::Kernels, _) if event.action == "move" => None,
        (Field::Kernel | Field::Kernels, None) => kernel(&event.devpath),
        (Field::Kernels, Some(path)) => kernel(path),
        (Field::Subsystem | Field::Subsystems, None) => {
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
