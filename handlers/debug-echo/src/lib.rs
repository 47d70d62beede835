//! The `debugEcho` discovery handler: lists devices given in the details, for tests without hardware.

mod echo;

use leafhost_sdk::{Description, Discovery, Handler, Host, Problem, Request, Result, register};

struct DebugEcho;

register!(DebugEcho);

impl Handler for DebugEcho {
    type Details = echo::Details;

    fn describe() -> Description {
        Description::new(
            "debugEcho",
            "One device for each description in the details",
        )
        .example(include_str!("../example.yaml"))
        .shared()
    }

    fn validate(details: &echo::Details) -> Vec<Problem> {
        echo::problems(details)
    }

    fn discover(request: &Request<echo::Details>, host: &Host) -> Result<Discovery> {
        Ok(Discovery::complete(echo::devices(&request.details, host)).until_changed())
    }
}
