//! Hostile networks: harmful answers are explained and affect no other device, and floods neither withdraw nor hide
//! cameras.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::requirement;
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::arrivals::agent;
use crate::capture::{Capture, destinations};
use crate::discovery::discover;
use crate::onvif::{OTHER, UUID, camera, strict_camera};

/// Starts a hostile host. `elsewhere` is the target of its redirect; it sends Bye for camera `UUID`.
fn hostile(host: &Host, elsewhere: &Host) -> Result<Peer> {
    let mut command = peer::python(host, "hostile")?;
    command
        .args(["--address", &host.address()?.to_string()])
        .args(["--elsewhere", &elsewhere.address()?.to_string()])
        .args(["--victim", UUID]);
    Peer::start(command)
}

#[test]
fn every_harmful_answer_is_explained_and_delays_no_camera() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let (good, bad, elsewhere) = (lan.host("good")?, lan.host("bad")?, lan.host("elsewhere")?);
    let _good = camera(&good, UUID, &[])?;
    let mut harm = hostile(&bad, &elsewhere)?;
    let ports = harm.ask("ports")?;
    let address = bad.address()?.to_string();

    let capture = Capture::start(&client)?;
    let credentials = [
        "--property",
        "username_default=admin",
        "--property",
        "password_default=correct-horse-7",
        "--explain",
    ];
    let found = discover(&client, "onvif", "{}", &credentials)?;
    let flows = capture.end()?;
    let device = found.device()?;
    let properties = device.properties();
    assert_eq!(properties.get("ONVIF_DEVICE_UUID"), Some(&UUID));
    for (name, words) in [
        ("endless", "larger than"),
        ("headless", "headers"),
        ("interim", "1xx"),
        ("drip", "timed out"),
        ("headers", "256 headers"),
        ("large", "larger than"),
        ("deep", "64 deep"),
        ("deeper", "larger than"),
        ("attributes", "128 attributes"),
        ("laughs", "document type"),
        ("truncated", "cut off"),
        ("more", "closed"),
        ("huge", "length"),
        ("gzip", "no XML"),
        ("redirect", "redirect (307)"),
        ("refusing", "it refuses those given"),
        ("silent", "timed out"),
    ] {
        let port = ports
            .split(' ')
            .find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
            .with_context(|| format!("no {name} in {ports}"))?;
        let skipped = found.skipped(&format!("http://{address}:{port}/"));
        assert!(
            skipped
                .iter()
                .any(|(rule, reason)| *rule == "answer" && reason.contains(words)),
            "{name}: {skipped:?}"
        );
    }
    let to = elsewhere.address()?.to_string();
    let neighbours = [good.address()?.to_string(), address, to.clone()];
    let all = destinations(&flows, &neighbours);
    assert!(!all.iter().any(|(_, other, _)| *other == to), "{all:?}");
    Ok(())
}

#[test]
fn a_flood_withdraws_no_camera_and_a_new_one_is_found_soon_after() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let (known, new, bad) = (lan.host("known")?, lan.host("new")?, lan.host("bad")?);
    let _known = camera(&known, UUID, &[])?;
    let home = agent(&client, "node-a", 1)?;
    let mut harm = hostile(&bad, &known)?;
    harm.tell("flood")?;
    let _new = strict_camera(&new, OTHER, &[])?;

    let uuids = |status: &Value| -> Vec<String> {
        let instances = status.pointer("/instances").and_then(Value::as_array);
        let uuid = |one: &Value| {
            let uuid = one.pointer("/spec/brokerProperties/ONVIF_DEVICE_UUID")?;
            uuid.as_str().map(str::to_owned)
        };
        instances.into_iter().flatten().filter_map(uuid).collect()
    };
    let is_well = |status: &Value| -> Result<()> {
        let state = status.pointer("/handlers/0/status").and_then(Value::as_str);
        ensure!(state == Some("Active"), "{status:#}");
        ensure!(uuids(status).iter().any(|uuid| uuid == UUID), "{status:#}");
        Ok(())
    };
    // Three full scans and the time between.
    for _ in 0..30 {
        is_well(&home.status()?).with_context(|| home.log())?;
        // A fixed observation time, not a wait for a condition.
        std::thread::park_timeout(Duration::from_secs(1));
    }
    harm.tell("calm")?;
    // Time for three scans, the first of which still has to handle the flood.
    within(
        Duration::from_secs(40),
        "both cameras after the flood",
        || {
            let status = home.status()?;
            is_well(&status)?;
            let found = uuids(&status);
            ensure!(found.iter().any(|uuid| uuid == OTHER), "{status:#}");
            Ok(())
        },
    )
    .with_context(|| home.log())
}
