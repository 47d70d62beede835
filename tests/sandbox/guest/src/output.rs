//! Endless logging, output, explanations and randomness.

use wasip2::random::random::get_random_bytes;

use crate::bindings::leafhost::explain::explain::skipped;
use crate::bindings::leafhost::log::log::{Level, write};

/// Runs the action; returns false if it is not known.
pub fn run(action: &str) -> bool {
    match action {
        "log" => loop {
            write(Level::Info, "again");
        },
        "log-large" => {
            let text = "large ".repeat(1 << 20);
            loop {
                write(Level::Error, &text);
            }
        }
        "stdout" => loop {
            println!("again");
        },
        "stderr" => loop {
            eprintln!("again");
        },
        "stdout-endless" => endless(&mut std::io::stdout()),
        "stderr-endless" => endless(&mut std::io::stderr()),
        "explain" => loop {
            skipped("thing", "rule", "again");
        },
        "explain-large" => {
            let text = "large ".repeat(1 << 20);
            loop {
                skipped(&text, &text, &text);
            }
        }
        "random" => drop(get_random_bytes(1 << 30)),
        _ => return false,
    }
    true
}

/// Writes an endless line.
fn endless(to: &mut dyn std::io::Write) {
    let part = [b'x'; 1000];
    loop {
        let _ = to.write_all(&part);
        let _ = to.flush();
    }
}
