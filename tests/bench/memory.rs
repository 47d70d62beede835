//! The agent's memory with all its handlers in use, after many calls.
//!
//! `CALLS` sets the number. A tenth of them comes first, so that everything has been used once. The program is read
//! from disk as after a boot, because how much of it the kernel maps depends on how its pages came into memory.

use anyhow::Result;
use leafhost_tests::program::leafhost;

use crate::busy_agent::{BusyAgent, CONFIGURATIONS};
use crate::installed::HANDLERS;
use crate::process::{forget, mb};
use crate::table::Line;

const CALLS: u32 = 10_000;
const PORT: u16 = 9481;

pub fn measure() -> Result<Vec<Line>> {
    let asked = std::env::var("CALLS").ok();
    let calls = asked.map_or(Ok(CALLS), |calls| calls.parse())?;
    forget(&leafhost()?)?;
    let mut agent = BusyAgent::new(PORT)?;
    let loaded = agent.memory()?;
    agent.configure()?;
    agent.call(calls / 10, true)?;
    let before = agent.memory()?;
    agent.call(calls, true)?;
    let after = agent.memory()?;
    Ok(vec![Line {
        what: format!(
            "agent's memory, {} handlers in use, {CONFIGURATIONS} Configurations, after {calls} calls / grown since {}",
            HANDLERS.len(),
            calls / 10
        ),
        value: format!(
            "{} / {:+.1} %",
            mb(after.resident),
            growth(before.resident, after.resident)
        ),
        target: "≤ 32 MB / ± 2 %".into(),
        reference: format!(
            "{} of it its own ({:+.1} %), the rest pages of the program; before the first call {}, {} its own",
            mb(after.anonymous),
            growth(before.anonymous, after.anonymous),
            mb(loaded.resident),
            mb(loaded.anonymous)
        ),
    }])
}

/// Returns the growth in percent.
pub fn growth(before: u32, after: u32) -> f64 {
    (f64::from(after) / f64::from(before.max(1)) - 1.0) * 100.0
}
