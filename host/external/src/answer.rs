//! Checks a set of devices as a component's answer is checked: against the contract, the limits and the grants.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use leafhost_core::device::{self, Device, DeviceNode, Mount};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::{LeftOut, LeftOuts};
use leafhost_core::session::{Devices, Discovery};
use leafhost_grants::{Grants, HandOut, Secrets, resolve};

use crate::proto;

/// Maximum length of the shown id of a device that was left out, in bytes.
const SHOWN_ID: usize = 256;
/// Maximum length of a shown reason, in bytes.
const SHOWN_REASON: usize = 1024;

/// Rules that a set is checked against.
pub struct Checks<'a> {
    /// Grants with the paths that may be handed out and the limits of the answer.
    pub grants: &'a Grants,
    /// True if the devices are shared.
    pub shared: bool,
    /// Secret values that no device may show.
    pub secrets: &'a Secrets,
}

impl Checks<'_> {
    /// Returns the devices of a set without those that break a rule. Blocks if devices have paths.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the set exceeds a limit.
    pub fn discovery(&self, set: proto::DiscoverResponse) -> Result<Discovery, Fault> {
        let limits = &self.grants.limits;
        let too_large = |what| Err(Fault::new(FaultReason::AnswerTooLarge, what));
        let devices = set.devices.len();
        if devices > usize::try_from(limits.devices).unwrap_or(usize::MAX) {
            return too_large(format!(
                "the set has {devices} devices, at most {}; `limits.devices` in the grants raises it",
                limits.devices
            ));
        }
        let text: usize = set.devices.iter().map(text).sum();
        if text > usize::try_from(limits.answer).unwrap_or(usize::MAX) {
            return too_large(format!(
                "the set has {text} bytes of text, at most {}; give the devices fewer or shorter properties",
                limits.answer
            ));
        }
        let mounts = OnceLock::new();
        let hand_out = HandOut {
            grants: &self.grants.devices,
            udev_nodes: &BTreeSet::new(),
            resolve: &|path| resolve(path, &mounts),
        };
        let mut left_out = LeftOuts::default();
        let mut ids = BTreeSet::new();
        let mut taken = Vec::with_capacity(devices);
        for raw in set.devices {
            let id = raw.id.clone();
            let checked = if ids.insert(id.clone()) {
                self.device(raw, &hand_out)
            } else {
                Err("the id was there before in the same set; the first one counts".to_owned())
            };
            match checked {
                Ok(device) => taken.push(device),
                Err(reason) => left_out.add(&id, || LeftOut {
                    id: self.secrets.clean(&id, SHOWN_ID),
                    reason: self.secrets.clean(&reason, SHOWN_REASON),
                }),
            }
        }
        Ok(Discovery {
            devices: Devices::Complete(taken),
            departed: Vec::new(),
            left_out,
        })
    }

    fn device(&self, raw: proto::Device, hand_out: &HandOut<'_>) -> Result<Device, String> {
        if text(&raw) > device::MAX_TEXT {
            return Err(format!("has more than {} bytes of text", device::MAX_TEXT));
        }
        // Secrets are checked first: later errors show the text escaped, and a secret would not be recognized in that form.
        if let Some(name) = texts(&raw).find_map(|text| self.secrets.find(text)) {
            return Err(format!(
                "has the value of the secret property {name}, or a part of it"
            ));
        }
        let mut device = Device::new(raw.id, self.shared);
        device.properties = raw.properties;
        let mounts = raw.mounts.into_iter().map(|mount| Mount {
            container_path: mount.container_path,
            host_path: mount.host_path,
            read_only: mount.read_only,
        });
        device.mounts = mounts.collect();
        let nodes = raw.device_specs.into_iter().map(|node| DeviceNode {
            container_path: node.container_path,
            host_path: node.host_path,
            permissions: node.permissions,
        });
        device.nodes = nodes.collect();
        if let Some(problem) = device.problem() {
            return Err(problem);
        }
        hand_out.check(&mut device)?;
        Ok(device)
    }
}

fn text(device: &proto::Device) -> usize {
    texts(device).map(String::len).sum()
}

/// Returns all texts of a device as received.
fn texts(device: &proto::Device) -> impl Iterator<Item = &String> {
    let pairs = device
        .properties
        .iter()
        .flat_map(|(name, value)| [name, value]);
    let mounts = device.mounts.iter();
    let mounts = mounts.flat_map(|mount| [&mount.container_path, &mount.host_path]);
    let nodes = device.device_specs.iter();
    let nodes = nodes.flat_map(|node| [&node.container_path, &node.host_path, &node.permissions]);
    [&device.id]
        .into_iter()
        .chain(pairs)
        .chain(mounts)
        .chain(nodes)
}

#[cfg(test)]
mod tests {
    use leafhost_core::session::Property;

    use super::*;
    use crate::proto::{DeviceSpec, DiscoverResponse};

    const GRANTS: &str =
        r#"devices: {env: ["A_*"], nodes: ["/dev/nul?"], mounts: ["/usr/share/*:ro"]}"#;

    fn mk_device(id: &str) -> proto::Device {
        proto::Device {
            id: id.to_owned(),
            ..proto::Device::default()
        }
    }

    fn check(devices: Vec<proto::Device>) -> Result<Discovery, Fault> {
        let secret = Property {
            name: "password".into(),
            value: Some(b"hunter2".as_slice().into()),
            secret: true,
        };
        let checks = Checks {
            grants: &Grants::parse(GRANTS).unwrap(),
            shared: true,
            secrets: &Secrets::new(&[secret]),
        };
        checks.discovery(DiscoverResponse { devices })
    }

    fn with_property(name: &str, value: &str) -> proto::Device {
        proto::Device {
            properties: [(name.to_owned(), value.to_owned())].into(),
            ..mk_device("d")
        }
    }

    fn with_node(host: &str, permissions: &str) -> proto::Device {
        let node = DeviceSpec {
            container_path: "/dev/null".into(),
            host_path: host.into(),
            permissions: permissions.into(),
        };
        proto::Device {
            device_specs: vec![node],
            ..mk_device("d")
        }
    }

    #[test]
    fn a_device_that_breaks_a_rule_is_left_out_and_the_others_stay() {
        for (device, why) in [
            (with_property("A_B", "x"), None),
            (with_property("B", "x"), Some("property B is not granted")),
            (
                with_property("A_B", "my hunter2"),
                Some("secret property password"),
            ),
            (with_property("A_B", "\u{0}"), Some("control character")),
            (
                with_property("A_B", &"x".repeat(70_000)),
                Some("bytes of text"),
            ),
            (mk_device(""), Some("id is empty")),
            (mk_device("other"), Some("was there before")),
            (with_node("/dev/null", "rw"), None),
            (with_node("/dev/null", "all"), Some("rwm")),
            (
                with_node("/dev/zero", "rw"),
                Some("/dev/zero is not granted"),
            ),
            (with_node("/dev/nula", "rw"), Some("cannot hand out")),
        ] {
            let found = check(vec![mk_device("other"), device]).unwrap();
            let reason = found.left_out.shown.first().map(|one| one.reason.clone());
            match (why, &reason) {
                (None, None) => {}
                (Some(words), Some(reason)) => assert!(reason.contains(words), "{reason}"),
                _ => panic!("{why:?} {reason:?}"),
            }
            let Devices::Complete(devices) = found.devices else {
                panic!("a set is all there is");
            };
            assert_eq!(devices.len(), if why.is_none() { 2 } else { 1 });
            assert!(devices.iter().all(|device| device.shared));
            assert!(!reason.unwrap_or_default().contains("hunter2"));
        }
    }

    #[test]
    fn a_set_over_a_limit_is_refused_whole_with_the_remedy() {
        let many = (0..4097)
            .map(|number| mk_device(&number.to_string()))
            .collect();
        let fault = check(many).unwrap_err();
        assert_eq!(fault.reason, FaultReason::AnswerTooLarge);
        assert!(fault.message.contains("limits.devices"), "{fault}");
        let large = (0..200).map(|_| with_property("A_B", &"x".repeat(60_000)));
        let fault = check(large.collect()).unwrap_err();
        assert!(fault.message.contains("bytes of text"), "{fault}");
    }
}
