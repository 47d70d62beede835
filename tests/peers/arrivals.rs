//! Reaction of an agent to Hello, Bye and network changes; it ignores a false Bye.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::wait::within;
use leafhost_tests::{peer, requirement};
use serde_json::Value;

use crate::capture::{Capture, sent_to};
use crate::discovery::discover;
use crate::onvif::{OTHER, UUID, camera, strict_camera, windows_computer};

const CAMERAS: &str = "apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cameras
spec:
  capacity: 2
  discoveryHandler:
    name: onvif
    discoveryDetails: |
      discoveryTimeoutSeconds: 1
";

/// Limit for a reaction: well before the next probe, which comes ten seconds after the last one.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Starts an agent on a host that finds `found` cameras in its first scan.
pub fn agent(host: &Host, name: &str, found: usize) -> Result<Home> {
    let mut home = Home::on_host(host, name)?;
    home.add_handler("onvif")?;
    home.write("configurations/cameras.yaml", CAMERAS)?;
    home.start(&[])?;
    home.until("the first scan", |status| {
        status.pointer("/handlers/0/status").and_then(Value::as_str) == Some("Active")
    })?;
    home.instances(found)?;
    Ok(home)
}

/// Waits for `count` Instances, for less than the time to the next probe.
fn soon(home: &Home, what: &str, count: usize) -> Result<()> {
    within(AT_ONCE, what, || {
        let status = home.status()?;
        let instances = status.pointer("/instances").and_then(Value::as_array);
        let instances = instances.context("no instances")?.len();
        ensure!(instances == count, "{instances} Instances, {status:#}");
        Ok(())
    })
    .with_context(|| home.log())
}

#[test]
fn a_hello_creates_an_instance_and_only_a_true_bye_withdraws_it() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, true_host, false_host) = (lan.host("client")?, lan.host("a")?, lan.host("b")?);
    let mut says_true = strict_camera(&true_host, UUID, &["--silent"])?;
    let mut says_false = strict_camera(&false_host, OTHER, &["--silent"])?;
    let home = agent(&client, "node-a", 0)?;
    says_true.tell("hello")?;
    says_false.tell("hello")?;
    soon(&home, "Instances after the hellos", 2)?;
    // This host sends Hello, too.
    let _windows = windows_computer(&lan.host("windows")?, &true_host)?;
    home.instances(2)?;

    says_false.tell("bye")?;
    // The handler has called the camera.
    assert_eq!(says_false.ask("greeted")?, "greeted");
    says_true.tell("off")?;
    says_true.tell("bye")?;
    soon(&home, "one Instance less after the true farewell", 1)?;
    let status = home.status()?;
    let left = status.pointer("/instances/0/spec/brokerProperties/ONVIF_DEVICE_UUID");
    assert_eq!(left.and_then(Value::as_str), Some(OTHER), "{status:#}");
    Ok(())
}

#[test]
fn a_camera_that_answers_probes_but_refuses_requests_is_unhealthy_within_half_a_minute()
-> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("camera")?);
    let mut camera = strict_camera(&host, UUID, &[])?;
    let home = agent(&client, "node-a", 1)?;
    camera.tell("off")?;
    within(Duration::from_secs(30), "an unhealthy Instance", || {
        let status = home.status()?;
        let node = status.pointer("/instances/0/status/nodes/node-a");
        let node = node.map(Value::to_string).unwrap_or_default();
        let words =
            "it answers probes, but does not answer GetSystemDateAndTime: connection refused";
        ensure!(node.contains(words), "{status:#}");
        Ok(())
    })
    .with_context(|| home.log())?;
    home.instances(1)?;
    Ok(())
}

#[test]
fn a_connected_network_is_probed_at_once() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::with_bridges(2)?;
    let client = lan.host_on("client", &[0, 1])?;
    let host = lan.host_on("camera", &[1])?;
    lan.disconnect(&client, 1)?;
    let _camera = camera(&host, UUID, &[])?;
    let home = agent(&client, "node-a", 0)?;
    lan.connect(&client, 1)?;
    soon(&home, "an Instance after the plug", 1)
}

#[test]
fn three_idle_agents_send_only_their_periodic_probes() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let host = lan.host("camera")?;
    let _camera = camera(&host, UUID, &[])?;
    let clients = ["a", "b", "c"].map(|name| lan.host(name));
    let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;

    let groups = ["239.255.255.250", "ff02::c"];
    let first = clients.first().context("no client")?;
    let capture = Capture::start(first)?;
    discover(first, "onvif", "{}", &[])?;
    let flows = capture.end()?;
    let round = groups.map(|group| sent_to(&flows, group, 3702));
    assert!(round.iter().all(|sent| *sent > 0), "{flows:?}");

    let homes = clients
        .iter()
        .zip(["node-a", "node-b", "node-c"])
        .map(|(client, name)| agent(client, name, 1))
        .collect::<Result<Vec<_>>>()?;
    let captures = clients
        .iter()
        .map(Capture::start)
        .collect::<Result<Vec<_>>>()?;
    // A fixed observation time, not a wait for a condition.
    std::thread::park_timeout(Duration::from_mins(1));
    for (capture, home) in captures.into_iter().zip(&homes) {
        let flows = capture.end()?;
        for (group, round) in groups.iter().zip(round) {
            let sent = sent_to(&flows, group, 3702);
            // Probes are ten seconds apart; the observation may begin and end within a round.
            let (least, most) = (round * 4, round * 7);
            assert!(
                (least..=most).contains(&sent),
                "{sent} to {group} where a round has {round}: {flows:?}\n{}",
                home.log()
            );
        }
    }
    Ok(())
}
