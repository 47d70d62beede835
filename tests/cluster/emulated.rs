//! The oldest Kubernetes that still gets fixes, as far as an API server of today emulates it.

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{Cluster, Setup};
use leafhost_tests::requirement;

use crate::away::Own;
use crate::{attacks, installed};

const VERSION: &str = "1.35";

#[test]
fn an_api_server_of_1_35_enforces_the_policies_and_the_chart_serves_pods_there() -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start_with(&Setup {
        nodes: 2,
        emulated: Some(VERSION),
        ..Setup::default()
    })?;
    let cluster = own.0;
    let version = cluster.get("/version")?;
    let minor = VERSION.split_once('.').map(|(_, minor)| minor);
    ensure!(version["emulationMinor"].as_str() == minor, "{version:#}");
    attacks::check(cluster)?;
    installed::check(cluster)
}
