//! Decides which server is asked for what, in which order, and collects the outcomes. It opens no connections; it hands out
//! tasks.
//!
//! A peer influences the order only within bounds. Known servers come before new ones, the servers listed by different peers
//! take turns, and servers that did not answer last time come last. A list of many invented servers therefore delays no
//! other server.

mod lookups;
mod queue;
mod results;
mod tasks;

use std::net::IpAddr;

use lookups::{Found, NameLookups};
use queue::{Priority, TaskQueue, Urgency};
pub use results::Results;
pub use tasks::{Answers, Outcome, SettingsResult, Task};

use crate::details::{self, Details};
use crate::location::{self, Location, Lookup, Skip, Source};
use crate::memory::{Memory, Peer};
use crate::messages::{Application, Record};
use crate::mirrored;
use crate::security_settings::SecuritySettings;
use crate::table::Table;
use crate::text::quoted;
use crate::url::{Host, Url};

/// Maximum number of servers asked because a discovery server named them.
const MAX_FURTHER: usize = 1_000;
/// Maximum number of explanations that the host accepts.
const MAX_SKIPPED: usize = 1_000;
/// Maximum number of bytes of text kept from servers' lists.
const MAX_TEXT: usize = 4 << 20;
/// Type of an application that does not report its type.
const UNNAMED: u32 = u32::MAX;

/// Server to ask.
#[derive(Debug)]
struct Asked {
    url: Url,
    /// Field of the details that it comes from.
    rule: String,
    /// True if a discovery server named it, not the details.
    further: bool,
    addresses: Vec<IpAddr>,
    /// URI of its own application.
    own: String,
    /// URI in its endpoints.
    endpoints: String,
    /// Number of its listed servers that have been considered, for the order.
    considered: u32,
}

/// Application that the details select as a device.
#[derive(Debug, Clone)]
struct Wanted {
    asked: usize,
    application: Application,
    url: Url,
    own: bool,
    /// True if the same list has another application with this URL.
    shared: bool,
}

/// Listed server that waits for a name lookup.
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

/// Server and its state.
#[derive(Debug)]
struct Server {
    peer: Peer,
    state: State,
    /// URI by which it listed itself, if it was asked.
    own: String,
}

#[derive(Debug)]
enum State {
    Unknown,
    /// Server that answered, with the settings of its endpoints or the reason why they are unknown.
    Alive(Option<SecuritySettings>, String),
    Dead(String),
}

/// Search of one call.
#[derive(Debug)]
pub struct Search<'a> {
    details: &'a Details,
    memory: &'a Memory,
    asked: Vec<Asked>,
    tasks: TaskQueue,
    lookups: NameLookups,
    peers: Table<Server>,
    placed: Table<(Wanted, Location)>,
    /// URLs from `FindServersOnNetwork`, so that each is asked once.
    further: Table<()>,
    skipped: Table<Skip>,
    text: usize,
    open: usize,
    /// True if part of the search was left for a later call.
    late: bool,
}

impl<'a> Search<'a> {
    /// Starts a search.
    pub fn new(details: &'a Details, memory: &'a Memory) -> Self {
        let urls = details.urls();
        let mut search = Self {
            details,
            memory,
            asked: Vec::new(),
            tasks: TaskQueue::default(),
            lookups: NameLookups::new(urls.iter().map(|(_, url)| url), memory.round()),
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

    /// Returns the next task, if one can run now. Each task's outcome must be passed to [`Self::take`].
    pub fn next(&mut self) -> Option<Task> {
        let task = match self.lookups.next() {
            Some(name) => Task::LookUp(name),
            None => self.tasks.next()?,
        };
        self.open += 1;
        Some(task)
    }

    /// Takes the outcome of a task.
    pub fn take(&mut self, outcome: Outcome) {
        self.open = self.open.saturating_sub(1);
        match outcome {
            Outcome::Asked(asked, answers) => self.asked(asked, answers),
            Outcome::LookedUp(name, found) => {
                for waiting in self.lookups.learn(&name, found) {
                    self.locate(waiting);
                }
            }
            Outcome::Confirmed(peer, Ok(settings_result)) => {
                let alive = self.alive(&peer, settings_result);
                self.set_state(peer, alive);
            }
            Outcome::Confirmed(peer, Err(why)) => {
                self.set_state(peer, State::Dead(why));
            }
        }
    }

    fn set_state(&mut self, peer: Peer, state: State) {
        let server = Server {
            state,
            own: String::new(),
            peer,
        };
        self.peers.put(&server.peer.to_string(), server);
    }

    fn ask(&mut self, url: Url, rule: String, further: bool, priority: Priority) {
        let peer = peer_of(&url);
        let asked = self.asked.len();
        let task = Task::Ask {
            asked,
            settings: self.memory.wants_facts(&peer),
            records: !further,
            known: self.memory.knows(&peer),
            known_application: self
                .memory
                .settings(&peer)
                .map(|settings| settings.application.clone()),
            url: url.clone(),
        };
        self.tasks.add(priority, task);
        if !self.peers.has(&peer.to_string()) {
            self.set_state(peer, State::Unknown);
        }
        self.asked.push(Asked {
            url,
            rule,
            further,
            addresses: Vec::new(),
            own: String::new(),
            endpoints: String::new(),
            considered: 0,
        });
    }

    /// Returns the state of a server that answers, with its current or earlier settings.
    fn alive(&self, peer: &Peer, settings_result: SettingsResult) -> State {
        let (settings, why) = match settings_result {
            Some(Ok(settings)) => (Some(settings), String::new()),
            Some(Err(why)) => (None, why),
            None => (None, String::new()),
        };
        State::Alive(
            settings.or_else(|| self.memory.settings(peer).cloned()),
            why,
        )
    }

    fn asked(&mut self, index: usize, answers: Answers) {
        let Some(peer) = self.asked.get(index).map(|asked| peer_of(&asked.url)) else {
            return;
        };
        let settings_result = answers.settings.or_else(|| answers.error.clone().map(Err));
        let alive = self.alive(&peer, settings_result);
        let Some(asked) = self.asked.get_mut(index) else {
            return;
        };
        if !asked.further {
            self.lookups.heard();
        }
        self.late |= answers.cut;
        asked.addresses = answers.addresses;
        let endpoints = match &alive {
            State::Alive(Some(settings), _) => settings.application.clone(),
            _ => String::new(),
        };
        let own = match &answers.servers {
            Some(servers) => mirrored::own(&servers.items, &endpoints).to_owned(),
            None => endpoints.clone(),
        };
        asked.own.clone_from(&own);
        asked.endpoints = endpoints;
        let (url, rule) = (asked.url.clone(), asked.rule.clone());
        if let (Host::Name(name), false) = (url.host(), asked.addresses.is_empty()) {
            // The conversation has looked the name up.
            let found = Ok(asked.addresses.clone());
            for waiting in self.lookups.learn(name, found) {
                self.locate(waiting);
            }
        }
        let why = answers.error.unwrap_or_else(|| "gave no answer".to_owned());
        let state = if answers.alive {
            alive
        } else {
            State::Dead(why.clone())
        };
        // Two URLs may lead to the same server although only one of them works.
        let known = self.peers.get(&peer.to_string());
        if !known.is_some_and(|known| matches!(known.state, State::Alive(..))) {
            self.set_state(peer.clone(), state);
        }
        if let Some(server) = self.peers.get_mut(&peer.to_string())
            && server.own.is_empty()
        {
            server.own.clone_from(&own);
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
                "lists more servers than the handler asks".to_owned(),
            );
        }
        let alone = servers.items.len() == 1;
        let items = match answers.plain {
            Some(plain) => mirrored::corrected(servers.items, &plain.items, &url, &own),
            None => servers.items,
        };
        let mut listed = Table::default();
        for url in items.iter().flat_map(|item| &item.urls) {
            listed.put(url, ());
        }
        let shared = mirrored::shared_urls(&items);
        for application in items {
            let is_shared = application.url().is_some_and(|url| shared.has(url));
            self.listed(index, application, alone, is_shared);
        }
        let Some(records) = answers.records else {
            return;
        };
        if records.cut {
            self.late = true;
            self.skip(
                url.as_str(),
                &rule,
                "knows more servers from the network than the handler asks".to_owned(),
            );
        }
        for record in records.items {
            if !listed.has(&record.url) {
                self.recorded(index, &record);
            }
        }
    }

    /// Handles a server that answers only Hello: it is a device at the URL by which it was asked.
    fn refused(&mut self, asked: usize, url: Url, why: &str) {
        if let Some(rule) = location::leaves_out_unnamed(self.details) {
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
        self.locate(Waiting::Device(Wanted {
            asked,
            application,
            url,
            own: true,
            shared: false,
        }));
    }

    /// Handles an application from `FindServers`.
    fn listed(&mut self, asked: usize, mut application: Application, alone: bool, shared: bool) {
        // A server that lists itself without a URL is where it answered.
        if let Some(asked) = self.asked.get(asked)
            && (alone || !asked.own.is_empty() && asked.own == application.uri)
            && application.url().is_none_or(|url| Url::parse(url).is_err())
        {
            application.urls = vec![asked.url.as_str().to_owned()];
        }
        let url = match location::wanted(self.details, &application) {
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
        // The sort key of `rank` repeats these texts.
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
            shared,
        };
        self.locate(Waiting::Device(wanted));
    }

    /// Handles a server from `FindServersOnNetwork`.
    fn recorded(&mut self, asked: usize, record: &Record) {
        let url = match Url::parse(&record.url) {
            Ok(url) if url.is_opc_tcp() => url,
            Ok(_) => return,
            Err(error) => {
                let subject = location::shown(&record.url);
                let reason = format!(
                    "the discovery URL of {} on the network {error}",
                    quoted(&record.name)
                );
                self.skip(&subject, "FindServersOnNetwork", reason);
                return;
            }
        };
        if self.has_room(record.name.len(), &url) {
            self.locate(Waiting::Further { asked, url });
        }
    }

    fn has_room(&mut self, text: usize, url: &Url) -> bool {
        self.text = self.text.saturating_add(text + 4 * url.as_str().len());
        let room = self.text <= MAX_TEXT;
        if !room {
            self.late = true;
            let reason =
                "the servers of this call list more servers than the handler asks".to_owned();
            self.skip(url.as_str(), "discoveryUrls", reason);
        }
        room
    }

    /// Locates a listed server once its name is looked up.
    fn locate(&mut self, mut waiting: Waiting) {
        let (Waiting::Device(Wanted { asked, .. }) | Waiting::Further { asked, .. }) = &waiting;
        let (asked, listed) = (*asked, waiting.url().clone());
        let priority = self.priority(asked, &peer_of(&listed));
        let lookup = match listed.host() {
            Host::Name(name) if listed.host().can_be_looked_up() && !listed.is_loopback() => {
                match self.lookups.find(name, asked, waiting) {
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
        let location = location::locate(
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
        match (location, waiting) {
            (Err(why), _) => self.skip(listed.as_str(), "hostRewrite", why),
            (Ok(location), Waiting::Device(wanted)) => {
                self.confirm(&location, &wanted, priority);
                let rank = self.rank(&wanted);
                self.placed.put(&rank, (wanted, location));
            }
            (Ok(location), Waiting::Further { .. }) => {
                self.ask_further(location.url, rule, priority);
            }
        }
    }

    fn confirm(&mut self, location: &Location, wanted: &Wanted, priority: Priority) {
        let peer = peer_of(&location.url);
        if self.peers.has(&peer.to_string()) {
            return;
        }
        self.set_state(peer.clone(), State::Unknown);
        // Settings of another application may be outdated.
        let remembered = self.memory.settings(&peer);
        let is_other = remembered.is_some_and(|settings| differs(wanted, [&settings.application]));
        let task = Task::Confirm {
            settings: is_other || self.memory.wants_facts(&peer),
            peer,
            url: location.url.clone(),
            listed: wanted.url.as_str().to_owned(),
            addresses: location.addresses.clone(),
            known: self.memory.knows(&peer_of(&location.url)),
        };
        self.tasks.add(priority, task);
    }

    fn ask_further(&mut self, url: Url, rule: String, priority: Priority) {
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
        self.ask(url, rule, true, priority);
    }

    fn priority(&mut self, asked: usize, peer: &Peer) -> Priority {
        let urgency = if self.memory.knows(peer) {
            Urgency::Known
        } else if self.memory.was_silent(peer) {
            Urgency::Silent
        } else {
            Urgency::New
        };
        let considered = self.asked.get_mut(asked).map_or(0, |asked| {
            asked.considered = asked.considered.saturating_add(1);
            asked.considered
        });
        (urgency, considered, asked)
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

/// Returns true if the application's URI differs from all that are known to answer at its URL.
fn differs<'n>(wanted: &Wanted, answering: impl IntoIterator<Item = &'n String>) -> bool {
    let uri = wanted.application.uri.as_str();
    let mut answering = answering
        .into_iter()
        .filter(|other| !other.is_empty())
        .peekable();
    !uri.is_empty()
        && answering.peek().is_some()
        && !answering.any(|other| other.eq_ignore_ascii_case(uri))
}

/// Returns the host and port of a URL.
fn peer_of(url: &Url) -> Peer {
    Peer {
        host: url.host().written(),
        port: url.port(),
    }
}
