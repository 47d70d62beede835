//! The `opcua` discovery handler: OPC UA servers by discovery URLs.

mod client;
mod details;
mod device;
mod discover;
#[doc(hidden)]
pub mod framing;
mod location;
mod memory;
#[doc(hidden)]
pub mod messages;
mod mirrored;
mod search;
mod security_settings;
mod status;
mod table;
mod text;
mod url;

use leafhost_sdk::{Description, Discovery, Handler, Host, Problem, Request, Result, register};

struct OpcUa;

register!(OpcUa);

impl Handler for OpcUa {
    type Details = details::Details;

    fn describe() -> Description {
        Description::new("opcua", "OPC UA servers by their discovery URLs")
            .example(include_str!("../example.yaml"))
            .shared()
    }

    fn validate(details: &details::Details) -> Vec<Problem> {
        details.problems()
    }

    fn remarks(details: &details::Details) -> Vec<Problem> {
        details.remarks()
    }

    fn discover(request: &Request<details::Details>, host: &Host) -> Result<Discovery> {
        Ok(discover::discover(request, host))
    }
}

#[cfg(test)]
mod tests;
