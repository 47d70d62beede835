//! A handler that returns twenty typical devices and does nothing else, so that a call's time is the cost of calling.

use leafhost_sdk::{
    Description, Device, Discovery, Handler, Health, Host, Request, Result, register,
};

/// Details of the handler, its `discoveryDetails`.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Details {
    network: String,
}

/// Handler that returns the twenty devices.
#[derive(Debug)]
pub struct Twenty;

register!(Twenty);

impl Handler for Twenty {
    type Details = Details;

    fn describe() -> Description {
        Description::new("twenty", "Twenty devices, always the same").example("network: plant")
    }

    fn discover(request: &Request<Details>, _host: &Host) -> Result<Discovery> {
        let network = &request.details.network;
        let devices = (0..20_u32).map(|number| {
            let address = format!("10.0.7.{number}");
            Device::new(format!("{network}/{address}:4840"))
                .property("TWENTY_ADDRESS", &address)
                .property("TWENTY_NETWORK", network)
                .property("TWENTY_NUMBER", number.to_string())
                .attribute("address", address)
                .attribute("number", number)
                .health(Health::Healthy)
        });
        Ok(Discovery::complete(devices).until_changed())
    }
}
