//! Capture of the packets that leave a host, with `capture.py`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use leafhost_tests::lan::Host;
use leafhost_tests::peer::{self, Peer};
use serde::Deserialize;

/// Running capture.
pub struct Capture(Peer);

/// Packets to one destination.
#[derive(Debug, Clone, Deserialize)]
pub struct Flow {
    /// Protocol: `udp`, `tcp`, `arp`, `icmp6` and so on.
    pub protocol: String,
    pub to: IpAddr,
    /// Destination port; 0 for protocols without ports.
    pub port: u16,
    /// Times of the packets, in seconds from the start.
    pub times: Vec<f64>,
    /// Searched texts that the packets contained.
    pub texts: Vec<String>,
}

impl Capture {
    pub fn start(host: &Host) -> Result<Self> {
        Self::start_for(host, &[])
    }

    /// Starts a capture that searches packets for texts.
    pub fn start_for(host: &Host, texts: &[&str]) -> Result<Self> {
        let mut command = peer::python(host, "capture")?;
        command.args(texts);
        Peer::start(command).map(Self)
    }

    /// Ends the capture and returns the flows since the start.
    pub fn end(self) -> Result<Vec<Flow>> {
        let lines = self.0.end()?;
        let line = lines.first().context("the capture said nothing")?;
        serde_json::from_str(line).with_context(|| format!("the capture said {line}"))
    }
}

/// Returns the number of datagrams to a group.
pub fn sent_to(flows: &[Flow], group: &str, port: u16) -> usize {
    flows
        .iter()
        .filter(|flow| flow.protocol == "udp" && flow.to.to_string() == group && flow.port == port)
        .map(|flow| flow.times.len())
        .sum()
}

/// Returns the destinations of the flows, without the kernel's own traffic such as neighbour discovery.
pub fn destinations(flows: &[Flow], neighbours: &[String]) -> BTreeSet<(String, String, u16)> {
    flows
        .iter()
        .filter(|flow| !matches!(&*flow.protocol, "icmp6" | "igmp"))
        .map(|flow| (flow.protocol.clone(), flow.to.to_string(), flow.port))
        .filter(|(protocol, to, _)| protocol != "arp" || !neighbours.contains(to))
        .collect()
}
