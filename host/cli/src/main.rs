//! The `leafhost` command.
fn main() {}
