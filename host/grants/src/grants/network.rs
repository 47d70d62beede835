//! Validation of the `network` section of a grants file; `leafhost_net` implements its meaning.

use leafhost_core::configuration::FieldProblem;
use leafhost_net::grants::{NetPorts, NetworkGrants, Tls};
use serde::Deserialize;

use super::{entries, pattern};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    interfaces: Vec<String>,
    udp: Vec<String>,
    multicast: Vec<String>,
    tcp: Vec<String>,
    http: Vec<String>,
    names: Vec<String>,
    tls: Option<String>,
}

impl Section {
    pub(super) fn check(self, problems: &mut Vec<FieldProblem>) -> NetworkGrants {
        entries("network.interfaces", &self.interfaces, problems, pattern);
        let groups = entries("network.multicast", &self.multicast, problems, group);
        entries("network.names", &self.names, problems, pattern);
        let tls = self.tls.map_or(Ok(Tls::default()), |text| text.parse());
        let tls = tls.unwrap_or_else(|message| {
            problems.push(FieldProblem::new("network.tls", message));
            Tls::default()
        });
        NetworkGrants {
            interfaces: self.interfaces,
            udp: entries("network.udp", &self.udp, problems, str::parse),
            multicast: groups,
            tcp: entries("network.tcp", &self.tcp, problems, str::parse),
            http: entries("network.http", &self.http, problems, str::parse),
            names: self.names,
            tls,
        }
    }
}

/// Parses one group's address with one port.
fn group(text: &str) -> Result<NetPorts, String> {
    const FORM: &str = "must be one group's address and one port, such as \"239.255.255.250:3702\"";
    if !text.contains(':') {
        return Err(FORM.to_owned());
    }
    let group: NetPorts = text.parse()?;
    let is_group = group
        .net
        .is_some_and(|net| net.addr().is_multicast() && net.prefix_len() == net.max_prefix_len());
    if is_group && group.ports.first == group.ports.last {
        return Ok(group);
    }
    Err(FORM.to_owned())
}
