//! Older versions of Kubernetes that still get fixes: a current API server emulates them, and the kubelet of the oldest is a real one.

use std::process::Command;

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{Cluster, OLDER_KUBELETS, Setup};
use leafhost_tests::requirement;

use crate::away::Own;
use crate::{attacks, claims, installed};

/// Test modules that a kubelet can affect and that use the shared cluster.
const OF_KUBELETS: [&str; 5] = [
    "allocation::",
    "containers::",
    "health::",
    "pods::",
    "restarts::",
];

#[test]
fn an_api_server_of_1_35_enforces_the_policies_and_the_chart_serves_pods_there() -> Result<()> {
    // This version knows no shares: each slot is a device.
    emulate("1.35", &["1"; 5])
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_an_api_server_of_1_36_enforces_the_policies_and_the_chart_serves_pods_there() -> Result<()>
{
    emulate("1.36", &["5"])
}

/// Runs tests against an API server that emulates a version; `slots` are the slot counts of the devices of a camera that five pods may share.
fn emulate(version: &'static str, slots: &[&str]) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start_with(&Setup {
        nodes: 2,
        emulated: Some(version),
        ..Setup::default()
    })?;
    let cluster = own.0;
    let found = cluster.get("/version")?;
    let minor = version.split_once('.').map(|(_, minor)| minor);
    ensure!(found["emulationMinor"].as_str() == minor, "{found:#}");
    attacks::check(cluster)?;
    claims::share(cluster, slots)?;
    installed::check(cluster)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_kubelets_of_1_35_give_pods_their_devices() -> Result<()> {
    if requirement::lacks(Cluster::missing_older_kubelet())? {
        return Ok(());
    }
    let mut tests = Command::new(std::env::current_exe()?);
    tests.env(OLDER_KUBELETS, "1").args(OF_KUBELETS);
    let ended = tests.status()?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}
