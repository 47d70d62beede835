//! Time from the end of a pod to the moment at which another node can allocate its slot.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Pod};
use leafhost_tests::stand_in_node::{StandInNode, configure, name_of, until_seen};
use leafhost_tests::wait::{TIMEOUT, pass};

use crate::joined::agent;
use crate::statistics::{ms, quantile};
use crate::table::Line;

const TIMES: usize = 10;
/// Lifetime of a pod: an agent frees no slot that was allocated less than five seconds ago, because the kubelet may not have recorded it.
const LIVED: Duration = Duration::from_secs(6);

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let node = cluster.nodes().first().context("no node")?;
    let mut home = agent(cluster, node, &["debug-echo"])?;
    home.start(&[])?;
    let space = cluster.namespace("freed")?;
    let mut other = StandInNode::new(cluster, runtime.handle(), "freed-other")?;
    other.home.start(&[])?;
    configure(cluster, space.name(), "freed", 1, &["device".to_owned()])?;
    let found = until_seen(cluster.api(), space.name(), 1, 2)?;
    let resource = format!("akri.sh/{}", name_of(found.first().context("no Instance")?));
    let (api, pods) = (cluster.api(), space.collection("pods"));
    let (mut after_end, mut after_request) = (Vec::new(), Vec::new());
    for number in 0..TIMES {
        runtime.block_on(other.until_healthy(&resource, 1))?;
        node.wait_allocatable(&resource, 1)?;
        let name = format!("pod-{number}");
        space.run(&Pod::new(&name, &[Container::new("main").device(&resource, 1)]).on(node))?;
        runtime.block_on(other.until_healthy(&resource, 0))?;
        pass(LIVED)?;
        let list = api.get(&pods)?;
        let version = list
            .pointer("/metadata/resourceVersion")
            .and_then(serde_json::Value::as_str);
        let mut version = version.context("no version")?.to_owned();
        let requested = Instant::now();
        api.delete(&format!("{pods}/{name}"))?;
        let (gone, free) = std::thread::scope(|scope| {
            let gone = scope.spawn(|| {
                let mut gone = None;
                while gone.is_none() {
                    ensure!(requested.elapsed() < TIMEOUT, "{name} is still there");
                    api.changes(&pods, &mut version, 1, |kind, _| {
                        if kind == "DELETED" {
                            gone = Some(Instant::now());
                        }
                    })?;
                }
                gone.context("it is there")
            });
            let free = runtime
                .block_on(other.until_healthy(&resource, 1))
                .map(|()| Instant::now());
            (
                gone.join()
                    .map_err(|_| anyhow::anyhow!("the watch panicked")),
                free,
            )
        });
        let (gone, free) = (gone??, free?);
        after_end.push(free.saturating_duration_since(gone));
        after_request.push(free - requested);
    }
    after_end.sort();
    after_request.sort();
    Ok(vec![Line {
        what: format!(
            "pod gone from the API server → its slot healthy in another node's list, worst of {TIMES}"
        ),
        value: ms(quantile(&after_end, 1.0)),
        target: "≤ 2 s".into(),
        reference: format!(
            "median {}; after the request to delete it worst {}, median {}",
            ms(quantile(&after_end, 0.5)),
            ms(quantile(&after_request, 1.0)),
            ms(quantile(&after_request, 0.5))
        ),
    }])
}
