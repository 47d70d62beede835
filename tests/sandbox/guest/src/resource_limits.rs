//! Endless computing and waiting, unbounded memory, and exits.

use std::hint::black_box;

use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::io::poll::poll;

use crate::bindings::leafhost::net::interfaces::granted;
use crate::bindings::leafhost::udev::devices::find;

/// An hour in nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

/// Runs the action; returns false if it is not known.
#[allow(clippy::panic, reason = "the action itself")]
pub fn run(action: &str) -> bool {
    match action {
        "loop" => loop {
            black_box(());
        },
        "udev" => loop {
            black_box(find(&[Vec::new()]).is_ok());
        },
        "interfaces" => loop {
            black_box(granted());
        },
        "sleep" => subscribe_duration(HOUR).block(),
        "poll" => wait_for(2000),
        "poll-all" => wait_for(4096),
        "nap" => loop {
            subscribe_duration(1).block();
        },
        "handles" => loop {
            std::mem::forget(subscribe_duration(HOUR));
        },
        "memory" => grow(),
        "deep" => {
            black_box(deeper(1));
        }
        "panic" => panic!("the guest has had enough"),
        "exit" => std::process::exit(1),
        "exit-well" => std::process::exit(0),
        _ => return false,
    }
    true
}

/// Waits for this many clocks at once.
fn wait_for(clocks: usize) {
    let sleeps: Vec<_> = (0..clocks).map(|_| subscribe_duration(HOUR)).collect();
    black_box(poll(&sleeps.iter().collect::<Vec<_>>()));
}

/// Allocates until there is no more memory.
fn grow() {
    let mut all = Vec::new();
    loop {
        all.push(vec![1_u8; 1 << 20]);
        black_box(&all);
    }
}

/// Recurses until the stack overflows.
fn deeper(n: u64) -> u64 {
    let here = black_box([n; 8]);
    if black_box(n) == 0 {
        return 0;
    }
    deeper(n + 1) + here.iter().sum::<u64>()
}
