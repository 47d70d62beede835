//! Checks a set of devices as a component's answer is checked: against the contract, the limits and the grants.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use leafhost_core::device::{Device, DeviceNode, Mount};
use leafhost_core::fault::Fault;
use leafhost_core::left_out::LeftOuts;
use leafhost_core::session::{Devices, Discovery};
use leafhost_grants::{Bounds, Grants, Reported, Secrets, resolve};

use crate::proto;

/// Returns the devices of a set without those that break a rule; `shared` is true if they are shared. Blocks if devices have paths.
///
/// # Errors
/// Returns a [`Fault`] if the set exceeds a limit.
pub fn discovery(
    set: proto::DiscoverResponse,
    grants: &Grants,
    shared: bool,
    secrets: &Secrets,
) -> Result<Discovery, Fault> {
    let mounts = OnceLock::new();
    let bounds = Bounds {
        grants,
        shared,
        secrets,
        udev_nodes: &BTreeSet::new(),
        resolve: &|path| resolve(path, &mounts),
    };
    let mut left_out = LeftOuts::default();
    Ok(Discovery {
        devices: Devices::Complete(bounds.devices(set.devices, &mut left_out)?),
        departed: Vec::new(),
        left_out,
    })
}

impl Reported for proto::Device {
    fn into_device(self, shared: bool) -> (Device, Option<String>) {
        let mut device = Device::new(self.id, shared);
        device.properties = self.properties;
        let mounts = self.mounts.into_iter().map(|mount| Mount {
            container_path: mount.container_path,
            host_path: mount.host_path,
            read_only: mount.read_only,
        });
        device.mounts = mounts.collect();
        let nodes = self.device_specs.into_iter().map(|node| DeviceNode {
            container_path: node.container_path,
            host_path: node.host_path,
            permissions: node.permissions,
        });
        device.nodes = nodes.collect();
        (device, None)
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::fault::FaultReason;
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
        let (grants, secrets) = (Grants::parse(GRANTS).unwrap(), Secrets::new(&[secret]));
        discovery(DiscoverResponse { devices }, &grants, true, &secrets)
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
    fn what_the_grants_do_not_allow_is_named_by_its_place_in_the_container() {
        for (device, item) in [
            (with_property("B", "x"), Some("B")),
            (with_property("A_B", "\u{0}"), None),
            (with_node("/dev/zero", "rw"), Some("/dev/null")),
            (with_node("/dev/nula", "rw"), None),
        ] {
            let found = check(vec![device]).unwrap();
            let ungranted = found.left_out.ungranted.get("d").map(String::as_str);
            assert_eq!(ungranted, item, "{:?}", found.left_out);
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
