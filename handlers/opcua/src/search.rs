//! Who is asked what, in which order, and what came of it. Opens no connection: it hands out tasks and takes their outcomes.
//!
//! A peer decides what is asked next only within bounds: what is known comes before what is new, servers take turns
//! whoever listed them, and what answered nothing last time comes last. So a flood of made-up servers delays nobody else.

mod names;
mod results;
mod tasks;
mod turns;

use std::net::IpAddr;

use names::{Found, Names};
pub use results::Results;
pub use tasks::{Answers, Outcome, Task, Told};
use turns::{Turn, Turns, Urgency};

use crate::details::{self, Details};
use crate::facts::Facts;
use crate::memory::{Memory, Peer};
use crate::messages::{Application, Record};
use crate::place::{self, Lookup, Place, Skip, Source};
use crate::table::Table;
use crate::text::quoted;
use crate::url::{Host, Url};

/// The most servers that are asked on the word of discovery servers.
const MAX_FURTHER: usize = 1_000;
/// The most explanations: as many as the host takes.
const MAX_SKIPPED: usize = 1_000;
/// The most bytes of text that are kept of what servers list.
const MAX_TEXT: usize = 4 << 20;
/// The kind of an application that does not say which it is.
const UNNAMED: u32 = u32::MAX;

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
#[derive(Debug, Clone)]
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

impl Waiting {
    fn url(&self) -> &Url {
        match self {
            Self::Device(Wanted { url, .. }) | Self::Further { url, .. } => url,
        }
    }
}

/// A server, and what has become of it.
#[derive(Debug)]
struct Server {
    peer: Peer,
    state: State,
}

#[derive(Debug)]
enum State {
    Unknown,
    /// With what its endpoints say, or why that is not known.
    Alive(Option<Facts>, String),
    Dead(String),
}

/// The search of one call.
#[derive(Debug)]
pub struct Search<'a> {
    details: &'a Details,
    memory: &'a Memory,
    asked: Vec<Asked>,
    tasks: Turns,
    names: Names,
    peers: Table<Server>,
    placed: Table<(Wanted, Place)>,
    /// URLs that discovery servers named, so that each is asked once.
    further: Table<()>,
    skipped: Table<Skip>,
    text: usize,
    open: usize,
    /// Whether something was not looked at that may be looked at in a later call.
    late: bool,
}

impl<'a> Search<'a> {
    /// The search that these details ask for.
    pub fn new(details: &'a Details, memory: &'a Memory) -> Self {
        let urls = details.urls();
        let mut search = Self {
            details,
            memory,
            asked: Vec::new(),
            tasks: Turns::default(),
            names: Names::new(urls.iter().map(|(_, url)| url), memory.round()),
            peers: Table::default(),
            placed: Table::default(),
            further: Table::default(),
            skipped: Table::default(),
            text: 0,
            open: 0,
            late: false,
        };
        for (index, url) in urls {
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
        let task = match self.names.next() {
            Some(name) => Task::LookUp(name),
            None => self.tasks.next()?,
        };
        self.open += 1;
        Some(task)
    }

    /// Takes what came of a task.
    pub fn take(&mut self, outcome: Outcome) {
        self.open = self.open.saturating_sub(1);
        match outcome {
            Outcome::Asked(asked, answers) => self.asked(asked, answers),
            Outcome::LookedUp(name, found) => {
                for waiting in self.names.learn(&name, found) {
                    self.place(waiting);
                }
            }
            Outcome::Confirmed(peer, Ok(told)) => {
                let alive = self.alive(&peer, told);
                self.becomes(peer, alive);
            }
            Outcome::Confirmed(peer, Err(why)) => {
                self.becomes(peer, State::Dead(why));
            }
        }
    }

    fn becomes(&mut self, peer: Peer, state: State) {
        self.peers.put(&peer.to_string(), Server { peer, state });
    }

    fn ask(&mut self, url: Url, rule: String, further: bool, turn: Turn) {
        let peer = peer_of(&url);
        let asked = self.asked.len();
        let task = Task::Ask {
            asked,
            facts: self.memory.wants_facts(&peer),
            records: !further,
            known: self.memory.knows(&peer),
            told: self.memory.facts(&peer).is_some(),
            url: url.clone(),
        };
        self.tasks.add(turn, task);
        if !self.peers.has(&peer.to_string()) {
            self.becomes(peer, State::Unknown);
        }
        self.asked.push(Asked {
            url,
            rule,
            further,
            addresses: Vec::new(),
            own: String::new(),
            turns: 0,
        });
    }

    /// With what a server's endpoints say now, or said before.
    fn alive(&self, peer: &Peer, told: Told) -> State {
        let (facts, why) = match told {
            Some(Ok(facts)) => (Some(facts), String::new()),
            Some(Err(why)) => (None, why),
            None => (None, String::new()),
        };
        State::Alive(facts.or_else(|| self.memory.facts(peer).cloned()), why)
    }

    fn asked(&mut self, index: usize, answers: Answers) {
        let Some(peer) = self.asked.get(index).map(|asked| peer_of(&asked.url)) else {
            return;
        };
        let told = answers.facts.or_else(|| answers.error.clone().map(Err));
        let alive = self.alive(&peer, told);
        let Some(asked) = self.asked.get_mut(index) else {
            return;
        };
        if !asked.further {
            self.names.heard();
        }
        self.late |= answers.cut;
        asked.addresses = answers.addresses;
        if let State::Alive(Some(facts), _) = &alive {
            asked.own.clone_from(&facts.application);
        }
        let (url, rule) = (asked.url.clone(), asked.rule.clone());
        if let (Host::Name(name), false) = (url.host(), asked.addresses.is_empty()) {
            // It is looked up already.
            let found = Ok(asked.addresses.clone());
            for waiting in self.names.learn(name, found) {
                self.place(waiting);
            }
        }
        let why = answers.error.unwrap_or_else(|| "gave no answer".to_owned());
        let state = if answers.alive {
            alive
        } else {
            State::Dead(why.clone())
        };
        // Two URLs may lead to one server: what one of them has found holds.
        let known = self.peers.get(&peer.to_string());
        if !known.is_some_and(|known| matches!(known.state, State::Alive(..))) {
            self.becomes(peer, state);
        }
        let Some(servers) = answers.servers else {
            if answers.refused {
                self.refused(index, url, &why);
            } else {
                self.skip(url.as_str(), &rule, why);
            }
            return;
        };
        if servers.items.is_empty() {
            let reason = "lists no server, not even itself".to_owned();
            self.skip(url.as_str(), &rule, reason);
        }
        if servers.cut {
            self.late = true;
            self.skip(
                url.as_str(),
                &rule,
                "lists more servers than are looked at".to_owned(),
            );
        }
        let alone = servers.items.len() == 1;
        let mut listed = Table::default();
        for url in servers.items.iter().flat_map(|item| &item.urls) {
            listed.put(url, ());
        }
        for application in servers.items {
            self.listed(index, application, alone);
        }
        let Some(records) = answers.records else {
            return;
        };
        if records.cut {
            self.late = true;
            self.skip(
                url.as_str(),
                &rule,
                "knows more servers from the network than are looked at".to_owned(),
            );
        }
        for record in records.items {
            if !listed.has(&record.url) {
                self.recorded(index, &record);
            }
        }
    }

    /// A server that says nothing but its hello: it is there, at the URL it was asked by.
    fn refused(&mut self, asked: usize, url: Url, why: &str) {
        if let Some(rule) = place::leaves_out_unnamed(self.details) {
            let reason = format!("cannot be asked what it is without security: {why}");
            self.skip(url.as_str(), rule, reason);
            return;
        }
        let application = Application {
            uri: String::new(),
            product: String::new(),
            name: String::new(),
            kind: UNNAMED,
            urls: Vec::new(),
        };
        self.place(Waiting::Device(Wanted {
            asked,
            application,
            url,
            own: true,
        }));
    }

    /// An application of a server's list.
    fn listed(&mut self, asked: usize, application: Application, alone: bool) {
        let url = match place::wanted(self.details, &application) {
            Ok(url) => url,
            Err(skip) => {
                self.leave_out(skip);
                return;
            }
        };
        let Application {
            uri, product, name, ..
        } = &application;
        let texts = application.urls.iter().chain([uri, product, name]);
        // What decides among several descriptions is the same once more.
        if !self.has_room(2 * texts.map(String::len).sum::<usize>(), &url) {
            return;
        }
        let own = self.asked.get(asked).is_some_and(|asked| {
            let uri = application.uri.as_str();
            alone
                || if asked.own.is_empty() || uri.is_empty() {
                    url.port() == asked.url.port()
                } else {
                    asked.own == uri
                }
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
        if self.has_room(record.name.len(), &url) {
            self.place(Waiting::Further { asked, url });
        }
    }

    fn has_room(&mut self, text: usize, url: &Url) -> bool {
        self.text = self.text.saturating_add(text + 4 * url.as_str().len());
        let room = self.text <= MAX_TEXT;
        if !room {
            self.late = true;
            let reason = "the servers of this call list more than is looked at".to_owned();
            self.skip(url.as_str(), "discoveryUrls", reason);
        }
        room
    }

    /// Finds out where something is, as soon as its name is looked up.
    fn place(&mut self, mut waiting: Waiting) {
        let (Waiting::Device(Wanted { asked, .. }) | Waiting::Further { asked, .. }) = &waiting;
        let (asked, listed) = (*asked, waiting.url().clone());
        let turn = self.turn(asked, &peer_of(&listed));
        let lookup = match listed.host() {
            Host::Name(name) if listed.host().can_be_looked_up() && !listed.is_loopback() => {
                match self.names.find(name, asked, waiting) {
                    Found::Known(lookup, back) => {
                        waiting = *back;
                        lookup
                    }
                    Found::Later => return,
                }
            }
            Host::Name(_) if !listed.is_loopback() => Lookup::Known(&[]),
            _ => Lookup::Unneeded,
        };
        let Some(source) = self.asked.get(asked) else {
            return;
        };
        let own = matches!(&waiting, Waiting::Device(wanted) if wanted.own);
        let place = place::place(
            self.details.rewrites(),
            &listed,
            lookup,
            &Source {
                url: &source.url,
                addresses: &source.addresses,
            },
            own,
        );
        let rule = source.rule.clone();
        match (place, waiting) {
            (Err(why), _) => self.skip(listed.as_str(), "hostRewrite", why),
            (Ok(place), Waiting::Device(wanted)) => {
                self.confirm(&place, &wanted.url, turn);
                let rank = self.rank(&wanted);
                self.placed.put(&rank, (wanted, place));
            }
            (Ok(place), Waiting::Further { .. }) => self.go_further(place.url, rule, turn),
        }
    }

    fn confirm(&mut self, place: &Place, listed: &Url, turn: Turn) {
        let peer = peer_of(&place.url);
        if self.peers.has(&peer.to_string()) {
            return;
        }
        self.becomes(peer.clone(), State::Unknown);
        let task = Task::Confirm {
            facts: self.memory.wants_facts(&peer),
            peer,
            url: place.url.clone(),
            listed: listed.as_str().to_owned(),
            addresses: place.addresses.clone(),
            known: self.memory.knows(&peer_of(&place.url)),
        };
        self.tasks.add(turn, task);
    }

    fn go_further(&mut self, url: Url, rule: String, turn: Turn) {
        let known = self.peers.has(&peer_of(&url).to_string());
        if known || self.further.put(url.as_str(), ()).is_some() {
            return;
        }
        if self.further.len() > MAX_FURTHER {
            self.late = true;
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
        self.leave_out(Skip {
            subject: subject.to_owned(),
            rule: rule.to_owned(),
            reason,
        });
    }

    fn leave_out(&mut self, skip: Skip) {
        if self.skipped.len() < MAX_SKIPPED {
            let name = format!("{}\n{}\n{}", skip.subject, skip.rule, skip.reason);
            self.skipped.put(&name, skip);
        }
    }
}

/// Who listens at that URL.
fn peer_of(url: &Url) -> Peer {
    Peer {
        host: url.host().written(),
        port: url.port(),
    }
}
