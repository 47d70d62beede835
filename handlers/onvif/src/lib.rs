//! The `onvif` discovery handler: cameras on the network that speak ONVIF.

mod details;
mod discover;
mod filter;
mod link;
mod security;
pub mod soap;
pub mod wsd;
mod xaddr;
pub mod xml;

use leafhost_sdk::{Description, Discovery, Handler, Host, Problem, Request, Result, register};

struct Onvif;

register!(Onvif);

impl Handler for Onvif {
    type Details = details::Details;

    fn describe() -> Description {
        Description::new(
            "onvif",
            "Cameras on the network that speak ONVIF, found by WS-Discovery",
        )
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
