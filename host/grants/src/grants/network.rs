//! Validation of the `network` section of a grants file; `leafhost_net` implements its meaning.

use std::str::FromStr;

use leafhost_core::configuration::FieldProblem;
use leafhost_net::grants::{NetPorts, NetworkGrants, Tls};
use serde::Deserialize;

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
        patterns("network.interfaces", &self.interfaces, problems);
        let groups: Vec<NetPorts> = entries("multicast", &self.multicast, problems);
        for (index, group) in groups.iter().enumerate() {
            let is_group = group.net.is_some_and(|net| {
                net.addr().is_multicast() && net.prefix_len() == net.max_prefix_len()
            });
            if !is_group || group.ports.first != group.ports.last {
                problems.push(FieldProblem::new(
                    format!("network.multicast[{index}]"),
                    "must be one group's address and one port, such as \"239.255.255.250:3702\"",
                ));
            }
        }
        patterns("network.names", &self.names, problems);
        let tls = self.tls.map_or(Ok(Tls::default()), |text| text.parse());
        let tls = tls.unwrap_or_else(|message| {
            problems.push(FieldProblem::new("network.tls", message));
            Tls::default()
        });
        NetworkGrants {
            interfaces: self.interfaces,
            udp: entries("udp", &self.udp, problems),
            multicast: groups,
            tcp: entries("tcp", &self.tcp, problems),
            http: entries("http", &self.http, problems),
            names: self.names,
            tls,
        }
    }
}

fn patterns(name: &str, list: &[String], problems: &mut Vec<FieldProblem>) {
    super::check_list(name, list, problems);
    for (index, entry) in list.iter().enumerate() {
        if let Err(error) = glob::Pattern::new(entry) {
            problems.push(FieldProblem::new(
                format!("{name}[{index}]"),
                format!("{entry:?} is not a pattern: {}", error.msg),
            ));
        }
    }
}

/// Parses the entries and leaves out invalid ones. The indexes shift then, but that has no effect, since the file is
/// rejected.
fn entries<T: FromStr<Err = String>>(
    name: &str,
    list: &[String],
    problems: &mut Vec<FieldProblem>,
) -> Vec<T> {
    super::check_list(&format!("network.{name}"), list, problems);
    let mut entries = Vec::new();
    for (index, text) in list.iter().enumerate() {
        match text.parse() {
            Ok(entry) => entries.push(entry),
            Err(message) => problems.push(FieldProblem::new(
                format!("network.{name}[{index}]"),
                format!("{text:?} {message}"),
            )),
        }
    }
    entries
}
