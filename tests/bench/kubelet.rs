//! Benchmarks of the kubelet's device plugins, printed as a table of values, targets and references.
//!
//! Run by `make bench`. Without root or the cluster's programs, the measures with a real kubelet are skipped.
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
