//! Results of a search: one server for each URL, and the explanations of the others.

use leafhost_sdk::net::LOOK_UPS;

use super::{Search, Server, State, UNNAMED, Wanted, differs, peer_of};
use crate::location::{Location, Skip};
use crate::memory::Memory;
use crate::messages::Application;
use crate::security_settings::SecuritySettings;
use crate::table::Table;
use crate::text::quoted;

/// Application that answers at its listed location.
#[derive(Debug)]
pub struct Found {
    pub location: Location,
    /// Description of the application.
    pub application: Application,
    /// Settings of its endpoints.
    pub settings: Option<SecuritySettings>,
    /// True if it also answered in the last call.
    pub known: bool,
}

/// Result of a search.
#[derive(Debug)]
pub struct Results {
    /// Servers by URL.
    pub found: Table<Found>,
    /// Explanations of servers that are not devices.
    pub skipped: Table<Skip>,
    /// True if all servers were asked.
    pub complete: bool,
    /// Memory for the next call.
    pub memory: Memory,
}

impl Search<'_> {
    /// Ends the search; open tasks ran out of time.
    pub fn finish(mut self) -> Results {
        let asked = self.open == 0 && self.tasks.is_empty();
        let left = self.lookups.left();
        let complete = asked && left.is_empty() && !self.late;
        let mut memory = self.memory.following();
        for Server { peer, state, .. } in self.peers.things() {
            match state {
                State::Alive(settings, _) => memory.answered(peer, settings.clone()),
                State::Dead(_) => memory.failed(peer),
                // The call had no time for this server: a known server stays known, a new one stays new.
                State::Unknown if self.memory.knows(peer) => {
                    memory.answered(peer, self.memory.settings(peer).cloned());
                }
                State::Unknown => {}
            }
        }
        for url in left {
            let reason = format!(
                "its host was not looked up: a call looks up {LOOK_UPS} names; the next calls look up the others, and addresses need no lookup"
            );
            self.skip(url.as_str(), "hostRewrite", reason);
        }
        if !asked {
            let urls: Vec<String> = self
                .asked
                .iter()
                .filter(|asked| !asked.further)
                .map(|asked| asked.url.as_str().to_owned())
                .collect();
            let reason =
                "the time or the connections of the call were used up before all servers were asked; the others follow"
                    .to_owned();
            self.skip(&urls.join(" "), "wallSeconds", reason);
        }
        let found = self.found();
        Results {
            found,
            skipped: self.skipped,
            complete,
            memory,
        }
    }

    /// Selects one server for each URL. Lists of configured servers take precedence over others, and earlier lists over
    /// later ones.
    fn found(&mut self) -> Table<Found> {
        let mut found = Table::default();
        let mut seen = Table::default();
        let placed = std::mem::take(&mut self.placed);
        for (wanted, location) in placed.sorted() {
            let asked = self.asked.get(wanted.asked);
            let further = asked.is_some_and(|asked| asked.further);
            let peer = peer_of(&location.url);
            let subject = location.url.as_str().to_owned();
            let server = self.peers.get(&peer.to_string());
            let own = server.map_or_else(String::new, |server| server.own.clone());
            let (settings, unknown) = match server.map(|server| &server.state) {
                Some(State::Alive(settings, why)) => (settings.clone(), why.clone()),
                Some(State::Dead(why)) => {
                    let name = quoted(&wanted.application.name);
                    // The server answered at the URL in the details, and lists another address or port of itself.
                    let answered = asked.filter(|asked| {
                        wanted.own && !further && !location.moved && peer_of(&asked.url) != peer
                    });
                    let remedy = answered.map_or_else(String::new, |asked| {
                        format!(
                            "; it answered at {}: behind a router or a mapped port write hostRewrite: use-configured-host",
                            asked.url.as_str()
                        )
                    });
                    let reason = format!("listed as {name}, but there is no server: {why}{remedy}");
                    self.skip(&subject, "Hello", reason);
                    continue;
                }
                Some(State::Unknown) | None => continue,
            };
            let other = settings.as_ref().map(|settings| &settings.application);
            let mut answering: Vec<&String> = other.into_iter().chain([&own]).collect();
            // A server whose list and endpoints disagree is the same one under another name of its host.
            let same = asked.filter(|asked| wanted.own && other == Some(&asked.endpoints));
            answering.extend(same.map(|asked| &asked.own));
            if let Some((rule, reason)) = elsewhere(wanted, location, &answering) {
                self.skip(&subject, rule, reason);
                continue;
            }
            let facts_differ = differs(wanted, other);
            let uri = wanted.application.uri.as_str();
            // Two entries are surely the same server only at the same address: any server can use another's URI.
            let (mut twin, mut taken) = (false, false);
            for address in &location.addresses {
                let mut there = format!("{address} {} ", peer.port);
                taken |= seen.put(&there, ()).is_some();
                there.push_str(uri);
                twin |= seen.put(&there, ()).is_some();
            }
            // Another list describes the server at this address.
            if wanted.application.kind == UNNAMED && taken {
                continue;
            }
            if further && twin && !uri.is_empty() && !found.has(&subject) {
                let reason = format!(
                    "known from the network; application {} on port {} of that address is a device already",
                    quoted(uri),
                    peer.port
                );
                self.skip(&subject, "FindServersOnNetwork", reason);
                continue;
            }
            if let Some(Found { application, .. }) = found.get(&subject) {
                if !uri.is_empty() && application.uri != uri {
                    let reason = format!(
                        "listed as {}, too, but {} is the device with this URL",
                        quoted(&wanted.application.name),
                        quoted(&application.name)
                    );
                    self.skip(&subject, "discoveryUrls", reason);
                }
            } else {
                if settings.is_none() {
                    let endpoints = format!("endpoints of {subject}");
                    self.skip(&endpoints, "GetEndpoints", unknown);
                }
                let server = Found {
                    settings: settings.filter(|_| !facts_differ),
                    application: wanted.application.clone(),
                    location: location.clone(),
                    known: self.memory.knows(&peer),
                };
                found.put(&subject, server);
            }
        }
        found
    }

    /// Returns the sort key that selects among several descriptions of a server, independent of the order of answers.
    pub(super) fn rank(&self, wanted: &Wanted) -> String {
        let Wanted {
            asked, application, ..
        } = wanted;
        let origin = match self.asked.get(*asked) {
            Some(source) if application.kind == UNNAMED => {
                format!("unnamed {}", source.url.as_str())
            }
            Some(source) if source.further => format!("further {}", source.url.as_str()),
            _ => format!("configured {asked:03}"),
        };
        let urls = application.urls.join(" ");
        format!(
            "{origin}\n{}\n{}\n{urls}",
            application.uri, application.name
        )
    }
}

/// Returns the rule and the reason if an application does not answer at its URL; `answering` has the URIs known to answer
/// there.
fn elsewhere(
    wanted: &Wanted,
    location: &Location,
    answering: &[&String],
) -> Option<(&'static str, String)> {
    let application = &wanted.application;
    let answers = answering.iter().find(|uri| !uri.is_empty());
    if differs(wanted, answering.iter().copied()) {
        let answers = quoted(answers.map_or("", |uri| uri.as_str()));
        let uri = quoted(&application.uri);
        return Some(if location.moved {
            let reason = format!(
                "{} leads nowhere from here, and on the host that listed it {answers} answers in its place, not {uri}",
                wanted.url.as_str()
            );
            ("hostRewrite", reason)
        } else {
            let reason = format!(
                "listed as {}, but {answers} answers there, not {uri}; name that server's own URL",
                quoted(&application.name)
            );
            ("discoveryUrls", reason)
        });
    }
    let is_told = answers.is_some() && !application.uri.is_empty();
    (wanted.shared && !is_told).then(|| {
        let reason = format!(
            "listed as {}, but other applications are listed with this URL, too, and nothing shows which of them answers there",
            quoted(&application.name)
        );
        ("discoveryUrls", reason)
    })
}
