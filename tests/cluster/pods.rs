//! The cluster itself: pods run on its nodes and can be read and entered; a node survives what tests do to it.

use anyhow::Result;
use leafhost_tests::cluster::{self, Container, Pod};

#[test]
fn a_pod_runs_on_each_of_two_nodes() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let space = cluster.namespace("pods")?;
    for node in cluster.nodes() {
        let pod = Pod::new(node.name(), &[Container::new("main")]).on(node);
        let running = space.run(&pod)?;
        assert_eq!(
            running.pointer("/spec/nodeName"),
            Some(&node.name().into()),
            "{running:#}"
        );
        space.wait_logs(node.name(), "main", &format!("HOSTNAME={}\n", node.name()))?;
        assert_eq!(space.exec(node.name(), "main", "cat /proc/1/comm")?, "sh\n");
    }
    Ok(())
}
