//! Tests that the compiler child gives way to everything else on the machine.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn everything_else_goes_before_the_compiler() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_leafhost-compile"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    // The child waits for the component, and has given up everything by then.
    let begun = Instant::now();
    while !read("status").contains("Seccomp:\t2") {
        assert!(begun.elapsed() < Duration::from_mins(1), "it never begins");
        std::thread::yield_now();
    }
    let stat = read("stat");
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // The fields from the third on, as in proc(5): nice is the 19th, the policy the 41st, of which 3 is SCHED_BATCH.
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let adjusted = read("oom_score_adj");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((fields[16], fields[38]), ("19", "3"), "{stat}");
    assert_eq!(adjusted.trim(), "1000");
}
