//! Fuzzes a camera's answers to SOAP requests.
#![no_main]

use std::time::Duration;

use handler_onvif::soap::{self, Operation};
use leafhost_fuzz::within;
use libfuzzer_sys::fuzz_target;

const OPERATIONS: [Operation; 4] = [
    Operation::GetSystemDateAndTime,
    Operation::GetDeviceInformation,
    Operation::GetNetworkInterfaces,
    Operation::GetScopes,
];

fuzz_target!(|data: &[u8]| {
    // Bounds the CPU time of a whole call.
    within(Duration::from_secs(2), || {
        for operation in OPERATIONS {
            for status in [200, 400, 500] {
                let _ = soap::read(operation, status, data);
            }
        }
    });
});
