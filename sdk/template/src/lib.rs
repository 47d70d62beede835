//! The `{{name}}` discovery handler.

use leafhost_sdk::{Description, Device, Discovery, Handler, Host, Request, Result};

struct ThisHandler;

leafhost_sdk::register!(ThisHandler);

/// Details that a Configuration gives in `discoveryDetails`.
#[leafhost_sdk::details]
struct Details {
    names: Vec<String>,
}

impl Handler for ThisHandler {
    type Details = Details;

    fn describe() -> Description {
        Description::new("{{name}}", "One device for each name in the details")
            .example(include_str!("../details.yaml"))
    }

    fn discover(request: &Request<Details>, _host: &Host) -> Result<Discovery> {
        let names = request.details.names.iter();
        let devices = names.map(|name| Device::new(name).property("DEVICE_NAME", name));
        Ok(Discovery::complete(devices))
    }
}

/// `cargo test` runs the handler on a host in memory: no agent, no hardware.
#[cfg(test)]
mod tests {
    use super::*;
    use leafhost_sdk::testing::{Call, FakeHost, description_problems, validate};

    #[test]
    fn the_description_is_valid() {
        assert_eq!(description_problems::<ThisHandler>(), Vec::<String>::new());
    }

    #[test]
    fn the_example_has_devices() {
        let example = include_str!("../details.yaml");
        let found = Call::<ThisHandler>::new(example)
            .run(&FakeHost::new())
            .unwrap();
        assert_eq!(found.devices().len(), 2);
    }

    #[test]
    fn the_invalid_field_is_reported() {
        let problems = validate::<ThisHandler>("names: [[a]]");
        assert_eq!(problems[0].path, "names[0]");
    }
}
