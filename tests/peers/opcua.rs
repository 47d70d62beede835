//! OPC UA servers: their properties, what discovery servers list, and which listed servers are devices.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::requirement;
use tempfile::TempDir;

use crate::capture::{Capture, destinations};
use crate::discovery::{Device, discover};

/// Starts a server of asyncua on port 4840; returns its URL.
pub fn asyncua(host: &Host, name: &str, more: &[&str]) -> Result<(Peer, String)> {
    let url = format!("opc.tcp://{}:4840/peer/", host.address()?);
    let uri = format!("urn:asyncua:{name}");
    let mut command = peer::python(host, "opcua_server")?;
    command
        .args(["--url", &url, "--uri", &uri, "--name", name])
        .args(more);
    Ok((Peer::start(command)?, url))
}

/// Starts a program of node-opcua.
fn node(host: &Host, folder: &Path, role: &str, port: u16, more: &[&str]) -> Result<Peer> {
    let folder = folder.join(format!("{role}-{port}-{}", host.address()?));
    std::fs::create_dir_all(&folder)?;
    let mut command = peer::node(host, "opcua")?;
    command
        .arg(role)
        .arg("--folder")
        .arg(folder)
        .args(["--port", &port.to_string()])
        .args(more);
    Peer::start(command)
}

fn lds(host: &Host, folder: &Path) -> Result<(Peer, String)> {
    let address = host.address()?.to_string();
    let peer = node(host, folder, "lds", 4840, &["--host", &address])?;
    Ok((peer, format!("opc.tcp://{address}:4840")))
}

fn details(urls: &[&str], more: &str) -> String {
    let urls = urls.join(", ");
    format!("opcuaDiscoveryMethod:\n  standard:\n    discoveryUrls: [{urls}]\n{more}")
}

#[test]
fn servers_in_python_and_rust_are_found_with_their_security() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let client = lan.host("client")?;
    let (secure, plain, rust) = (lan.host("secure")?, lan.host("plain")?, lan.host("rust")?);
    let (_one, secure) = asyncua(&secure, "Secure", &["--certificate"])?;
    let (_two, plain) = asyncua(&plain, "Plain", &[])?;
    let address = rust.address()?.to_string();
    let mut command = peer::rust(&rust, "leafhost-opcua-server")?;
    command.args(["--address", &address, "--name", "Rust", "--uri", "urn:rust"]);
    let _three = Peer::start(command)?;
    let rust = format!("opc.tcp://{address}:4840/");
    let nobody = "opc.tcp://192.168.70.250:4840/";

    // asyncua declares itself ClientAndServer.
    let details = details(&[nobody, &secure, &plain, &rust], "");
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    let mut expected = [&*secure, &plain, &rust];
    expected.sort_unstable();
    assert_eq!(found.ids(), expected, "{found:?}");
    for (url, name, none, secured) in [
        (&secure, "Secure", true, true),
        (&plain, "Plain", true, false),
        (&rust, "Rust", true, false),
    ] {
        let device = found.device_at(url)?;
        assert_eq!(
            device.properties(),
            BTreeMap::from([("OPCUA_DISCOVERY_URL", &**url)])
        );
        assert_eq!(device.attribute("applicationName"), Some(name), "{found:?}");
        assert_eq!(device.has("modeNone"), Some(none), "{found:?}");
        assert_eq!(device.has("modeSignAndEncrypt"), Some(secured), "{found:?}");
        assert_eq!(
            device.has("policyBasic256Sha256"),
            Some(secured),
            "{found:?}"
        );
        assert_eq!(device.has("tokenAnonymous"), Some(true), "{found:?}");
    }
    assert!(!found.skipped("192.168.70.250").is_empty(), "{found:?}");
    Ok(())
}

#[test]
fn akris_filters_of_types_and_names_apply_and_are_explained() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, python, rust) = (lan.host("client")?, lan.host("python")?, lan.host("rust")?);
    let (_python, python) = asyncua(&python, "Python", &[])?;
    let address = rust.address()?.to_string();
    let mut command = peer::rust(&rust, "leafhost-opcua-server")?;
    command.args(["--address", &address, "--name", "Rust", "--uri", "urn:rust"]);
    let _rust = Peer::start(command)?;
    let rust = format!("opc.tcp://{address}:4840/");

    let only_servers = details(&[&python, &rust], "applicationTypes: [Server]\n");
    let found = discover(&client, "opcua", &only_servers, &["--explain"])?;
    assert_eq!(found.ids(), [&*rust], "{found:?}");
    let rules: Vec<_> = found
        .skipped(&python)
        .into_iter()
        .map(|(rule, _)| rule)
        .collect();
    assert_eq!(rules, ["applicationTypes"], "{found:?}");

    let not_rust = details(
        &[&python, &rust],
        "applicationNames: {action: Exclude, items: [Rust]}\n",
    );
    let found = discover(&client, "opcua", &not_rust, &["--explain"])?;
    assert_eq!(found.ids(), [&*python], "{found:?}");
    let rules: Vec<_> = found
        .skipped(&rust)
        .into_iter()
        .map(|(rule, _)| rule)
        .collect();
    assert_eq!(rules, ["applicationNames"], "{found:?}");
    Ok(())
}

#[test]
fn a_listed_server_is_a_device_only_if_it_answers() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let lan = Lan::new()?;
    let (client, central) = (lan.host("client")?, lan.host("central")?);
    let (alive, killed) = (lan.host("alive")?, lan.host("killed")?);
    let (_lds, lds) = lds(&central, folder.path())?;
    let server = |host: &Host, name: &str| {
        let (address, uri) = (host.address()?.to_string(), format!("urn:node:{name}"));
        let more = [
            "--name", name, "--uri", &uri, "--host", &address, "--lds", &lds,
        ];
        let peer = node(host, folder.path(), "server", 4842, &more)?;
        anyhow::Ok((peer, format!("opc.tcp://{address}:4842/UA/Peer")))
    };
    let (one, alive) = server(&alive, "Alive")?;
    let (two, killed) = server(&killed, "Killed")?;
    let details = details(&[&lds], "");
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    let mut both = [&*alive, &killed];
    both.sort_unstable();
    assert_eq!(found.ids(), both, "{found:?}");
    let device = found.device_at(&alive)?;
    assert_eq!(device.attribute("applicationUri"), Some("urn:node:Alive"));
    assert_eq!(
        device.has("policyAes256_Sha256_RsaPss"),
        Some(true),
        "{found:?}"
    );

    two.kill()?;
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    assert_eq!(found.ids(), [&*alive], "{found:?}");
    // The discovery server still lists it.
    assert!(!found.skipped(&killed).is_empty(), "{found:?}");

    // A server that ends regularly is removed from the list.
    one.end()?;
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    assert!(found.ids().is_empty(), "{found:?}");
    assert!(found.skipped(&alive).is_empty(), "{found:?}");
    Ok(())
}

#[test]
fn a_server_with_an_unresolvable_name_gets_the_host_of_its_discovery_server() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("plant")?);
    let (_lds, lds) = lds(&host, folder.path())?;
    let more = [
        "--name",
        "Nameless",
        "--uri",
        "urn:node:nameless",
        "--host",
        "plc7.invalid",
        "--lds",
        &lds,
    ];
    let _server = node(&host, folder.path(), "server", 4842, &more)?;
    let there = format!("opc.tcp://{}:4842/UA/Peer", host.address()?);
    for (rewrite, expected) in [
        ("unresolvable", vec![&*there]),
        ("use-configured-host", vec![&*there]),
        ("none", vec![]),
    ] {
        let details = details(&[&lds], &format!("hostRewrite: {rewrite}\n"));
        let found = discover(&client, "opcua", &details, &["--explain"])?;
        assert_eq!(found.ids(), expected, "{rewrite}: {found:?}");
        if expected.is_empty() {
            assert!(!found.skipped("plc7.invalid").is_empty(), "{found:?}");
        }
    }
    Ok(())
}

#[test]
fn a_listed_address_outside_the_grants_is_explained_and_not_contacted() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let lan = Lan::new()?;
    let (client, host) = (lan.host("client")?, lan.host("plant")?);
    let (_lds, lds) = lds(&host, folder.path())?;
    let more = [
        "--name",
        "Elsewhere",
        "--uri",
        "urn:node:elsewhere",
        "--host",
        "169.254.169.254",
        "--lds",
        &lds,
    ];
    let _server = node(&host, folder.path(), "server", 4842, &more)?;
    let capture = Capture::start(&client)?;
    let found = discover(&client, "opcua", &details(&[&lds], ""), &["--explain"])?;
    let flows = capture.end()?;
    assert!(found.ids().is_empty(), "{found:?}");
    let reasons = found.skipped("169.254.169.254:4842");
    assert!(
        reasons.iter().any(|(_, why)| why.contains("not granted")),
        "{found:?}"
    );
    let host = host.address()?.to_string();
    assert_eq!(
        destinations(&flows, std::slice::from_ref(&host)),
        [("tcp".to_owned(), host, 4840)].into(),
        "{found:?}"
    );
    Ok(())
}

#[test]
fn servers_have_their_listed_url_and_discovery_servers_the_requested_one() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let lan = Lan::new()?;
    let (client, central, python) = (
        lan.host("client")?,
        lan.host("central")?,
        lan.host("python")?,
    );
    let (_lds, by_address) = lds(&central, folder.path())?;
    let (_server, url) = asyncua(&python, "Python", &[])?;
    let by_v6 = format!("opc.tcp://[{}]:4840", central.address_v6(0)?);
    // asyncua also answers requests without the path.
    let without_path = url.trim_end_matches("/peer/");
    for (asked, kind, id) in [
        (&*by_address, "DiscoveryServer", &*by_address),
        (&by_v6, "DiscoveryServer", &by_v6),
        (without_path, "ClientAndServer", &url),
    ] {
        let details = details(
            &[&format!("'{asked}'")],
            &format!("applicationTypes: [{kind}]\n"),
        );
        let found = discover(&client, "opcua", &details, &["--explain"])?;
        let device = found.device_at(id)?;
        // The discovery server also finds itself by its other address on the network.
        let same = device.text("/physicalId");
        let others = found.devices().into_iter().map(Device);
        assert!(
            same.is_some()
                && others
                    .map(|other| other.text("/physicalId"))
                    .all(|other| other == same),
            "{found:?}"
        );
        let is_lds = kind == "DiscoveryServer";
        for (name, has) in [
            ("modeNone", true),
            ("modeSign", is_lds),
            ("modeSignAndEncrypt", is_lds),
            ("policyBasic256Sha256", is_lds),
            ("policyAes128_Sha256_RsaOaep", is_lds),
            ("policyAes256_Sha256_RsaPss", is_lds),
            // A discovery server has no user sessions.
            ("tokenAnonymous", !is_lds),
            ("tokenUserName", !is_lds),
        ] {
            assert_eq!(device.has(name), Some(has), "{name}: {found:?}");
        }
    }
    Ok(())
}

#[test]
fn a_server_of_asyncua_lists_those_that_registered_with_it() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::new()?;
    let (client, one, two) = (lan.host("client")?, lan.host("one")?, lan.host("two")?);
    let (_one, first) = asyncua(&one, "One", &[])?;
    let (registered, second) = asyncua(&two, "Two", &["--register", &first])?;
    let details = details(&[&first], "");
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    assert_eq!(found.ids(), [&*first, &second], "{found:?}");
    registered.kill()?;
    let found = discover(&client, "opcua", &details, &["--explain"])?;
    assert_eq!(found.ids(), [&*first], "{found:?}");
    assert!(
        !found.skipped(&second).is_empty(),
        "it is listed still: {found:?}"
    );
    Ok(())
}
