//! Agreements between two sides neither of which may depend on the other, and tests of the stand-ins for foreign programs.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test binary"
)]

mod plugin;
mod stand_in;

use leafhost_core::attribute::{AttributeValue, is_quantity, value_problem};
use leafhost_sdk::check;

#[test]
fn the_host_takes_the_quantities_that_the_sdk_takes_and_no_others() {
    let numbers = [
        "", "0", "1", "80", "1.5", ".5", "1.", ".", "1.2.3", "-1", "+1", "--1", "x", "1x",
    ];
    let suffixes = [
        "", "n", "u", "m", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        "ki", "e3", "E-3", "e", "e+", " Gi", "GB",
    ];
    let long = "1".repeat(65);
    let all = numbers.iter().flat_map(|number| {
        suffixes
            .iter()
            .map(move |suffix| format!("{number}{suffix}"))
    });
    for text in all.chain([long]) {
        assert_eq!(check::is_quantity(&text), is_quantity(&text), "{text:?}");
    }
}

#[test]
fn the_host_takes_the_versions_that_the_sdk_takes_and_no_others() {
    for text in [
        "1.2.3",
        "1.2",
        "01.2.3",
        "1.0.0-rc.1+b.5",
        "1.2.3-",
        "v1.2.3",
        "",
        &format!("1.2.{}", "3".repeat(70)),
    ] {
        let taken = value_problem(&AttributeValue::Version(text.to_owned())).is_none();
        assert_eq!(check::is_version(text), taken, "{text:?}");
    }
}
