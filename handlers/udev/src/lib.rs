//! The `udev` discovery handler: devices of the node by udev rules.

mod details;
mod facts;
mod found;
mod groups;
mod hardware;
mod identity;
mod natural;
mod paths;
mod ports;
mod remarks;
mod resource;
pub mod rules;
mod tree;

use leafhost_sdk::{Description, Discovery, Handler, Host, Problem, Request, Result, register};

struct Udev;

register!(Udev);

impl Handler for Udev {
    type Details = details::Details;

    fn describe() -> Description {
        Description::new("udev", "Local devices that match udev rules")
            .example(include_str!("../example.yaml"))
    }

    fn validate(details: &details::Details) -> Vec<Problem> {
        details.problems()
    }

    fn remarks(details: &details::Details) -> Vec<Problem> {
        details.remarks()
    }

    fn discover(request: &Request<details::Details>, host: &Host) -> Result<Discovery> {
        found::discover(request, host)
    }
}

#[cfg(test)]
mod tests;
