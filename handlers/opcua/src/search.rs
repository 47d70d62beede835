//! Who is asked what, in which order, and what came of it. Opens no connection: it hands out tasks and takes their outcomes.
//!
//! A peer decides what is asked next only within bounds: what is known comes before what is new, servers take turns
//! whoever listed them, and what answered nothing last time comes last. So a flood of made-up servers delays nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leafhost_sdk::net;

use crate::details::{self, Details};
use crate::facts::Facts;
use crate::memory::{Memory, Peer};
use crate::messages::{Application, List, Record};
use crate::place::{self, Lister, Lookup, Place, Skip};
use crate::text::quoted;
use crate::url::{Host, Url};

/// The most servers that are asked on the word of discovery servers.
const MAX_FURTHER: usize = 1_000;
/// The most bytes of text that are kept of what servers list.
const MAX_TEXT: usize = 8 << 20;

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Ask a server what it knows.
    Ask {
        /// Its place among those that are asked.
        asked: usize,
        /// Its URL.
        url: Url,
        /// Whether its endpoints are wanted as well.
        facts: bool,
        /// Whether what it knows from the network is wanted, if it is a discovery server.
        records: bool,
    },
    /// Look up a name.
    LookUp(String),
    /// Say hello.
    Confirm {
        /// Who is meant.
        peer: Peer,
        /// By which URL.
        url: Url,
        /// Where it leads.
        addresses: Vec<IpAddr>,
        /// Whether its endpoints are wanted as well.
        facts: bool,
    },
}

/// What came of a task.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Task::Ask`].
    Asked(usize, Answers),
    /// Of [`Task::LookUp`].
    LookedUp(String, Result<Vec<IpAddr>, net::Error>),
    /// Of [`Task::Confirm`]: what its endpoints say, if they were wanted and given, or why it is as good as dead.
    Confirmed(Peer, Result<Option<Facts>, String>),
}

/// What a server that was asked has said before it stopped.
#[derive(Debug, Default)]
pub struct Answers {
    /// Where its URL leads.
    pub addresses: Vec<IpAddr>,
    /// Whether it said hello.
    pub alive: bool,
    /// The applications it knows.
    pub servers: Option<List<Application>>,
    /// The servers it knows from the network.
    pub records: Option<List<Record>>,
    /// What its endpoints say.
    pub facts: Option<Facts>,
    /// Why there is not more.
    pub error: Option<String>,
}

/// A server that is asked.
#[derive(Debug)]
struct Asked {
    url: Url,
    /// The part of the details that it comes from.
    rule: String,
    /// Whether a discovery server named it, not the details.
    further: bool,
    addresses: Vec<IpAddr>,
    /// The URI by which it calls itself.
    own: String,
    /// How many of what it lists are looked at already: they take turns by that.
    turns: u32,
}

/// An application that is to be a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    asked: usize,
    application: Application,
    url: Url,
    own: bool,
}

/// What waits for a name.
#[derive(Debug, Clone)]
enum Waiting {
    Device(Wanted),
    Further { asked: usize, url: Url },
}

#[derive(Debug)]
enum Name {
    Asked(Vec<Waiting>),
    Known(Result<Vec<IpAddr>, net::Error>),
}

/// A server's state.
#[derive(Debug)]
enum State {
    Unknown,
    Alive(Option<Facts>),
    Dead(String),
}

/// An application that is where it says.
#[derive(Debug)]
pub struct Found {
    /// Where.
    pub place: Place,
    /// What it is.
    pub application: Application,
    /// What its endpoints say.
    pub facts: Option<Facts>,
    /// Whether it answered last time too.
    pub known: bool,
}

/// All that came out.
#[derive(Debug)]
pub struct Results {
    /// The servers, by URL.
    pub found: Vec<Found>,
    /// Why the others are none.
    pub skipped: BTreeSet<Skip>,
    /// Whether everybody was asked.
    pub complete: bool,
    /// What to remember.
    pub memory: Memory,
}

/// In which order tasks come: by urgency, then in turns of those who listed them.
type Turn = (Urgency, u32, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Configured,
    Known,
    New,
    Silent,
}

/// The search of one call.
#[derive(Debug)]
pub struct Search<'a> {
    details: &'a Details,
    memory: &'a Memory,
    asked: Vec<Asked>,
    tasks: BTreeMap<Turn, Task>,
    names: BTreeMap<String, Name>,
    peers: BTreeMap<Peer, State>,
    placed: BTreeMap<Wanted, Place>,
    /// URLs that discovery servers named, so that each is asked once.
    further: BTreeSet<Url>,
    skipped: BTreeSet<Skip>,
    text: usize,
    open: usize,
}

impl<'a> Search<'a> {
    /// The search that these details ask for.
    pub fn new(details: &'a Details, memory: &'a Memory) -> Self {
        let mut search = Self {
            details,
            memory,
            asked: Vec::new(),
            tasks: BTreeMap::new(),
            names: BTreeMap::new(),
            peers: BTreeMap::new(),
            placed: BTreeMap::new(),
            further: BTreeSet::new(),
            skipped: BTreeSet::new(),
            text: 0,
            open: 0,
        };
        for (index, url) in details.urls() {
            search.ask(
                url,
                details::path(index),
                false,
                (Urgency::Configured, 0, index),
            );
        }
        search
    }

    /// The next thing to do, if there is one now. Every task must come back as an outcome.
    pub fn next(&mut self) -> Option<Task> {
        let (_, task) = self.tasks.pop_first()?;
        self.open += 1;
        Some(task)
    }

    /// Takes what came of a task.
    pub fn take(&mut self, outcome: Outcome) {
        self.open = self.open.saturating_sub(1);
        match outcome {
            Outcome::Asked(asked, answers) => self.asked(asked, answers),
            Outcome::LookedUp(name, found) => {
                let waiting = self.names.insert(name, Name::Known(found));
                if let Some(Name::Asked(waiting)) = waiting {
                    for waiting in waiting {
                        self.place(waiting);
                    }
                }
            }
            Outcome::Confirmed(peer, Ok(facts)) => {
                let facts = facts.or_else(|| self.memory.facts(&peer).cloned());
                self.peers.insert(peer, State::Alive(facts));
            }
            Outcome::Confirmed(peer, Err(why)) => {
                self.peers.insert(peer, State::Dead(why));
            }
        }
    }

    fn ask(&mut self, url: Url, rule: String, further: bool, turn: Turn) {
        let peer = peer_of(&url);
        let asked = self.asked.len();
        self.tasks.insert(
            turn,
            Task::Ask {
                asked,
                facts: self.memory.wants_facts(&peer),
                records: !further,
                url: url.clone(),
            },
        );
        self.peers.entry(peer).or_insert(State::Unknown);
        self.asked.push(Asked {
            url,
            rule,
            further,
            addresses: Vec::new(),
            own: String::new(),
            turns: 0,
        });
    }

    fn asked(&mut self, index: usize, answers: Answers) {
        let Some(asked) = self.asked.get_mut(index) else {
            return;
        };
        let peer = peer_of(&asked.url);
        let facts = answers.facts.or_else(|| self.memory.facts(&peer).cloned());
        asked.addresses = answers.addresses;
        asked.own = facts
            .as_ref()
            .map(|facts| facts.application.clone())
            .unwrap_or_default();
        let (url, rule) = (asked.url.clone(), asked.rule.clone());
        let why = answers.error.unwrap_or_else(|| "gave no answer".to_owned());
        let state = if answers.alive {
            State::Alive(facts)
        } else {
            State::Dead(why.clone())
        };
        // Two URLs may lead to one server: what one of them has found holds.
        if !matches!(self.peers.get(&peer), Some(State::Alive(_))) {
            self.peers.insert(peer, state);
        }
        let Some(servers) = answers.servers else {
            self.skip(url.as_str(), &rule, why);
            return;
        };
        if servers.cut {
            self.skip(
                url.as_str(),
                &rule,
                "lists more servers than are looked at".to_owned(),
            );
        }
        let alone = servers.items.len() == 1;
        let listed: BTreeSet<String> = servers
            .items
            .iter()
            .flat_map(|item| item.urls.clone())
            .collect();
        for application in servers.items {
            self.listed(index, application, alone);
        }
        let Some(records) = answers.records else {
            return;
        };
        if records.cut {
            self.skip(
                url.as_str(),
                &rule,
                "knows more servers from the network than are looked at".to_owned(),
            );
        }
        for record in records.items {
            if !listed.contains(&record.url) {
                self.recorded(index, &record);
            }
        }
    }

    /// An application of a server's list.
    fn listed(&mut self, asked: usize, application: Application, alone: bool) {
        let url = match place::wanted(self.details, &application) {
            Ok(url) => url,
            Err(skip) => {
                self.skipped.insert(skip);
                return;
            }
        };
        if !self.has_room(&application.name, &url) {
            return;
        }
        let own = self.asked.get(asked).is_some_and(|asked| {
            let same_port = url.port() == asked.url.port();
            alone || same_port || (!asked.own.is_empty() && asked.own == application.uri)
        });
        let wanted = Wanted {
            asked,
            application,
            url,
            own,
        };
        self.place(Waiting::Device(wanted));
    }

    /// A server of a discovery server's records.
    fn recorded(&mut self, asked: usize, record: &Record) {
        let url = match Url::parse(&record.url) {
            Ok(url) if url.is_opc_tcp() => url,
            Ok(_) => return,
            Err(error) => {
                let subject = place::shown(&record.url);
                let reason = format!(
                    "the discovery URL of {} on the network {error}",
                    quoted(&record.name)
                );
                self.skip(&subject, "FindServersOnNetwork", reason);
                return;
            }
        };
        if self.has_room(&record.name, &url) {
            self.place(Waiting::Further { asked, url });
        }
    }

    fn has_room(&mut self, name: &str, url: &Url) -> bool {
        self.text = self
            .text
            .saturating_add(name.len() + 4 * url.as_str().len());
        let room = self.text <= MAX_TEXT;
        if !room {
            let reason = "the servers of this call list more than is looked at".to_owned();
            self.skip(url.as_str(), "discoveryUrls", reason);
        }
        room
    }

    /// Finds out where something is, as soon as its name is looked up.
    fn place(&mut self, waiting: Waiting) {
        let (asked, listed) = match &waiting {
            Waiting::Device(wanted) => (wanted.asked, wanted.url.clone()),
            Waiting::Further { asked, url } => (*asked, url.clone()),
        };
        let turn = self.turn(asked, &peer_of(&listed));
        let lookup = match listed.host() {
            Host::Name(name) if listed.host().can_be_looked_up() && !listed.is_loopback() => {
                match self.names.get_mut(name) {
                    Some(Name::Known(Ok(found))) => Lookup::Known(found),
                    Some(Name::Known(Err(error))) => Lookup::Failed(error),
                    Some(Name::Asked(all)) => {
                        all.push(waiting);
                        return;
                    }
                    None => {
                        self.names.insert(name.clone(), Name::Asked(vec![waiting]));
                        self.tasks.insert(turn, Task::LookUp(name.clone()));
                        return;
                    }
                }
            }
            Host::Name(_) if !listed.is_loopback() => Lookup::Known(&[]),
            _ => Lookup::Unneeded,
        };
        let Some(lister) = self.asked.get(asked) else {
            return;
        };
        let own = matches!(&waiting, Waiting::Device(wanted) if wanted.own);
        let place = place::place(
            self.details.host_rewrite,
            &listed,
            lookup,
            &Lister {
                url: &lister.url,
                addresses: &lister.addresses,
            },
            own,
        );
        let rule = lister.rule.clone();
        match (place, waiting) {
            (Err(why), _) => self.skip(listed.as_str(), "hostRewrite", why),
            (Ok(place), Waiting::Device(wanted)) => {
                self.confirm(&place, turn);
                self.placed.insert(wanted, place);
            }
            (Ok(place), Waiting::Further { .. }) => self.go_further(place.url, rule, turn),
        }
    }

    fn confirm(&mut self, place: &Place, turn: Turn) {
        let peer = peer_of(&place.url);
        if self.peers.contains_key(&peer) {
            return;
        }
        self.peers.insert(peer.clone(), State::Unknown);
        let task = Task::Confirm {
            facts: self.memory.wants_facts(&peer),
            peer,
            url: place.url.clone(),
            addresses: place.addresses.clone(),
        };
        self.tasks.insert(turn, task);
    }

    fn go_further(&mut self, url: Url, rule: String, turn: Turn) {
        if self.peers.contains_key(&peer_of(&url)) || !self.further.insert(url.clone()) {
            return;
        }
        if self.further.len() > MAX_FURTHER {
            let reason = format!("more than {MAX_FURTHER} servers are known from the network");
            self.skip(url.as_str(), "FindServersOnNetwork", reason);
            return;
        }
        self.ask(url, rule, true, turn);
    }

    fn turn(&mut self, asked: usize, peer: &Peer) -> Turn {
        let urgency = if self.memory.knows(peer) {
            Urgency::Known
        } else if self.memory.was_silent(peer) {
            Urgency::Silent
        } else {
            Urgency::New
        };
        let turns = self.asked.get_mut(asked).map_or(0, |asked| {
            asked.turns = asked.turns.saturating_add(1);
            asked.turns
        });
        (urgency, turns, asked)
    }

    fn skip(&mut self, subject: &str, rule: &str, reason: String) {
        self.skipped.insert(Skip {
            subject: subject.to_owned(),
            rule: rule.to_owned(),
            reason,
        });
    }

    /// Sums up; what is still open was not asked in time.
    pub fn finish(mut self) -> Results {
        let complete = self.open == 0 && self.tasks.is_empty();
        let mut memory = self.memory.following();
        for (peer, state) in &self.peers {
            match state {
                State::Alive(facts) => memory.answered(peer, facts.clone()),
                State::Dead(_) => memory.failed(peer),
                // Not asked in time: what was known stays known, what is new is new.
                State::Unknown if self.memory.knows(peer) => {
                    memory.answered(peer, self.memory.facts(peer).cloned());
                }
                State::Unknown => {}
            }
        }
        if !complete {
            let urls: Vec<String> = self
                .asked
                .iter()
                .filter(|asked| !asked.further)
                .map(|asked| asked.url.as_str().to_owned())
                .collect();
            let reason =
                "the time of the call was over before all servers were asked; the others follow"
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

    /// One server for each URL: that of the first list it is in, lists of configured servers before others.
    fn found(&mut self) -> Vec<Found> {
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        let mut seen: BTreeSet<(String, u16)> = BTreeSet::new();
        for (wanted, place) in std::mem::take(&mut self.placed) {
            let further = self
                .asked
                .get(wanted.asked)
                .is_some_and(|asked| asked.further);
            let peer = peer_of(&place.url);
            let subject = place.url.as_str().to_owned();
            let facts = match self.peers.get(&peer) {
                Some(State::Alive(facts)) => facts.clone(),
                Some(State::Dead(why)) => {
                    let name = quoted(&wanted.application.name);
                    let reason = format!("listed as {name}, but there is no server: {why}");
                    self.skip(&subject, "Hello", reason);
                    continue;
                }
                Some(State::Unknown) | None => continue,
            };
            let other = facts.as_ref().map(|facts| facts.application.as_str());
            let uri = wanted.application.uri.as_str();
            let differs =
                other.is_some_and(|other| !other.is_empty() && !uri.is_empty() && other != uri);
            if place.moved && !wanted.own && differs {
                let reason = format!(
                    "{} leads nowhere from here, and on the host that listed it {} answers in its place, not {}",
                    wanted.url.as_str(),
                    quoted(other.unwrap_or_default()),
                    quoted(uri)
                );
                self.skip(&subject, "hostRewrite", reason);
                continue;
            }
            let new = seen.insert((uri.to_owned(), peer.port));
            if further && !new && !uri.is_empty() && !found.contains_key(&subject) {
                let reason = format!(
                    "known from the network; application {} on port {} is a device already",
                    quoted(uri),
                    peer.port
                );
                self.skip(&subject, "FindServersOnNetwork", reason);
                continue;
            }
            let known = self.memory.knows(&peer);
            found.entry(subject).or_insert_with(|| Found {
                facts: facts.filter(|_| !differs),
                application: wanted.application,
                place,
                known,
            });
        }
        found.into_values().collect()
    }
}

/// Who listens at that URL.
fn peer_of(url: &Url) -> Peer {
    Peer {
        host: url.host().written(),
        port: url.port(),
    }
}
