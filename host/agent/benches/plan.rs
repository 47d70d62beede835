//! Benchmarks a plan for devices that are all new, and for unchanged devices. Throughput is devices a second, so a cost that grows faster
//! than the number of devices shows as a falling number.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leafhost_agent::plan::{Reservations, plan};
use leafhost_core::device::Device;
use leafhost_core::device_view::{ConfigurationDevices, DeviceSnapshot, DeviceView};
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::presence::Absent;
use leafhost_fakes::configured_as;

const NODE: &str = "node-a";

fn snapshot(devices: usize) -> DeviceSnapshot {
    let configured = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cameras"},
        "spec": {"discoveryHandler": {"name": "bench"}, "capacity": 2, "brokerProperties": {"GREETING": "hello"}},
    }));
    let key = configured.configuration.key.clone();
    let views = (0..devices).map(|number| {
        let mut device = Device::new(format!("/devices/bench/{number}"), false);
        device.properties =
            BTreeMap::from([("BENCH_NODE".to_owned(), format!("/dev/bench{number}"))]);
        let view = DeviceView {
            device: Some(Arc::new(device.clone())),
            missing_since: None,
        };
        (device.key(), view)
    });
    let devices = ConfigurationDevices {
        configured: Arc::new(configured),
        devices: views.collect(),
        absent: Absent::GONE,
    };
    DeviceSnapshot {
        read: true,
        absent: Absent::GONE,
        configurations: BTreeMap::from([(key, Arc::new(devices))]),
        ..DeviceSnapshot::default()
    }
}

fn created(changes: Vec<Change>) -> InstanceSet {
    let instances = changes.into_iter().filter_map(|change| match change {
        Change::Create(instance) => Some((instance.key(), Arc::new(*instance))),
        Change::Update { .. } | Change::Delete { .. } => None,
    });
    InstanceSet::read(instances.collect())
}

fn plans(criterion: &mut Criterion) {
    let none = Reservations::default();
    let mut group = criterion.benchmark_group("plan");
    for devices in [10, 100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(devices));
        let wanted = snapshot(usize::try_from(devices).unwrap());
        let nothing = InstanceSet::read(BTreeMap::new());
        group.bench_with_input(
            BenchmarkId::new("all new", devices),
            &wanted,
            |bencher, wanted| {
                bencher.iter(|| plan(NODE, wanted, &nothing, &none, false));
            },
        );
        let there = created(plan(NODE, &wanted, &nothing, &none, false).changes);
        assert_eq!(
            plan(NODE, &wanted, &there, &none, false).changes,
            Vec::new(),
            "an unchanged world writes nothing"
        );
        group.bench_with_input(
            BenchmarkId::new("unchanged", devices),
            &wanted,
            |bencher, wanted| {
                bencher.iter(|| plan(NODE, wanted, &there, &none, false));
            },
        );
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
