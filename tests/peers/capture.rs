//! Captures what leaves a host, with `capture.py`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use leafhost_tests::lan::Host;
use leafhost_tests::peer::{self, Peer};
use serde::Deserialize;

/// A running capture.
pub struct Capture(Peer);

/// Packets to one destination.
#[derive(Debug, Clone, Deserialize)]
pub struct Flow {
    /// `udp`, `tcp`, `arp`, `icmp6` and so on.
    pub protocol: String,
    pub to: IpAddr,
    /// 0 where there are no ports.
    pub port: u16,
    /// When each left, in seconds from the start.
    pub times: Vec<f64>,
    /// Which of the searched texts the packets contained.
    pub texts: Vec<String>,
}

impl Capture {
    pub fn start(host: &Host) -> Result<Self> {
        Self::start_for(host, &[])
    }

    /// A capture that searches packets for texts.
    pub fn start_for(host: &Host, texts: &[&str]) -> Result<Self> {
        let mut command = peer::python(host, "capture")?;
        command.args(texts);
        Peer::start(command).map(Self)
    }

    /// Ends the capture; returns what left since the start.
    pub fn end(self) -> Result<Vec<Flow>> {
        let lines = self.0.end()?;
        let line = lines.first().context("the capture said nothing")?;
        serde_json::from_str(line).with_context(|| format!("the capture said {line}"))
    }
}

/// The number of datagrams to a group.
pub fn sent_to(flows: &[Flow], group: &str, port: u16) -> usize {
    flows
        .iter()
        .filter(|flow| flow.protocol == "udp" && flow.to.to_string() == group && flow.port == port)
        .map(|flow| flow.times.len())
        .sum()
}

/// The destinations of the flows, without the kernel's own traffic such as neighbour discovery.
pub fn destinations(flows: &[Flow], neighbours: &[String]) -> BTreeSet<(String, String, u16)> {
    flows
        .iter()
        .filter(|flow| !matches!(&*flow.protocol, "icmp6" | "igmp"))
        .map(|flow| (flow.protocol.clone(), flow.to.to_string(), flow.port))
        .filter(|(protocol, to, _)| protocol != "arp" || !neighbours.contains(to))
        .collect()
}
