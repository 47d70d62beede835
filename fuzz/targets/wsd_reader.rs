//! Fuzzes datagrams sent to the WS-Discovery group.
#![no_main]

use std::time::Duration;

use handler_onvif::wsd;
use leafhost_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Bounds the CPU time of a whole call.
    let _ = within(Duration::from_secs(2), || wsd::read(data));
});
