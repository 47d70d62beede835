//! Allocate calls by the kubelet's stand-in to an agent in a cluster, compared with patching the same object.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use leafhost_kubelet::proto::device_plugin::{AllocateRequest, ContainerAllocateRequest};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::Cluster;
use leafhost_tests::kubelet::Blocking;
use serde_json::Value;
use tonic::transport::Endpoint;

use crate::joined::{client, collection, configure, instances, until_instances};
use crate::statistics::{metric, ms, quantile};
use crate::table::Line;

/// Number of Instances, and slots of each; every slot is allocated once.
const INSTANCES: usize = 100;
const SLOTS: usize = 5;

/// Address of the agent's metrics.
const METRICS: &str = "127.0.0.1:9480";

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let root = tempfile::tempdir()?;
    let kubelet = Blocking::start(root.path())?;
    let mut home = Home::new()?;
    home.serve_kubelet(root.path());
    home.add_handler("debug-echo")?;
    home.join(cluster.kubeconfig());
    home.start(&["--metrics-listen", METRICS])?;
    let space = cluster.namespace("claims")?;
    let descriptions: Vec<String> = (0..INSTANCES).map(|n| format!("device-{n}")).collect();
    let details = format!(
        "{{shared: false, descriptions: [{}]}}",
        descriptions.join(", ")
    );
    configure(cluster, &space, "claims", "debugEcho", &details)?;
    until_instances(cluster, &space, INSTANCES, &home)?;

    // A separate runtime, because the stand-in writes its checkpoint meanwhile.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = runtime.block_on(client(cluster))?;
    let (mut asked, mut patched) = (Vec::new(), Vec::new());
    for instance in instances(cluster, &space)? {
        let name = instance.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.context("an Instance has no name")?;
        let resource = format!("akri.sh/{name}");
        kubelet.wait(kubelet.until_capacity(&resource, SLOTS, SLOTS))?;
        let socket = kubelet
            .device_plugins()
            .join(format!("leafhost-{name}.sock"));
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
        let mut plugin = DevicePluginClient::new(runtime.block_on(endpoint.connect())?);
        let path = format!("{}/{name}", collection(&space, "instances"));
        for slot in 0..SLOTS {
            let request = AllocateRequest {
                container_requests: vec![ContainerAllocateRequest {
                    devices_ids: vec![format!("{name}-{slot}")],
                }],
            };
            let begun = Instant::now();
            let answer = runtime.block_on(plugin.allocate(request))?;
            asked.push(begun.elapsed());
            ensure!(answer.into_inner().container_responses.len() == 1);
            patched.push(runtime.block_on(patch(&client, &path, slot))?);
        }
    }
    let seconds = metric(METRICS, "leafhost_allocation_seconds_sum")?;
    let count = metric(METRICS, "leafhost_allocation_seconds_count")?;
    let inside = Duration::from_secs_f64(seconds / count.max(1.0));
    asked.sort();
    patched.sort();
    let over = quantile(&asked, 0.99).saturating_sub(quantile(&patched, 0.99));
    Ok(vec![Line {
        what: format!(
            "Allocate, stand-in, {} in a row: p99 over the p99 of patching the same object",
            INSTANCES * SLOTS
        ),
        value: ms(over),
        target: "≤ 2 ms".into(),
        reference: format!(
            "Allocate p50 {} p99 {}, decided and written by the agent in {} on average; a JSON Patch p50 {} p99 {}",
            ms(quantile(&asked, 0.5)),
            ms(quantile(&asked, 0.99)),
            ms(inside),
            ms(quantile(&patched, 0.5)),
            ms(quantile(&patched, 0.99))
        ),
    }])
}

/// Measures a JSON Patch with a test, like that of a claim.
async fn patch(client: &kube::Client, path: &str, slot: usize) -> Result<Duration> {
    let field = "/spec/brokerProperties/bench";
    let steps = serde_json::json!([
        {"op": "test", "path": "/spec/capacity", "value": SLOTS},
        {"op": "add", "path": field, "value": slot.to_string()},
    ]);
    let request = http::Request::patch(path)
        .header("content-type", "application/json-patch+json")
        .body(serde_json::to_vec(&steps)?)?;
    let begun = Instant::now();
    let _: Value = client.request(request).await?;
    Ok(begun.elapsed())
}
