//! Allocate calls by the kubelet's stand-in, compared with writing the same bytes to the same folder in the same steps.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use leafhost_kubelet::proto::device_plugin::{AllocateRequest, ContainerAllocateRequest};
use leafhost_tests::agent::Home;
use leafhost_tests::kubelet::Blocking;
use tonic::transport::Endpoint;

use crate::disk::write;
use crate::statistics::{metric, ms, quantile};
use crate::table::Line;

/// Number of Instances, and slots of each; every slot is allocated once.
const INSTANCES: usize = 100;
const SLOTS: usize = 5;

/// Address of the agent's metrics.
const METRICS: &str = "127.0.0.1:9480";

fn configuration() -> String {
    let descriptions: Vec<String> = (0..INSTANCES).map(|n| format!("device-{n}")).collect();
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: bench}}\nspec:\n  capacity: {SLOTS}\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: '{{shared: false, descriptions: [{}]}}'\n",
        descriptions.join(", ")
    )
}

pub fn measure() -> Result<Vec<Line>> {
    let root = tempfile::tempdir()?;
    let kubelet = Blocking::start(root.path())?;
    let mut home = Home::new()?;
    home.serve_kubelet(root.path());
    home.add_handler("debug-echo")?;
    home.write("configurations/bench.yaml", configuration())?;
    home.start(&["--metrics-listen", METRICS])?;
    let stored = home.path().join("state/instances/default");
    // A separate runtime, because the stand-in writes its checkpoint meanwhile.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut asked, mut wrote) = (Vec::new(), Vec::new());
    for instance in home.instances(INSTANCES)? {
        let name = instance
            .pointer("/metadata/name")
            .and_then(|name| name.as_str())
            .context("an Instance has no name")?;
        let resource = format!("akri.sh/{name}");
        kubelet.wait(kubelet.until_capacity(&resource, SLOTS, SLOTS))?;
        let socket = kubelet
            .device_plugins()
            .join(format!("leafhost-{name}.sock"));
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
        let mut client = DevicePluginClient::new(runtime.block_on(endpoint.connect())?);
        for slot in 0..SLOTS {
            let request = AllocateRequest {
                container_requests: vec![ContainerAllocateRequest {
                    devices_ids: vec![format!("{name}-{slot}")],
                }],
            };
            let begun = Instant::now();
            let answer = runtime.block_on(client.allocate(request))?;
            asked.push(begun.elapsed());
            ensure!(answer.into_inner().container_responses.len() == 1);
            wrote.push(write(&stored.join(format!("{name}.yaml")))?);
        }
    }
    let seconds = metric(METRICS, "leafhost_allocation_seconds_sum")?;
    let count = metric(METRICS, "leafhost_allocation_seconds_count")?;
    let inside = Duration::from_secs_f64(seconds / count.max(1.0));
    asked.sort();
    wrote.sort();
    let over = quantile(&asked, 0.99).saturating_sub(quantile(&wrote, 0.99));
    Ok(vec![Line {
        what: format!(
            "Allocate, stand-in, file store, {} in a row: p99 over the write's p99",
            INSTANCES * SLOTS
        ),
        value: ms(over),
        target: "≤ 2 ms".into(),
        reference: format!(
            "Allocate p50 {} p99 {}, decided by the agent in {} on average; the same bytes written and synced p50 {} p99 {}",
            ms(quantile(&asked, 0.5)),
            ms(quantile(&asked, 0.99)),
            ms(inside),
            ms(quantile(&wrote, 0.5)),
            ms(quantile(&wrote, 0.99))
        ),
    }])
}
