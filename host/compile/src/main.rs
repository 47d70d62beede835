//! The compiler child process.
fn main() {}
