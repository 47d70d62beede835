//! Things no handler should do.

use std::hint::black_box;

use crate::bindings::leafhost::log::log::{Level, write};
use crate::bindings::leafhost::net::interfaces::granted;
use crate::bindings::leafhost::udev::devices::find;

/// Does it; returns if it was allowed to.
pub fn commit(deed: &str, _argument: &str) {
    match deed {
        "loop" => loop {
            black_box(());
        },
        "log" => loop {
            write(Level::Info, "again");
        },
        "udev" => loop {
            black_box(find(&[Vec::new()]).is_ok());
        },
        "interfaces" => loop {
            black_box(granted());
        },
        _ => panic!("no such deed: {deed}"),
    }
}
