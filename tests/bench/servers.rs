//! Many OPC UA servers in one Configuration, some of them unreachable.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_tests::lan::{Host, Lan};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::program;

use crate::calls;
use crate::table::Line;
use crate::{median_and_worst, seconds};

const ALIVE: u16 = 45;
const PORT: u16 = 4840;
/// Last bytes of addresses without a host.
const DEAD: [u8; 5] = [201, 202, 203, 204, 205];
/// Time limit of the handler for connection and Hello.
const CONNECT: Duration = Duration::from_secs(3);
const TIMES: usize = 3;

pub fn measure() -> Result<Vec<Line>> {
    let lan = Lan::new()?;
    let (client, plant) = (lan.host("client")?, lan.host("plant")?);
    let address = plant.address()?;
    let mut command = peer::rust(&plant, "leafhost-opcua-server")?;
    command
        .args(["--address", &address.to_string()])
        .args(["--port", &PORT.to_string()])
        .args(["--name", "plc", "--uri", "urn:plc"])
        .args(["--count", &ALIVE.to_string()]);
    let _servers = Peer::start(command)?;
    let [a, b, c, _] = address.octets();
    let dead = DEAD.map(|last| Ipv4Addr::new(a, b, c, last));
    for (address, last) in dead.iter().zip(DEAD) {
        drop_packets(&client, *address, last)?;
    }
    let urls: Vec<String> = dead
        .iter()
        .map(|address| format!("opc.tcp://{address}:{PORT}/"))
        .chain((PORT..PORT + ALIVE).map(|port| format!("opc.tcp://{address}:{port}/")))
        .collect();
    let all = urls.len();
    let details = format!(
        "opcuaDiscoveryMethod: {{standard: {{discoveryUrls: [{}]}}}}\n",
        urls.join(", ")
    );
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let (call, ids) = calls::first(&client, "opcua", &details)?;
        ensure!(ids.len() == usize::from(ALIVE), "{} found", ids.len());
        walls.push(call.wall);
        cpus.push(call.cpu);
    }
    let (median, worst) = median_and_worst(&mut walls);
    let (cpu, _) = median_and_worst(&mut cpus);
    Ok(vec![Line {
        what: format!(
            "{all} OPC UA servers, {} of them dead: first discover, worst of {TIMES}",
            DEAD.len()
        ),
        value: seconds(worst),
        target: format!("≤ {}", seconds(CONNECT + Duration::from_secs(1))),
        reference: format!(
            "median {}; one connect timeout is {}; the guest computes {:.1} ms",
            seconds(median),
            seconds(CONNECT),
            cpu.as_secs_f64() * 1e3
        ),
    }])
}

/// Sends all packets for an address to a MAC address without a host, so that not even an ARP failure is reported.
fn drop_packets(from: &Host, address: Ipv4Addr, last: u8) -> Result<()> {
    let mut command = from.command("ip");
    command
        .args(["neigh", "replace", &address.to_string()])
        .args(["lladdr", &format!("02:00:5e:ff:00:{last:02x}")])
        .args(["dev", "eth0", "nud", "permanent"]);
    program::finish(command)?.good()?;
    Ok(())
}
