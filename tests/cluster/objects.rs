//! Agents whose Configurations and Instances are objects of the API server.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::eventually;

use crate::pair::{Pair, used};

#[test]
fn two_nodes_share_the_instances_of_a_configuration_and_their_pods_get_different_slots()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "shared", &[])?;
    let (space, devices) = (&pair.space, ["one", "two"]);
    let applied = Instant::now();
    pair.configure(2, &devices, "{MODE: fast}")?;
    let found = pair.until("both nodes are in both Instances", &devices, |_| true)?;
    println!(
        "both nodes are in both Instances after {:?}",
        applied.elapsed()
    );
    for instance in found.values() {
        assert_eq!(instance["spec"]["capacity"], 2);
        assert_eq!(
            instance["status"]["nodes"]
                .as_object()
                .map(serde_json::Map::len),
            Some(2)
        );
    }
    for site in &pair.sites {
        let name = site.node.name();
        site.until_amounts("akri.sh/shared", 2, 2)?;
        let pod = format!("on-{name}");
        let main = Container::new("main").device("akri.sh/shared", 2);
        // One after the other: of two pods that race for a slot one would fail.
        space.run(&Pod::new(&pod, &[main]).on(site.node))?;
        space.wait_logs(&pod, "main", "MODE=fast")?;
        space.wait_logs(&pod, "main", "DEBUG_ECHO_DESCRIPTION")?;
    }
    let mut holders: BTreeMap<String, usize> = BTreeMap::new();
    for instance in pair.instances()?.values() {
        for holder in used(instance).values() {
            let node = holder.rsplit(':').next().unwrap_or_default();
            *holders.entry(node.to_owned()).or_default() += 1;
        }
    }
    // Two Instances with two slots each: each pod has one slot of each.
    assert_eq!(
        holders,
        BTreeMap::from([("node-a".to_owned(), 2), ("node-b".to_owned(), 2)])
    );
    space.delete("on-node-a")?;
    let what = "the slots of a pod that has ended are free";
    pair.until(what, &devices, |one| used(one).len() == 1)?;
    space.delete("on-node-b")?;
    let delete = ["delete", "configuration", "shared"];
    cluster.kubectl(&[&delete[..], &["--namespace", space.name()]].concat())?;
    eventually("the Instances go with their Configuration", || {
        let left = pair.instances()?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })
}
