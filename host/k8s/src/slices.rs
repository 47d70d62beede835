//! `ResourceSlice` objects as the API server stores them, and the slices they represent: conversion, correction, and a probe of the fields
//! that the API server keeps. Knows neither writers nor readers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::attribute::{AttributeValue, nanos};
use leafhost_core::claim::ports::{ReadError, SliceFeatures};
use leafhost_core::names::digest;
use leafhost_core::slice_device::SLOTS;
use leafhost_core::slices::{DRIVER, Devices, Reach, Slice, SliceDevice, Taint, pack};

use crate::answers::{self, Failure, Kind};
use crate::requests::put_by;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Label by which nodes are selected.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Converts a slice to its object.
pub fn object(name: &str, slice: &Slice) -> ResourceSlice {
    let (node_name, node_selector) = match &slice.reach {
        Reach::Node(node) => (Some(node.clone()), None),
        Reach::Hostnames(names) => (None, Some(selector(names))),
    };
    let devices = slice.devices.iter();
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            pool: ResourcePool {
                name: slice.pool.clone(),
                generation: slice.generation,
                resource_slice_count: slice.count,
            },
            node_name,
            node_selector,
            devices: Some(devices.map(|(name, one)| device(name, one)).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

fn selector(names: &BTreeSet<String>) -> NodeSelector {
    let hostname = NodeSelectorRequirement {
        key: HOSTNAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(names.iter().cloned().collect()),
    };
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: Some(vec![hostname]),
            match_fields: None,
        }],
    }
}

fn device(name: &str, device: &SliceDevice) -> Device {
    let attributes = device.attributes.iter();
    let attributes = attributes.map(|(name, value)| (name.clone(), attribute(value)));
    let capacity = device.capacity.iter().map(|(name, value)| {
        let capacity = DeviceCapacity {
            value: Quantity(value.clone()),
            request_policy: None,
        };
        (name.clone(), capacity)
    });
    let shares = device
        .shares
        .map(|shares| (SLOTS.to_owned(), slots(shares)));
    let capacity: BTreeMap<_, _> = capacity.chain(shares).collect();
    let taints = device.taints.iter().map(|taint| DeviceTaint {
        key: taint.key.clone(),
        effect: if taint.evicts {
            "NoExecute"
        } else {
            "NoSchedule"
        }
        .to_owned(),
        ..DeviceTaint::default()
    });
    Device {
        name: name.to_owned(),
        attributes: Some(attributes.collect()),
        capacity: (!capacity.is_empty()).then_some(capacity),
        allow_multiple_allocations: device.shares.map(|_| true),
        taints: (!device.taints.is_empty()).then(|| taints.collect()),
        ..Device::default()
    }
}

/// Returns the capacity that lets this number of claims share a device. A claim without an amount gets one slot. The capacity of one slot
/// has no step: the API server refuses a minimum and a step that are together larger than the value.
fn slots(shares: u32) -> DeviceCapacity {
    let one = || Some(Quantity("1".to_owned()));
    DeviceCapacity {
        value: Quantity(shares.to_string()),
        request_policy: Some(CapacityRequestPolicy {
            default: one(),
            valid_range: Some(CapacityRequestPolicyRange {
                min: Quantity("1".to_owned()),
                step: one().filter(|_| shares > 1),
                max: None,
            }),
            valid_values: None,
        }),
    }
}

fn attribute(value: &AttributeValue) -> DeviceAttribute {
    let mut attribute = DeviceAttribute::default();
    match value {
        AttributeValue::String(text) => attribute.string = Some(text.clone()),
        AttributeValue::Int(number) => attribute.int = Some(*number),
        AttributeValue::Bool(is_so) => attribute.bool = Some(*is_so),
        AttributeValue::Version(text) => attribute.version = Some(text.clone()),
    }
    attribute
}

/// Converts an object to a slice, with normalized capacities. Returns `None` if [`object`] cannot have built it.
pub fn slice(object: &ResourceSlice) -> Option<Slice> {
    let spec = &object.spec;
    let reach = match (&spec.node_name, &spec.node_selector) {
        (Some(node), None) => Reach::Node(node.clone()),
        (None, Some(selector)) => Reach::Hostnames(hostnames(selector)?),
        _ => return None,
    };
    let devices = spec.devices.iter().flatten();
    Some(Slice {
        pool: spec.pool.name.clone(),
        generation: spec.pool.generation,
        count: spec.pool.resource_slice_count,
        reach,
        devices: devices
            .map(|one| (one.name.clone(), slice_device(one)))
            .collect(),
    })
}

fn hostnames(selector: &NodeSelector) -> Option<BTreeSet<String>> {
    let [term] = selector.node_selector_terms.as_slice() else {
        return None;
    };
    match term.match_expressions.as_deref() {
        Some([one])
            if one.key == HOSTNAME && one.operator == "In" && term.match_fields.is_none() =>
        {
            Some(one.values.iter().flatten().cloned().collect())
        }
        _ => None,
    }
}

/// Converts a device, without the fields that Leafhost never writes.
fn slice_device(device: &Device) -> SliceDevice {
    let attributes = device.attributes.iter().flatten();
    let attributes = attributes.filter_map(|(name, value)| Some((name.clone(), value_of(value)?)));
    let is_shared = device.allow_multiple_allocations == Some(true);
    let capacity = device.capacity.iter().flatten();
    let (slots, others): (Vec<_>, Vec<_>) =
        capacity.partition(|(name, _)| is_shared && *name == SLOTS);
    let shares = slots.first().and_then(|(_, slots)| count(&slots.value));
    let others = others.into_iter();
    let taints = device.taints.iter().flatten().map(|taint| Taint {
        key: taint.key.clone(),
        evicts: taint.effect == "NoExecute",
    });
    SliceDevice {
        attributes: attributes.collect(),
        capacity: others
            .map(|(name, value)| (name.clone(), canonical(&value.value)))
            .collect(),
        shares,
        taints: taints.collect(),
    }
}

/// Normalizes a quantity, so that equal amounts are equal texts.
fn canonical(quantity: &Quantity) -> String {
    let text = &quantity.0;
    nanos(text).map_or_else(|| text.clone(), |amount| format!("{amount}n"))
}

/// Returns a quantity as a number of slots.
pub fn count(quantity: &Quantity) -> Option<u32> {
    let amount = nanos(&quantity.0)?;
    u32::try_from(amount.checked_div(1_000_000_000)?).ok()
}

fn value_of(value: &DeviceAttribute) -> Option<AttributeValue> {
    let text = value.string.clone().map(AttributeValue::String);
    text.or_else(|| value.int.map(AttributeValue::Int))
        .or_else(|| value.bool.map(AttributeValue::Bool))
        .or_else(|| value.version.clone().map(AttributeValue::Version))
}

/// Returns the objects that offer the wanted devices of a pool by name, as close to those of `found` as possible.
pub fn packed<'a>(
    pool: &str,
    wanted: &BTreeMap<Reach, Devices>,
    found: impl Iterator<Item = &'a ResourceSlice>,
) -> BTreeMap<String, ResourceSlice> {
    let found = found.filter(|one| one.spec.pool.name == pool);
    let stored = found.filter_map(|one| Some((one.name_any(), slice(one)?)));
    let packed = pack(pool, wanted, &stored.collect()).into_iter();
    let objects = packed.map(|(name, slice)| {
        let made = object(&name, &slice);
        (name, made)
    });
    objects.collect()
}

/// Returns the found slice, changed to agree with the wanted one, or `None` if they agree.
pub fn corrected(found: &ResourceSlice, wanted: &ResourceSlice) -> Option<ResourceSlice> {
    let is_owned = found.metadata.owner_references == wanted.metadata.owner_references;
    if is_owned && slice(found).is_some() && slice(found) == slice(wanted) {
        return None;
    }
    let mut right = found.clone();
    right
        .metadata
        .owner_references
        .clone_from(&wanted.metadata.owner_references);
    right.spec.clone_from(&wanted.spec);
    keep_times(found, &mut right);
    Some(right)
}

/// Keeps the times at which taints were added, which the API server has set.
fn keep_times(found: &ResourceSlice, right: &mut ResourceSlice) {
    let devices = found.spec.devices.iter().flatten();
    let times: BTreeMap<_, _> = devices
        .flat_map(|device| {
            let taints = device.taints.iter().flatten();
            taints.map(|taint| {
                let place = (device.name.clone(), taint.key.clone(), taint.effect.clone());
                (place, taint.time_added.clone())
            })
        })
        .collect();
    for device in right.spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            let place = (device.name.clone(), taint.key.clone(), taint.effect.clone());
            taint.time_added = times.get(&place).cloned().flatten();
        }
    }
}

/// Probes which slice fields the API server keeps, by a dry run of creating a slice in `pool`.
pub async fn probe(client: &Client, pool: &str, reach: Reach) -> Result<SliceFeatures, ReadError> {
    let device = SliceDevice {
        shares: Some(2),
        taints: [Taint {
            key: "leafhost.dev/probe".to_owned(),
            evicts: false,
        }]
        .into(),
        ..SliceDevice::default()
    };
    let probe = Slice {
        pool: pool.to_owned(),
        generation: 1,
        count: 1,
        reach,
        devices: [("probe".to_owned(), device)].into(),
    };
    let name = format!("{DRIVER}-probe-{}", digest(pool));
    let params = PostParams {
        dry_run: true,
        ..put_by("leafhost")
    };
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let probe = object(&name, &probe);
    let kept = answers::within(REQUEST, api.create(&params, &probe)).await;
    let kept = kept.map_err(|failure| match failure.kind {
        Kind::Undefined => ReadError {
            message: "this cluster has no resource.k8s.io/v1: Kubernetes 1.34 or newer is needed, or leafhost.dev/allocation: device-plugin".to_owned(),
            is_transient: false,
        },
        _ => read_error(&failure, "allow the service account to create resourceslices"),
    })?;
    let device = slice(&kept).and_then(|slice| slice.devices.into_values().next());
    let device = device.unwrap_or_default();
    Ok(SliceFeatures {
        shares: device.shares.is_some(),
        taints: !device.taints.is_empty(),
    })
}

/// Converts a failure to an error of the ports of claims. `remedy` is for a missing right.
pub fn read_error(failure: &Failure, remedy: &str) -> ReadError {
    ReadError {
        message: match failure.kind {
            Kind::Denied => format!("{}; {remedy}", failure.message),
            _ => failure.describe(),
        },
        is_transient: !matches!(failure.kind, Kind::Denied | Kind::Refused | Kind::Undefined),
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::attribute::{Attributes, Capacities};

    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        let attributes = Attributes::from([
            ("model".to_owned(), AttributeValue::String("x".to_owned())),
            ("cores".to_owned(), AttributeValue::Int(8)),
            ("ecc".to_owned(), AttributeValue::Bool(false)),
            (
                "driver".to_owned(),
                AttributeValue::Version("1.2.3".to_owned()),
            ),
        ]);
        let device = SliceDevice {
            attributes,
            capacity: Capacities::from([("memory".to_owned(), "8000000000n".to_owned())]),
            shares: None,
            taints: BTreeSet::new(),
        };
        let shared = SliceDevice {
            shares: Some(5),
            taints: [false, true]
                .map(|evicts| Taint {
                    key: format!("leafhost.dev/{evicts}"),
                    evicts,
                })
                .into(),
            ..device.clone()
        };
        let names = ["a".to_owned(), "b".to_owned()];
        for reach in [
            Reach::Node("node-a".to_owned()),
            Reach::Hostnames(names.into()),
        ] {
            let wanted = Slice {
                pool: "node-a".to_owned(),
                generation: 3,
                count: 2,
                reach,
                devices: [
                    ("one".to_owned(), device.clone()),
                    ("two".to_owned(), shared.clone()),
                ]
                .into(),
            };
            assert_eq!(slice(&object("leafhost.dev-1", &wanted)), Some(wanted));
        }
    }

    #[test]
    fn the_capacity_of_one_slot_has_no_step_which_the_api_server_would_refuse() {
        for (shares, step) in [(1, None), (2, Some(Quantity("1".to_owned())))] {
            let policy = slots(shares).request_policy.unwrap();
            assert_eq!(policy.valid_range.unwrap().step, step);
        }
    }

    #[test]
    fn slices_that_we_never_write_are_none_of_ours() {
        let mut foreign = ResourceSlice::default();
        foreign.spec.all_nodes = Some(true);
        assert_eq!(slice(&foreign), None);
        let mut other = selector(&BTreeSet::new());
        other.node_selector_terms.push(NodeSelectorTerm::default());
        foreign.spec.node_selector = Some(other);
        assert_eq!(slice(&foreign), None);
    }
}
