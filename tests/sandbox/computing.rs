//! Guests that compute, wait, grow and end as they should not.

use anyhow::Result;

use crate::yard::{Guest, Named, Yard};

const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";

#[test]
fn a_guest_that_computes_for_ever_is_ended_and_delays_nobody() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let named = Named {
        reason: "cpu_budget",
        words: "2 s",
    };
    yard.suffer(&["loop", "log", "udev", "interfaces"].map(|deed| (deed, named)))
}
