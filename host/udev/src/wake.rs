//! Whether an event may have changed what a rule finds.
//!
//! An event wakes too often rather than too seldom: a call too many costs some milliseconds, one too few a device. What
//! cannot be known is taken as holding: all but names on a device that is gone; what an event other than `add` may itself
//! have changed; what udevd has yet to say about an event of the kernel's group.

use std::cell::LazyCell;

use crate::event::Event;
use crate::facts::{Facts, values};
use crate::pattern::Match;
use crate::rule::{CompiledTerm, Field, Rule};
use crate::subsystems::Subsystems;
use crate::tree::{self, Node};
use crate::verdict::best_match;

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
    let (names, others): (Vec<_>, Vec<_>) = rule
        .compiled()
        .iter()
        .partition(|term| is_name(term.term.field));
    names
        .iter()
        .all(|term| !go_on() || name_may_hold(term, event))
        && others
            .iter()
            .all(|term| !go_on() || may_hold(term, event, live))
}

fn is_name(field: Field) -> bool {
    matches!(field, Field::Kernel | Field::Devpath | Field::Subsystem)
}

fn name_may_hold(term: &CompiledTerm, event: &Event) -> bool {
    if event.action == "move" && term.term.field != Field::Subsystem {
        return true;
    }
    let value = match term.term.field {
        Field::Kernel => event.kernel(),
        Field::Devpath => event.devpath.clone(),
        _ => event.subsystem.clone().unwrap_or_default(),
    };
    (term.pattern.matches(&value) != Match::No) != term.term.negated
}

fn may_hold<'a>(term: &CompiledTerm, event: &Event, live: &dyn Fn() -> Option<Live<'a>>) -> bool {
    let matches = match (term.term.field, event.action.as_str()) {
        (Field::Env, action) => match property(term, event) {
            Some(value) if matches!(action, "add" | "remove") => {
                term.pattern.matches(&value) != Match::No
            }
            _ => return true,
        },
        (Field::Kernels | Field::Subsystems, action) if action != "move" => {
            return names_above_may_hold(term, event, live);
        }
        (Field::Tag | Field::Tags, _) if event.settle.is_some() => return true,
        (_, "add") => {
            let Some((own, above)) = live() else {
                return true;
            };
            let plural = term.term.field.is_plural();
            let above = if plural { above } else { Vec::new() };
            std::iter::once(own)
                .chain(above)
                .any(|facts| best_match(term, &values(&term.term, facts)) != Match::No)
        }
        _ => return true,
    };
    matches != term.term.negated
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

/// Names of a chain do not change while it is there; of one that is gone the paths are left.
fn names_above_may_hold<'a>(
    term: &CompiledTerm,
    event: &Event,
    live: &dyn Fn() -> Option<Live<'a>>,
) -> bool {
    let own = if term.term.field == Field::Kernels {
        event.kernel()
    } else {
        event.subsystem.clone().unwrap_or_default()
    };
    let own = term.pattern.matches(&own) != Match::No;
    let above = match live() {
        Some((_, above)) => Some(
            above
                .into_iter()
                .any(|facts| best_match(term, &values(&term.term, facts)) != Match::No),
        ),
        None if term.term.field == Field::Kernels && !term.term.negated => Some(
            tree::above(&event.devpath)
                .any(|path| term.pattern.matches(&tree::kernel_of(path)) != Match::No),
        ),
        None => None,
    };
    match (own, above, term.term.negated) {
        (true, _, negated) => !negated,
        (false, Some(above), negated) => above != negated,
        (false, None, _) => true,
    }
}

#[cfg(test)]
mod tests;
