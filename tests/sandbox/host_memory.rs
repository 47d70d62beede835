//! Guests that make the host allocate memory on their behalf.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::fixture::{Fixture, Guest, Outcome, session};

const GRANTS: &str = "udev: {subsystems: [\"*\"]}\nnetwork: {interfaces: [lo]}\n";

#[test]
fn host_memory_for_a_guest_counts_as_the_guests_memory() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    let refused = Outcome {
        reason: "\"ok\"",
        words: "timer",
    };
    let memory = Outcome {
        reason: "memory",
        words: "64 MiB",
    };
    for (action, named) in [
        ("keep-methods", refused),
        ("keep-authorities", refused),
        ("keep-paths", refused),
        ("keep-fields", memory),
        ("keep-copies", memory),
        ("keep-bodies", memory),
        ("keep-responses", memory),
        ("keep-emptied", memory),
        ("keep-sent", memory),
    ] {
        fixture.misbehave(&[(action, named)])?;
        let peak = fixture.peak_mib()?;
        ensure!(peak < 350, "{action}: the agent had {peak} MiB");
    }
    // A thousand header maps of 16 KiB, and 24 unfinished bodies.
    for (name, least) in [("fields", 1000 * (16 << 10)), ("posts", 23 * 250 * 4096)] {
        fixture.configure(name, "hostile", &format!("keep-some-{name}"))?;
        fixture.home.until("what is kept is shown", |status| {
            let memory = session(status, name).pointer("/sessions/0/memoryBytes");
            memory.and_then(Value::as_u64) > Some(least)
        })?;
    }
    fixture.check_neighbour()
}
