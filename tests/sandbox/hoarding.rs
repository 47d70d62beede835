//! Guests that have the host keep what they have no room for themselves.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::yard::{Guest, Named, Yard, session};

const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";

#[test]
fn what_the_host_keeps_for_a_guest_is_bounded_and_part_of_the_guests_memory() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let refused = Named {
        reason: "\"ok\"",
        words: "timer",
    };
    let memory = Named {
        reason: "memory",
        words: "64 MiB",
    };
    for (deed, named) in [
        ("hoard-methods", refused),
        ("hoard-authorities", refused),
        ("hoard-paths", refused),
        ("hoard-fields", memory),
        ("hoard-copies", memory),
        ("hoard-bodies", memory),
        ("hoard-responses", memory),
        ("hoard-emptied", memory),
        ("hoard-sent", memory),
    ] {
        yard.suffer(&[(deed, named)])?;
        let peak = yard.peak_mib()?;
        ensure!(peak < 350, "{deed}: the agent had {peak} MiB");
    }
    // A thousand times 16 KiB, and 24 bodies that do not end.
    for (name, least) in [("fields", 1000 * (16 << 10)), ("posts", 23 * 250 * 4096)] {
        yard.configure(name, "hostile", &format!("hoard-some-{name}"))?;
        yard.home.until("what is kept is shown", |status| {
            let memory = session(status, name).pointer("/sessions/0/memoryBytes");
            memory.and_then(Value::as_u64) > Some(least)
        })?;
    }
    yard.neighbour_is_well()
}
