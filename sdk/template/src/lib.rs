//! The `{{name}}` discovery handler.

use leafhost_sdk::{Description, Deserialize, Device, Discovery, Handler, Host, Request, Result};

pub struct {{TypeName}};

leafhost_sdk::register!({{TypeName}});

/// What a Configuration says in `discoveryDetails`.
#[derive(Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
pub struct Details {
    names: Vec<String>,
}

impl Handler for {{TypeName}} {
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
