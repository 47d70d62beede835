//! Somebody who sends datagrams to the group of WS-Discovery.
#![no_main]

use handler_onvif::wsd;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = wsd::read(data);
});
