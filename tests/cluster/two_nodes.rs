//! Two nodes, each with its own agent and devices.

use anyhow::Result;
use leafhost_tests::cluster::{self, Container, Pod};

use crate::device::Site;

#[test]
fn two_agents_give_the_devices_of_their_own_nodes() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(2)? {
        let mut site = Site::on(cluster, taken)?;
        site.home.add_handler("debug-echo")?;
        let node = site.node.name();
        site.configure(
            "nodes",
            1,
            &[&format!("{node}-one"), &format!("{node}-two")],
        )?;
        site.home.start(&[])?;
        sites.push(site);
    }
    let spaces = sites
        .iter()
        .map(|site| site.namespace("nodes"))
        .collect::<Result<Vec<_>>>()?;
    for (site, space) in sites.iter().zip(&spaces) {
        site.until_amounts("akri.sh/nodes", 2, 2)?;
        for name in ["a", "b"] {
            let main = Container::new("main").device("akri.sh/nodes", 1);
            space.create(&Pod::new(name, &[main]).on(site.node))?;
        }
    }
    for (site, space) in sites.iter().zip(&spaces) {
        for name in ["a", "b"] {
            space.wait_running(name)?;
            let own = format!("DEBUG_ECHO_DESCRIPTION={}-", site.node.name());
            space.wait_logs(name, "main", &own)?;
        }
        assert_eq!(site.until_held_by(space, &["a", "b"])?.len(), 2);
    }
    // A fifth pod finds no device on either node and starts when another one ends.
    let [(first, space), ..] = &*sites.iter().zip(&spaces).collect::<Vec<_>>() else {
        return Ok(());
    };
    let main = Container::new("main").device("akri.sh/nodes", 1);
    space.create(&Pod::new("fifth", &[main]))?;
    space.wait_unschedulable("fifth")?;
    space.delete("a")?;
    let pod = space.wait_running("fifth")?;
    assert_eq!(
        pod.pointer("/spec/nodeName"),
        Some(&first.node.name().into())
    );
    first.until_held_by(space, &["b", "fifth"])?;
    Ok(())
}
