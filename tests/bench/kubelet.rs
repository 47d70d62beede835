//! What offering devices to a kubelet costs: a table of values, targets and what to compare them with.
//!
//! Run by `make bench`. Without root or the cluster's programs only what needs no real kubelet is measured.
#![allow(missing_docs, reason = "a benchmark")]

mod allocate;
mod disk;
mod register;
mod statistics;
mod table;

use anyhow::Result;

fn main() -> Result<()> {
    let mut lines = allocate::measure()?;
    lines.extend(register::measure()?);
    table::print(&lines);
    Ok(())
}
