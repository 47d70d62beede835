//! Calls that find no change: files written and memory growth.

use anyhow::{Context, Result};

use crate::busy_agent::BusyAgent;
use crate::memory::growth;
use crate::process::{Memory, mb};
use crate::table::Line;
use crate::watch::{Watch, What, folders};

/// Number of calls before the measurement, so that everything has been used once.
const FIRST: u32 = 5_000;
const CALLS: u32 = 5_000;
const PORT: u16 = 9482;
/// Name of the agent's metric of writes.
const WRITES: &str = "leafhost_store_writes_total";

pub fn measure() -> Result<Vec<Line>> {
    let mut agent = BusyAgent::new(PORT)?;
    agent.configure()?;
    agent.call(FIRST, false)?;
    let home = agent.home();
    let mut watched = folders(&home.path().join("state"))?;
    watched.extend(folders(home.cdi())?);
    let watch = Watch::new(&watched)?;
    let counted = agent.metric(WRITES)?;
    let before = agent.memory()?;
    agent.call(FIRST + CALLS / 2, false)?;
    let halfway = agent.memory()?;
    agent.call(FIRST + CALLS, false)?;
    let after = agent.memory()?;
    let counted = agent.metric(WRITES)? - counted;
    let written: Vec<What> = watch
        .all()
        .into_iter()
        .map(|observation| observation.what)
        .filter(|what| !matches!(what, What::Device(_)))
        .collect();
    // Checks that the watch works.
    let probe = agent.home().path().join("state/probe");
    std::fs::write(&probe, "")?;
    watch
        .next("a file that is written", |what| {
            *what == What::Touched(probe.clone())
        })
        .context("the folders are not watched")?;
    let grown = |from: Memory| i64::from(after.anonymous) - i64::from(from.anonymous);
    Ok(vec![Line {
        what: format!(
            "{CALLS} calls in which nothing changed: files written / Instances written / memory grown / in the second half"
        ),
        value: format!(
            "{} / {counted} / {:+} KiB ({:+.1} %) / {:+} KiB",
            written.len(),
            grown(before),
            growth(before.anonymous, after.anonymous),
            grown(halfway)
        ),
        target: "0 / 0 / none / none".into(),
        reference: format!(
            "{} folders watched; {} of its own before, {} after{}",
            watched.len(),
            mb(before.anonymous),
            mb(after.anonymous),
            written
                .first()
                .map(|what| format!("; {what:?}"))
                .unwrap_or_default()
        ),
    }])
}
