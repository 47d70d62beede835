//! Instances as devices of ResourceSlices: names, attributes that claims select by, and shares. Pure.

use std::collections::BTreeSet;

use crate::attribute::{AttributeValue, Attributes, Capacities, MAX_COUNT, MAX_VALUE};
use crate::configuration::MAX_CAPACITY;
use crate::instance::{Instance, Leafhost};
use crate::names::{ConfigurationKey, digest, label_value};
use crate::slices::{DRIVER, Devices, SliceDevice, Taint};
use crate::slot::{DeviceUsage, slot_number};

/// Name of the capacity that states how many claims may share a device.
pub const SLOTS: &str = "slots";
/// Name of a handler's attribute that has a standard name in Kubernetes, and that name.
const NUMA: (&str, &str) = ("numaNode", "resource.kubernetes.io/numaNode");

/// Returns the device name of an Instance, a DNS label. Appends a digest to names that had to be changed, so that they
/// stay distinct.
pub fn device_name(instance: &str) -> String {
    if instance.len() <= 63 && !instance.contains('.') {
        return instance.to_owned();
    }
    let head: String = instance.chars().take(46).collect();
    let head = head.replace('.', "-");
    format!("{}-{}", head.trim_end_matches('-'), digest(instance))
}

/// Returns the device name of a slot.
pub fn slot_device_name(instance: &str, slot: u32) -> String {
    let name = device_name(instance);
    if name.len() <= 56 {
        return format!("{name}-{slot}");
    }
    let head: String = name.chars().take(36).collect();
    format!("{}-{}-{slot}", head.trim_end_matches('-'), digest(instance))
}

/// Returns the name of an object as an attribute value: unchanged up to 64 bytes, otherwise its beginning and a digest.
pub fn name_attribute(name: &str) -> String {
    if name.len() <= MAX_VALUE {
        return name.to_owned();
    }
    label_value(name)
}

/// Returns the devices that an Instance offers to the scheduler, and the attributes and capacities that did not fit, as
/// `<instance>: <name>`. Leaves out slots that are in use unless a claim holds them: the scheduler counts those itself.
/// Without `has_shares`, for API servers that do not keep shares, each slot of a shared device becomes its own device.
pub fn offered(
    configuration: &ConfigurationKey,
    instance: &Instance,
    taints: &BTreeSet<Taint>,
    has_shares: bool,
) -> (Devices, BTreeSet<String>) {
    let name = &instance.metadata.name;
    let is_shared = instance.spec.capacity > 1;
    let free = free(instance);
    let (mut whole, left_out) = whole(configuration, instance);
    whole.taints.clone_from(taints);
    let mut devices = Devices::new();
    if is_shared && !has_shares {
        for slot in free {
            let mut device = whole.clone();
            let number = AttributeValue::Int(i64::from(slot));
            device.attributes.insert("slot".to_owned(), number);
            devices.insert(slot_device_name(name, slot), device);
        }
    } else if !free.is_empty() {
        let shares = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let shares = is_shared.then_some(shares);
        devices.insert(device_name(name), SliceDevice { shares, ..whole });
    }
    let left_out = left_out.into_iter();
    (
        devices,
        left_out.map(|one| format!("{name}: {one}")).collect(),
    )
}

/// Returns the attributes and capacities of an Instance for expressions, as its device in a ResourceSlice has them.
pub fn described(
    configuration: &ConfigurationKey,
    instance: &Instance,
) -> (Attributes, Capacities) {
    let (device, _) = whole(configuration, instance);
    (device.attributes, device.capacity)
}

/// Returns the slots that are free or held by claims. Leaves out those held through a device plugin or reserved for a pod.
fn free(instance: &Instance) -> BTreeSet<u32> {
    let name = &instance.metadata.name;
    let usage = instance.spec.device_usage.iter();
    let taken: BTreeSet<u32> = usage
        .filter(|(_, text)| {
            let usage = text.parse();
            !matches!(usage, Ok(DeviceUsage::Unused | DeviceUsage::Claim { .. }))
        })
        .filter_map(|(slot, _)| slot_number(name, slot))
        .collect();
    (0..instance.spec.capacity.min(MAX_CAPACITY))
        .filter(|slot| !taken.contains(slot))
        .collect()
}

/// Returns an Instance as one device, and the attributes and capacities that did not fit.
fn whole(configuration: &ConfigurationKey, instance: &Instance) -> (SliceDevice, BTreeSet<String>) {
    let none = Leafhost::default();
    let reported = instance.spec.leafhost.as_ref().unwrap_or(&none);
    let is_shared = instance.spec.capacity > 1;
    let mut attributes = own(configuration, &instance.metadata.name);
    let (mut capacity, mut left_out) = (Capacities::new(), BTreeSet::new());
    // One entry is reserved for the attribute `slot` or the capacity `slots`.
    let most = MAX_COUNT.saturating_sub(usize::from(is_shared));
    let numa = reported.attributes.get(NUMA.0);
    let numa = numa.filter(|_| !reported.attributes.contains_key(NUMA.1));
    let theirs = reported.attributes.iter();
    let theirs = theirs.map(|(name, value)| (&**name, value));
    for (name, value) in theirs.chain(numa.map(|value| (NUMA.1, value))) {
        if attributes.len() < most && !is_taken(name, &attributes, &capacity) {
            attributes.insert(name.to_owned(), value.clone());
        } else {
            left_out.insert(name.to_owned());
        }
    }
    for (name, value) in &reported.capacity {
        let is_free = !is_taken(name, &attributes, &capacity) && unqualified(name) != SLOTS;
        if attributes.len() + capacity.len() < most && is_free {
            capacity.insert(name.clone(), value.clone());
        } else {
            left_out.insert(name.clone());
        }
    }
    let device = SliceDevice {
        attributes,
        capacity,
        shares: None,
        taints: BTreeSet::new(),
    };
    (device, left_out)
}

/// Returns the attributes that Leafhost itself sets.
fn own(configuration: &ConfigurationKey, instance: &str) -> Attributes {
    let name = |name: &str| AttributeValue::String(name_attribute(name));
    Attributes::from([
        ("configuration".to_owned(), name(configuration.name())),
        ("namespace".to_owned(), name(configuration.namespace())),
        ("instance".to_owned(), name(instance)),
    ])
}

/// Returns the name without our domain: Kubernetes treats both as equal, and an expression finds either.
fn unqualified(name: &str) -> &str {
    let rest = name.strip_prefix(DRIVER);
    rest.and_then(|rest| rest.strip_prefix('/')).unwrap_or(name)
}

fn is_taken(name: &str, attributes: &Attributes, capacity: &Capacities) -> bool {
    let name = unqualified(name);
    let taken = attributes.keys().chain(capacity.keys());
    name == "slot" || taken.into_iter().any(|other| unqualified(other) == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::attribute::{name_problem, value_problem};
    use crate::names::is_node_name;
    use crate::slot::slot_id;

    struct Parts {
        key: ConfigurationKey,
        instance: String,
        free: BTreeSet<u32>,
        attributes: Attributes,
        capacity: Capacities,
    }

    fn mk_parts(configuration: &str, free: impl IntoIterator<Item = u32>) -> Parts {
        Parts {
            key: ConfigurationKey::new("lab", configuration).unwrap(),
            instance: format!("{configuration}-8120fe"),
            free: free.into_iter().collect(),
            attributes: Attributes::new(),
            capacity: Capacities::new(),
        }
    }

    impl Parts {
        fn devices(&self, slots: u32, has_shares: bool) -> (Devices, BTreeSet<String>) {
            let name = &self.instance;
            let taken = (0..slots).filter(|slot| !self.free.contains(slot));
            let usage: BTreeMap<_, _> = taken.map(|slot| (slot_id(name, slot), "a")).collect();
            let instance = json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "lab"},
                "spec": {"configurationName": self.key.name(), "capacity": slots, "deviceUsage": usage,
                    "leafhost": {"attributes": self.attributes, "capacity": self.capacity}},
            });
            let instance = serde_json::from_value(instance).unwrap();
            let (devices, left_out) = offered(&self.key, &instance, &BTreeSet::new(), has_shares);
            let prefix = format!("{name}: ");
            let left_out = left_out
                .iter()
                .map(|one| one.strip_prefix(&prefix).unwrap());
            (devices, left_out.map(str::to_owned).collect())
        }
    }

    fn text(value: &str) -> AttributeValue {
        AttributeValue::String(value.to_owned())
    }

    #[test]
    fn a_device_with_one_slot_is_one_and_one_with_several_is_shared() {
        let (one, _) = mk_parts("gpu", [0]).devices(1, true);
        assert_eq!(one["gpu-8120fe"].shares, None);
        assert_eq!(one["gpu-8120fe"].attributes["namespace"], text("lab"));
        let camera = mk_parts("cams", 0..5);
        let (shares, _) = camera.devices(5, true);
        assert_eq!(shares["cams-8120fe"].shares, Some(5));
        let (slots, _) = camera.devices(5, false);
        let names: Vec<_> = slots.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "cams-8120fe-0",
                "cams-8120fe-1",
                "cams-8120fe-2",
                "cams-8120fe-3",
                "cams-8120fe-4"
            ]
        );
        assert_eq!(
            slots["cams-8120fe-3"].attributes["slot"],
            AttributeValue::Int(3)
        );
    }

    #[test]
    fn slots_that_others_have_are_left_out() {
        let parts = mk_parts("cams", [1, 4]);
        assert_eq!(parts.devices(5, true).0["cams-8120fe"].shares, Some(2));
        let (slots, _) = parts.devices(5, false);
        assert_eq!(
            slots.into_keys().collect::<Vec<_>>(),
            ["cams-8120fe-1", "cams-8120fe-4"]
        );
        for has_shares in [true, false] {
            assert!(mk_parts("cams", []).devices(5, has_shares).0.is_empty());
            assert!(mk_parts("cams", []).devices(1, has_shares).0.is_empty());
        }
    }

    #[test]
    fn names_are_labels_of_dns_and_no_two_are_alike() {
        let long = "a".repeat(253);
        let names = [
            "cams-8120fe",
            "my.cams-8120fe",
            "my-cams-8120fe",
            &long,
            &format!("b.{long}"),
        ];
        let mut seen = BTreeSet::new();
        for name in names {
            for name in [
                device_name(name),
                slot_device_name(name, 0),
                slot_device_name(name, 99_999),
            ] {
                assert!(
                    name.len() <= 63 && is_node_name(&name) && !name.contains('.'),
                    "{name}"
                );
                assert!(seen.insert(name));
            }
        }
    }

    #[test]
    fn what_a_handler_says_goes_after_our_own_and_what_finds_no_room_is_named() {
        let mut parts = mk_parts(&"c".repeat(100), 0..2);
        for n in 0..40 {
            parts
                .attributes
                .insert(format!("a{n:02}"), AttributeValue::Int(n));
        }
        parts.capacity.insert("memory".to_owned(), "8Gi".to_owned());
        for has_shares in [true, false] {
            let (devices, left_out) = parts.devices(2, has_shares);
            for device in devices.values() {
                let slots = usize::from(device.shares.is_some());
                assert_eq!(
                    device.attributes.len() + device.capacity.len() + slots,
                    MAX_COUNT
                );
                assert!(
                    device
                        .attributes
                        .keys()
                        .all(|name| name_problem(name).is_none())
                );
                assert!(
                    device
                        .attributes
                        .values()
                        .all(|value| value_problem(value).is_none())
                );
            }
            assert_eq!(left_out.len(), 40 - 28 + 1, "{left_out:?}");
            assert!(left_out.contains("a39") && left_out.contains("memory"));
        }
    }

    #[test]
    fn names_that_kubernetes_takes_for_the_same_are_told() {
        let mut parts = mk_parts("gpu", [0]);
        for name in [
            "m",
            "leafhost.dev/m",
            "instance",
            "slot",
            "other.dev/instance",
            "numaNode",
        ] {
            parts.attributes.insert(name.to_owned(), text("x"));
        }
        parts.capacity.insert("slots".to_owned(), "1".to_owned());
        let (devices, left_out) = parts.devices(1, true);
        let expected = ["instance", "m", "slot", "slots"].map(str::to_owned);
        assert_eq!(left_out, expected.into());
        let attributes = &devices["gpu-8120fe"].attributes;
        assert_eq!(attributes["instance"], text("gpu-8120fe"));
        assert_eq!(attributes["resource.kubernetes.io/numaNode"], text("x"));
        assert!(attributes.contains_key("other.dev/instance"));
    }
}
