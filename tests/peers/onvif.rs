//! Discovery of cameras: found as by Akri, distinguished from other devices, on every network, with the shipped grants.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::wait::eventually;
use leafhost_tests::{program, requirement};
use serde_json::{Value, json};

use crate::capture::{Capture, destinations, sent_to};
use crate::discovery::{Device, discover};

pub const UUID: &str = "5f5a69c2-e0ae-504f-829b-00fcfd5a0001";
pub const OTHER: &str = "5f5a69c2-e0ae-504f-829b-00fcfd5a0002";
const MAC: &str = "02:00:5e:10:00:0a";

/// Starts a camera of the crate `onvif-server`, on port 80.
pub fn camera(host: &Host, uuid: &str, more: &[&str]) -> Result<Peer> {
    let mut command = peer::rust(host, "leafhost-camera")?;
    command
        .args(["--address", &host.address()?.to_string()])
        .args(["--uuid", uuid])
        .args(more);
    if !more.contains(&"--mac") {
        command.args(["--mac", MAC]);
    }
    Peer::start(command)
}

/// Starts a camera that follows WS-Discovery strictly, on port 80.
pub fn strict_camera(host: &Host, uuid: &str, more: &[&str]) -> Result<Peer> {
    let mut command = peer::python(host, "strict_camera")?;
    command
        .args(["--address", &host.address()?.to_string()])
        .args(["--uuid", uuid])
        .args(more);
    Peer::start(command)
}

/// Starts a fake Windows computer (wsdd) and waits until `other` has seen it.
pub fn windows_computer(host: &Host, other: &Host) -> Result<Peer> {
    // wsdd reads no input, and must still end when its input ends.
    let mut command = host.command("/bin/sh");
    command.args(["-c", "wsdd --ipv4only & cat >/dev/null; kill $!; wait"]);
    let peer = Peer::begin(command)?;
    let address = host.address()?.to_string();
    eventually("wsdd answers what a Windows computer asks", || {
        let out = program::finish(peer::python(other, "probe")?)?.good()?;
        ensure!(out.contains(&format!("\"{address}\"")), "{out}");
        Ok(())
    })?;
    Ok(peer)
}

fn url(host: &Host) -> Result<String> {
    Ok(format!("http://{}/onvif/device_service", host.address()?))
}

/// Returns the URL of the crate's camera, which always includes the port.
fn url_of_crate(host: &Host) -> Result<String> {
    Ok(format!(
        "http://{}:80/onvif/device_service",
        host.address()?
    ))
}

/// Returns the attributes that onvif-zeep reads from the camera.
fn read_by_zeep(from: &Host, camera: &Host, credentials: &[&str]) -> Result<Value> {
    let mut command = peer::python(from, "zeep_reader")?;
    command
        .args([&camera.address()?.to_string(), "80"])
        .args(credentials);
    let out = program::finish(command)?.good()?;
    serde_json::from_str(&out).with_context(|| format!("{out:?} is no JSON"))
}

/// Returns the device's attributes in the form of zeep's result.
fn told(device: Device<'_>) -> Value {
    json!({
        "manufacturer": device.attribute("manufacturer"),
        "model": device.attribute("model"),
        "firmware": device.attribute("firmware"),
        "serial": device.attribute("serial"),
        "macs": device.properties().get("ONVIF_DEVICE_MAC_ADDRESS").into_iter().collect::<Vec<_>>(),
    })
}

fn without_scopes(mut zeep: Value) -> Value {
    if let Some(all) = zeep.as_object_mut() {
        all.remove("scopes");
    }
    zeep
}

#[test]
fn a_camera_has_akris_id_and_properties_and_the_facts_that_zeep_reads() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("camera")?);
    let _camera = camera(&host, UUID, &["--manufacturer", "Müller & Söhne"])?;
    let found = discover(&client, "onvif", "{}", &["--explain"])?;
    let device = found.device()?;
    let (url, address) = (url_of_crate(&host)?, host.address()?.to_string());
    assert_eq!(device.text("/id"), Some(&*format!("{url}-{UUID}")));
    assert_eq!(
        device.properties(),
        BTreeMap::from([
            ("ONVIF_DEVICE_SERVICE_URL", &*url),
            ("ONVIF_DEVICE_UUID", UUID),
            ("ONVIF_DEVICE_IP_ADDRESS", &*address),
            ("ONVIF_DEVICE_MAC_ADDRESS", MAC),
        ])
    );
    assert_eq!(device.0.get("shared"), Some(&json!(true)), "{device:?}");
    let zeep = read_by_zeep(&client, &host, &[])?;
    assert_eq!(told(device), without_scopes(zeep));
    assert_eq!(device.attribute("manufacturer"), Some("Müller & Söhne"));
    assert_eq!(device.attribute("name"), Some("Front door"));
    assert_eq!(device.has("profile_streaming"), Some(true));
    Ok(())
}

#[test]
fn each_video_source_of_a_recorder_is_a_device() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("recorder")?);
    let _camera = camera(&host, UUID, &["--channels", "2"])?;
    let found = discover(&client, "onvif", "channels: devices", &["--explain"])?;
    let (url, address) = (url_of_crate(&host)?, host.address()?);
    let id = |n: u8| format!("{url}-{UUID}#VideoSource=source{n}");
    assert_eq!(found.ids(), [id(1), id(2)], "{found:?}");
    for n in [1, 2] {
        let id = id(n);
        let device = found.device_at(&id)?;
        let stream = format!("rtsp://{address}:554/profile{n}");
        assert_eq!(
            device.properties().get("ONVIF_DEVICE_STREAM_URI"),
            Some(&&*stream),
            "{found:?}"
        );
    }
    Ok(())
}

#[test]
fn a_password_gives_more_facts_and_is_never_sent() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("camera")?);
    let password = "correct-horse-7";
    let _camera = camera(&host, UUID, &["--user", "admin", "--password", password])?;
    let capture = Capture::start_for(&client, &[password])?;
    let with = |password: &str| {
        let property = format!("password_default={password}");
        let more = [
            "--property",
            "username_default=admin",
            "--property",
            &*property,
        ];
        discover(
            &client,
            "onvif",
            "{}",
            &[&more[..], &["--explain"]].concat(),
        )
    };
    for found in [
        discover(&client, "onvif", "{}", &["--explain"])?,
        with("wrong")?,
    ] {
        let device = found.device()?;
        assert_eq!(device.attribute("manufacturer"), None, "{found:?}");
        assert_eq!(
            device.properties().get("ONVIF_DEVICE_MAC_ADDRESS"),
            None,
            "{found:?}"
        );
        let skipped = found.skipped(&host.address()?.to_string());
        let says_why = |(_, reason): &(&str, &str)| reason.contains("credentials");
        assert!(skipped.iter().any(says_why), "{found:?}");
    }
    let found = with(password)?;
    let zeep = read_by_zeep(&client, &host, &["admin", password])?;
    assert_eq!(told(found.device()?), without_scopes(zeep), "{found:?}");
    let flows = capture.end()?;
    assert!(flows.iter().any(|flow| flow.port == 80), "{flows:?}");
    assert!(flows.iter().all(|flow| flow.texts.is_empty()), "{flows:?}");
    Ok(())
}

#[test]
fn a_strict_camera_is_one_device_and_a_windows_computer_is_none() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let (strict, windows) = (lan.host("strict")?, lan.host("windows")?);
    let _camera = strict_camera(&strict, UUID, &[])?;
    let _windows = windows_computer(&windows, &client)?;
    let found = discover(&client, "onvif", "{}", &["--explain"])?;
    assert_eq!(
        found.ids(),
        [format!("{}-{UUID}", url(&strict)?)],
        "{found:?}"
    );
    let device = found.device()?;
    assert_eq!(device.attribute("manufacturer"), Some("Strict & Sons"));
    // The camera does not have this operation.
    assert_eq!(device.properties().get("ONVIF_DEVICE_MAC_ADDRESS"), None);
    Ok(())
}

#[test]
fn a_host_with_two_lans_finds_the_camera_on_each() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::with_bridges(2)?;
    let client = lan.host_on("client", &[0, 1])?;
    let (one, two) = (lan.host_on("one", &[0])?, lan.host_on("two", &[1])?);
    let _cameras = [camera(&one, UUID, &[])?, camera(&two, OTHER, &[])?];
    let capture = Capture::start(&client)?;
    let found = discover(&client, "onvif", "{}", &["--explain"])?;
    let expected = [
        format!("{}-{UUID}", url_of_crate(&one)?),
        format!("{}-{OTHER}", url_of_crate(&two)?),
    ];
    assert_eq!(found.ids(), expected, "{found:?}");
    let flows = capture.end()?;
    let (v4, v6) = (
        sent_to(&flows, "239.255.255.250", 3702),
        sent_to(&flows, "ff02::c", 3702),
    );
    assert!(v4 > 0 && v4 % 2 == 0 && v6 > 0 && v6 % 2 == 0, "{flows:?}");
    Ok(())
}

#[test]
fn an_ipv6_only_camera_is_found() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("camera")?);
    let address = host.address_v6(0)?.to_string();
    let mut command = peer::rust(&host, "leafhost-cameras")?;
    command.args(["--address", &address, "--count", "1"]);
    let _camera = Peer::start(command)?;
    let found = discover(&client, "onvif", "{}", &["--explain"])?;
    let device = found.device()?;
    let url = format!("http://[{address}]:10000/onvif/device_service");
    assert_eq!(
        device.properties().get("ONVIF_DEVICE_SERVICE_URL"),
        Some(&&*url)
    );
    assert_eq!(device.attribute("manufacturer"), Some("Crowd"));
    Ok(())
}

#[test]
fn cameras_that_answer_byte_by_byte_delay_no_other() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("crowd")?);
    let address = host.address()?.to_string();
    let mut command = peer::rust(&host, "leafhost-cameras")?;
    command.args(["--address", &address, "--count", "60", "--dripping", "30"]);
    let _cameras = Peer::start(command)?;
    let found = discover(&client, "onvif", "{}", &["--explain"])?;
    let good = found
        .devices()
        .into_iter()
        .filter(|device| Device(device).attribute("manufacturer") == Some("Crowd"));
    assert_eq!((good.count(), found.ids().len()), (30, 30), "{found:?}");
    Ok(())
}

#[test]
fn a_filtered_camera_is_explained_with_the_filter_and_the_value() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, kept, dropped) = (lan.host("client")?, lan.host("kept")?, lan.host("dropped")?);
    let _cameras = [
        camera(&kept, UUID, &["--mac", "02:00:5e:10:00:0b"])?,
        strict_camera(&dropped, OTHER, &[])?,
    ];
    let address = dropped.address()?.to_string();
    for (rule, filter, value) in [
        (
            "ipAddresses",
            format!("{{action: Include, items: ['{}']}}", kept.address()?),
            &*address,
        ),
        (
            "macAddresses",
            "{items: ['02:00:5E:10:00:0B']}".to_owned(),
            "does not report",
        ),
        (
            "uuids",
            format!("{{action: Exclude, items: ['{}']}}", OTHER.to_uppercase()),
            OTHER,
        ),
        (
            "scopes",
            "{action: Exclude, items: ['onvif://www.onvif.org/name/Strict%20One']}".to_owned(),
            "Strict%20One",
        ),
    ] {
        let details = format!("{rule}: {filter}\n");
        let found = discover(&client, "onvif", &details, &["--explain"])?;
        let expected = [format!("{}-{UUID}", url_of_crate(&kept)?)];
        assert_eq!(found.ids(), expected, "{details}{found:?}");
        let skipped = found.skipped(&address);
        let value = value.to_lowercase();
        assert!(
            skipped
                .iter()
                .any(|(by, why)| *by == rule && why.to_lowercase().contains(&value)),
            "{details}{skipped:?}\n{found:?}"
        );
    }
    Ok(())
}

#[test]
fn only_probes_and_requests_to_granted_cameras_leave_the_host() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, good, liar) = (lan.host("client")?, lan.host("good")?, lan.host("liar")?);
    let _good = camera(&good, UUID, &[])?;
    let elsewhere = [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1/onvif/device_service",
        "http://10.1.2.3/onvif/device_service",
        "http://[::ffff:169.254.169.254]/onvif/device_service",
        "http://[fe80::1]/onvif/device_service",
        "http://name.example.com/onvif/device_service",
    ];
    let mut neighbours = vec![good.address()?.to_string(), liar.address()?.to_string()];
    let mut liars = Vec::new();
    for (number, xaddr) in elsewhere.iter().enumerate() {
        // Each host announces one address under its own reference.
        let host = lan.host(&format!("liar{number}"))?;
        let uuid = format!("5f5a69c2-e0ae-504f-829b-00fcfd5b000{number}");
        liars.push(strict_camera(&host, &uuid, &["--xaddr", xaddr])?);
        neighbours.push(host.address()?.to_string());
    }
    // One host announces all of them.
    let all: Vec<&str> = elsewhere
        .iter()
        .flat_map(|xaddr| ["--xaddr", xaddr])
        .collect();
    liars.push(strict_camera(&liar, OTHER, &all)?);

    let flow = |protocol: &str, to: &str, port| (protocol.to_owned(), to.to_owned(), port);
    let probes = [
        flow("udp", "239.255.255.250", 3702),
        flow("udp", "ff02::c", 3702),
    ];
    let good = good.address()?.to_string();
    for (details, answering) in [
        ("leafhost.dev/xaddrs: all", vec![&good]),
        // The sender's address is asked after the announced ones.
        ("{}", neighbours.iter().collect()),
    ] {
        let capture = Capture::start(&client)?;
        let found = discover(&client, "onvif", details, &["--explain"])?;
        let asked = destinations(&capture.end()?, &neighbours);
        let allowed: BTreeSet<_> = answering
            .iter()
            .map(|to| flow("tcp", to, 80))
            .chain(probes.clone())
            .collect();
        assert!(asked.is_subset(&allowed), "{details}: {asked:?} {found:?}");
        let mut always = BTreeSet::from(probes.clone());
        always.insert(flow("tcp", &good, 80));
        assert!(asked.is_superset(&always), "{details}: {asked:?} {found:?}");
        for id in found.ids() {
            let is_at_sender = |to: &&String| id.starts_with(&format!("http://{to}"));
            assert!(
                answering.iter().any(|to| is_at_sender(to)),
                "{details}: {found:?}"
            );
        }
        // Each address is explained.
        for xaddr in elsewhere {
            let named = found.0.to_string().contains(xaddr);
            assert!(named, "{details}: {xaddr} is not named: {:#}", found.0);
        }
    }
    Ok(())
}
