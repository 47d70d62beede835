//! `discoveryDetails`, and the devices they list.

use leafhost_sdk::{Device, Health, Host, Problem};

/// Environment variable that names the device of a workload, as in Akri.
const PROPERTY: &str = "DEBUG_ECHO_DESCRIPTION";

/// Akri's `discoveryDetails`, and `shared`, which makes the devices visible from many nodes.
#[leafhost_sdk::details]
pub struct Details {
    descriptions: Vec<String>,
    #[serde(default = "shared")]
    shared: bool,
}

fn shared() -> bool {
    true
}

/// Returns a problem for each description that cannot be a device id.
pub fn problems(details: &Details) -> Vec<Problem> {
    details
        .descriptions
        .iter()
        .enumerate()
        .filter(|(_, description)| {
            !(1..=1024).contains(&description.len()) || description.chars().any(char::is_control)
        })
        .map(|(index, _)| {
            Problem::new(
                format!("descriptions[{index}]"),
                "must be 1 to 1,024 bytes without control characters",
            )
        })
        .collect()
}

/// Creates one device for each description; a repeated description counts once.
pub fn devices(details: &Details, host: &Host) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (index, description) in details.descriptions.iter().enumerate() {
        if devices.iter().any(|device| device.id == *description) {
            let rule = format!("descriptions[{index}]");
            host.skipped(description, rule, "the same description came before");
            continue;
        }
        devices.push(
            Device::new(description)
                .shared(details.shared)
                .property(PROPERTY, description)
                .health(Health::Healthy),
        );
    }
    devices
}

#[cfg(test)]
mod tests {
    use crate::DebugEcho;
    use leafhost_sdk::testing::{Call, FakeHost, description_problems, validate};

    #[test]
    fn each_description_is_a_device_once() {
        let host = FakeHost::new();
        let found = Call::<DebugEcho>::new("descriptions: [foo0, foo1, foo0]")
            .run(&host)
            .unwrap();
        let ids: Vec<_> = found
            .devices()
            .iter()
            .map(|device| device.id.as_str())
            .collect();
        assert_eq!(ids, ["foo0", "foo1"]);
        assert_eq!(
            found.devices()[1].get_property("DEBUG_ECHO_DESCRIPTION"),
            Some("foo1")
        );
        assert_eq!(found.devices()[1].shared, Some(true));
        assert_eq!(host.skipped()[0].rule, "descriptions[2]");
        assert_eq!(found.wakes(), []);
    }

    #[test]
    fn devices_are_local_if_the_details_say_so() {
        let found = Call::<DebugEcho>::new("{descriptions: [foo0], shared: false}")
            .run(&FakeHost::new())
            .unwrap();
        assert_eq!(found.devices()[0].shared, Some(false));
    }

    #[test]
    fn the_invalid_field_is_reported() {
        for (details, path) in [
            ("", "descriptions"),
            ("descriptions: foo", "descriptions"),
            ("descriptions: [{a: b}]", "descriptions[0]"),
            ("descriptions: [a, '']", "descriptions[1]"),
            ("descriptions: [\"a\\nb\"]", "descriptions[0]"),
            ("{descriptions: [], shared: perhaps}", "shared"),
            ("{descriptions: [], share: true}", "share"),
        ] {
            let problems = validate::<DebugEcho>(details);
            assert_eq!(problems.len(), 1, "{details}");
            assert_eq!(problems[0].path, path, "{details}: {}", problems[0]);
        }
    }

    #[test]
    fn the_description_is_valid() {
        assert_eq!(description_problems::<DebugEcho>(), Vec::<String>::new());
    }
}
