//! Whether an event may have changed what a rule finds.
//!
//! An event wakes too often rather than too seldom: a call too many costs some milliseconds, one too few a device. What
//! cannot be known is taken as holding: all but names on a device that is gone; what an event other than `add` may itself
//! have changed; what udevd has yet to say about an event of the kernel's group.

use std::cell::LazyCell;

use crate::event::Event;
use crate::facts::Facts;
use crate::pattern::Match;
use crate::rule::{CompiledTerm, Field, Rule};
use crate::subsystems::Subsystems;
use crate::tree::{self, Node};
use crate::verdict::holds;

impl Rule {
    /// Whether the event may have changed what the rule finds. Looks at sysfs where a term asks for more than the
    /// event says, which blocks as long as that takes. `go_on` is asked before each term: once it says no, the event is taken
    /// as one that may.
    pub fn wakes_on(&self, event: &Event, allowed: &Subsystems, go_on: &dyn Fn() -> bool) -> bool {
        if event.is_lost() {
            return true;
        }
        if !allowed.allows(event.subsystem.as_deref()) {
            return false;
        }
        let chain = LazyCell::new(|| {
            let own = Node::look_up(&event.devpath, allowed)?;
            let above: Vec<Node<'_>> = tree::above(&event.devpath)
                .filter_map(|path| Node::look_up(path, allowed))
                .filter(Node::is_allowed)
                .collect();
            Some((own, above))
        });
        let live = || {
            chain
                .as_ref()
                .map(|(own, above)| -> (&dyn Facts, Vec<&dyn Facts>) {
                    (
                        own,
                        above.iter().map(|node| -> &dyn Facts { node }).collect(),
                    )
                })
        };
        wakes(self, event, &live, go_on)
    }
}

/// The device as it is now and its ancestors that may be seen.
type Live<'a> = (&'a dyn Facts, Vec<&'a dyn Facts>);

fn wakes<'a>(
    rule: &Rule,
    event: &Event,
    live: &dyn Fn() -> Option<Live<'a>>,
    go_on: &dyn Fn() -> bool,
) -> bool {
    // Names first: they are in the event and decide nearly always.
    let mut terms: Vec<&CompiledTerm> = rule.compiled().iter().collect();
    terms.sort_by_key(|term| !is_name(term.term.field));
    let (plural, own): (Vec<_>, Vec<_>) = terms
        .into_iter()
        .partition(|term| term.term.field.is_plural());
    let all_may_hold = |terms: &[&CompiledTerm], at: &At<'_, '_>| {
        terms
            .iter()
            .all(|term| !go_on() || may_hold(term, event, at))
    };
    let own_device = At::Own(live);
    all_may_hold(&own, &own_device)
        && (plural.is_empty()
            || all_may_hold(&plural, &own_device)
            || ancestors(event, live)
                .iter()
                .any(|above| all_may_hold(&plural, above)))
}

/// Where a term is looked at.
enum At<'l, 'a> {
    /// The device of the event, which may have gone.
    Own(&'l dyn Fn() -> Option<Live<'a>>),
    /// A device above it.
    Above(&'a dyn Facts),
    /// The path of one above it that has gone.
    Gone(&'l str),
}

fn ancestors<'l, 'a>(event: &'l Event, live: &'l dyn Fn() -> Option<Live<'a>>) -> Vec<At<'l, 'a>> {
    match live() {
        Some((_, above)) => above.into_iter().map(At::Above).collect(),
        None => tree::above(&event.devpath).map(At::Gone).collect(),
    }
}

fn is_name(field: Field) -> bool {
    matches!(
        field,
        Field::Kernel | Field::Kernels | Field::Devpath | Field::Subsystem | Field::Subsystems
    )
}

fn may_hold(term: &CompiledTerm, event: &Event, at: &At<'_, '_>) -> bool {
    let field = term.term.field;
    let text = match (field, at) {
        // A new name moves what is below along.
        (Field::Devpath | Field::Kernel | Field::Kernels, _) if event.action == "move" => {
            return true;
        }
        (Field::Kernel | Field::Kernels, At::Own(_)) => event.kernel(),
        (Field::Subsystem | Field::Subsystems, At::Own(_)) => {
            event.subsystem.clone().unwrap_or_default()
        }
        (Field::Devpath, _) => event.devpath.clone(),
        (Field::Kernels, At::Gone(path)) => tree::kernel_of(path).into_owned(),
        // Names of a chain do not change while it is there.
        (Field::Kernels | Field::Subsystems, At::Above(facts)) => {
            return holds(term, *facts) != Match::No;
        }
        (Field::Env, _) => match property(term, event) {
            Some(value) if matches!(event.action.as_str(), "add" | "remove") => value,
            _ => return true,
        },
        (Field::Tag | Field::Tags, _) if event.settle.is_some() => return true,
        (_, At::Own(live)) if event.action == "add" => {
            return live().is_none_or(|(own, _)| holds(term, own) != Match::No);
        }
        (_, At::Above(facts)) if event.action == "add" => return holds(term, *facts) != Match::No,
        _ => return true,
    };
    term.said(term.pattern.matches(text.as_bytes())) != Match::No
}

/// What the event says of a property; None if it cannot know.
fn property(term: &CompiledTerm, event: &Event) -> Option<String> {
    let key = term.term.key.as_deref().unwrap_or_default();
    match event.properties.get(key) {
        Some(value) => Some(value.clone()),
        None if event.settle.is_some() => None,
        None => Some(String::new()),
    }
}

#[cfg(test)]
mod tests;
