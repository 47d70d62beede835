//! Talking without end.

use wasip2::random::random::get_random_bytes;

use crate::bindings::leafhost::explain::explain::skipped;
use crate::bindings::leafhost::log::log::{Level, write};

/// Does it; says whether it knows the deed, if it comes back.
pub fn commit(deed: &str) -> bool {
    match deed {
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

/// A line that does not end.
fn endless(to: &mut dyn std::io::Write) {
    let part = [b'x'; 1000];
    loop {
        let _ = to.write_all(&part);
        let _ = to.flush();
    }
}
