//! The `mock-gpu` discovery handler: simulated GPUs, to test how workloads select and share devices.

mod gpu;
mod model;

use leafhost_sdk::{Description, Discovery, Handler, Host, Problem, Request, Result, register};

struct MockGpu;

register!(MockGpu);

impl Handler for MockGpu {
    type Details = model::Details;

    fn describe() -> Description {
        Description::new(
            "mock-gpu",
            "GPUs made up from the details, the same on every call",
        )
        .example(include_str!("../example.yaml"))
    }

    fn validate(details: &model::Details) -> Vec<Problem> {
        model::problems(details)
    }

    fn discover(request: &Request<model::Details>, _host: &Host) -> Result<Discovery> {
        let devices = gpu::devices(&request.node, &request.details);
        Ok(Discovery::complete(devices).until_changed())
    }
}
