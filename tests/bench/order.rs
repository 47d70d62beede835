//! The order in which an agent in use reaches its functions, for a program that is laid out by it (`make tuned`).

use anyhow::{Context, Result};
use leafhost_tests::program::build_folder;

use crate::crowd::Crowd;

const PORT: u16 = 9482;
/// As many as it takes until hardly anything new is reached.
const CALLS: u32 = 1_500;

/// Writes the functions' names beside the program, one a line.
pub fn write() -> Result<()> {
    let mut crowd = Crowd::watched(PORT)?;
    crowd.configure()?;
    crowd.call(CALLS, true)?;
    let reached = crowd.stop()?;
    let path = build_folder()?.join("leafhost.order");
    std::fs::write(&path, reached.join("\n") + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} functions, in {}", reached.len(), path.display());
    Ok(())
}
