//! A camera that answers a question with what it likes.
#![no_main]

use handler_onvif::soap::{self, Operation};
use libfuzzer_sys::fuzz_target;

const OPERATIONS: [Operation; 4] = [
    Operation::GetSystemDateAndTime,
    Operation::GetDeviceInformation,
    Operation::GetNetworkInterfaces,
    Operation::GetScopes,
];

fuzz_target!(|data: &[u8]| {
    for operation in OPERATIONS {
        for status in [200, 400, 500] {
            let _ = soap::read(operation, status, data);
        }
    }
});
