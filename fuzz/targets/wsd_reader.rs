//! Somebody who sends datagrams to the group of WS-Discovery.
#![no_main]

use std::time::Duration;

use handler_onvif::wsd;
use leafhost_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // What a call may compute in all.
    let _ = within(Duration::from_secs(2), || wsd::read(data));
});
