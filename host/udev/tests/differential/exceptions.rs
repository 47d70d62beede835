//! Known differences between udev and this crate, each with the reason.

use leafhost_udev::{Field, Rule, Term};

use crate::sample::Sample;

/// Returns the reason why udev and this crate may differ about a rule and a device; `chain` is the device and its ancestors.
pub fn why(rule: &Rule, chain: &[&Sample]) -> Option<&'static str> {
    rule.terms().find_map(|term| {
        ODDITIES
            .iter()
            .find_map(|(why, is_it)| is_it(term, chain).then_some(*why))
    })
}

type Oddity = (&'static str, fn(&Term, &[&Sample]) -> bool);

const ODDITIES: [Oddity; 3] = [
    // udev turns `=="?*"` into `!=""` before it knows that there are several tags: none of them is empty, so it holds for every device,
    // tagged or not.
    ("TAG==\"?*\"", |term, _| is_tag(term) && term.value == "?*"),
    // While it handles an event, udev compares `TAG` with the tags of earlier events, too. Here they count only if no other is left: a udevd
    // older than 247 reported them no other way.
    ("tags of earlier events", |term, chain| {
        is_tag(term) && chain.iter().any(|sample| sample.had_tags)
    }),
    // Not udev's: see `Term::is_regex`. `find` leaves a note each time.
    ("Akri's regular expressions", |term, _| term.is_regex()),
];

fn is_tag(term: &Term) -> bool {
    matches!(term.field, Field::Tag | Field::Tags)
}
