//! Instances of OPC UA servers that stop, return, or stay away.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::Lan;
use leafhost_tests::{peer, requirement};
use serde_json::{Value, json};

use crate::opcua::asyncua;

/// Grace of the devices: longer than a server takes to be missed, restarted and found again.
const GRACE: Duration = Duration::from_secs(40);

fn configuration(url: &str) -> String {
    format!(
        "apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: plcs
  annotations:
    leafhost.dev/grace: {}s
spec:
  capacity: 2
  discoveryHandler:
    name: opcua
    discoveryDetails: |
      opcuaDiscoveryMethod: {{standard: {{discoveryUrls: ['{url}']}}}}
      applicationTypes: [ClientAndServer]
",
        GRACE.as_secs()
    )
}

/// Returns true if the server answered the last call.
fn answered(status: &Value) -> Option<bool> {
    let skipped = status.pointer("/configurations/0/sessions/0/skipped")?;
    Some(skipped.as_array()?.is_empty())
}

fn only(home: &Home) -> Result<Value> {
    home.instances(1)?.pop().context("no Instance")
}

/// Returns the identity of an Instance and everything that a workload gets from it.
fn lasting(instance: &Value) -> [Option<&Value>; 4] {
    [
        "/metadata/name",
        "/metadata/uid",
        "/metadata/creationTimestamp",
        "/spec",
    ]
    .map(|pointer| instance.pointer(pointer))
}

#[test]
fn a_server_that_returns_keeps_its_instance_and_one_that_stays_away_is_withdrawn() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, plant) = (lan.host("client")?, lan.host("plant")?);
    let (server, url) = asyncua(&plant, "PLC", &[])?;
    let mut home = Home::on_host(&client, "node-a")?;
    home.add_handler("opcua")?;
    home.write("configurations/plcs.yaml", configuration(&url))?;
    home.start(&[])?;
    let instance = only(&home)?;
    // Akri derives the Instance's name from this URL.
    assert_eq!(url, "opc.tcp://192.168.70.11:4840/peer/");
    let of = |pointer| instance.pointer(pointer);
    assert_eq!(of("/metadata/name"), Some(&json!("plcs-af30a9")));
    assert_eq!(
        of("/spec/brokerProperties"),
        Some(&json!({ "OPCUA_DISCOVERY_URL": url }))
    );
    assert_eq!(of("/spec/shared"), Some(&json!(true)));
    assert!(of("/metadata/uid").is_some(), "{instance:#}");

    server.end()?;
    home.until("the server is missed", |status| {
        answered(status) == Some(false)
    })?;
    // Only its health changes.
    assert_eq!(lasting(&only(&home)?), lasting(&instance));
    let (server, _) = asyncua(&plant, "PLC", &[])?;
    home.until("it is back", |status| answered(status) == Some(true))?;
    assert_eq!(lasting(&only(&home)?), lasting(&instance), "it is the same");

    let gone = Instant::now();
    server.kill()?;
    home.until("the server is missed again", |status| {
        answered(status) == Some(false)
    })?;
    home.instances(0)?;
    assert!(
        gone.elapsed() >= GRACE,
        "withdrawn after {:?}",
        gone.elapsed()
    );
    Ok(())
}
