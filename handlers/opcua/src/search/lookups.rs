//! Selects the names to look up. A call has a limited number of lookups: the servers that list names share them, and every
//! call starts with other names.

use std::net::IpAddr;

use leafhost_sdk::net::{self, LOOK_UPS};

use super::Waiting;
use crate::location::Lookup;
use crate::table::Table;
use crate::text::digest;
use crate::url::Url;

/// Name lookups of a call.
#[derive(Debug, Default)]
pub struct NameLookups {
    table: Table<Name>,
    /// Names by the server that listed them.
    sources: Vec<Source>,
    /// Number of lookups that are used, or reserved for the configured servers.
    used: usize,
    /// Number of configured servers, and of those among them that have not answered yet.
    configured: usize,
    unheard: usize,
    /// Number of the call, which determines the order of the names.
    round: u64,
}

#[derive(Debug)]
enum Name {
    /// Values that wait for the name, and true once the lookup has begun.
    Asked(Vec<Waiting>, bool),
    Known(Result<Vec<IpAddr>, net::Error>),
}

/// Server that lists names.
#[derive(Debug, Default)]
struct Source {
    /// First of its names in this call's order; the next to look up comes last.
    due: Vec<(u64, String)>,
    looked_up: usize,
}

/// State of a name.
pub enum Found<'a> {
    /// Result of the lookup, with the value that asked for it.
    Known(Lookup<'a>, Box<Waiting>),
    /// Pending lookup; the value waits for it.
    Later,
}

impl NameLookups {
    /// Reserves lookups for the configured servers.
    pub fn new<'a>(configured: impl Iterator<Item = &'a Url>, round: u64) -> Self {
        let mut lookups = Self {
            round,
            ..Self::default()
        };
        for url in configured {
            lookups.configured += 1;
            if url.host().can_be_looked_up() && !url.is_loopback() {
                lookups.used += 1;
            }
        }
        lookups.unheard = lookups.configured;
        lookups
    }

    /// Records that a configured server has answered or failed.
    pub fn heard(&mut self) {
        self.unheard = self.unheard.saturating_sub(1);
    }

    /// Returns the result for a name, or queues `waiting` until there is one. `source` is the index of the server that
    /// listed it.
    pub fn find(&mut self, name: &str, source: usize, waiting: Waiting) -> Found<'_> {
        if !self.table.has(name) {
            self.table.put(name, Name::Asked(Vec::new(), false));
        }
        match self.table.get_mut(name) {
            Some(Name::Known(Ok(found))) => Found::Known(Lookup::Known(found), Box::new(waiting)),
            Some(Name::Known(Err(error))) => Found::Known(Lookup::Failed(error), Box::new(waiting)),
            Some(Name::Asked(all, _)) => {
                all.push(waiting);
                if self.sources.len() <= source {
                    self.sources.resize_with(source + 1, Source::default);
                }
                let key = digest(format!("{} {name}", self.round).as_bytes());
                if let Some(source) = self.sources.get_mut(source) {
                    source.wants(key, name);
                }
                Found::Later
            }
            None => Found::Later,
        }
    }

    /// Returns the next name to look up, from the server with the fewest lookups. While other configured servers may still
    /// list names, each has only its share.
    pub fn next(&mut self) -> Option<String> {
        let share = match self.unheard {
            0 => LOOK_UPS,
            _ => LOOK_UPS / self.configured.max(1),
        };
        while self.used < LOOK_UPS {
            let sources = self.sources.iter_mut();
            let source = sources
                .filter(|source| !source.due.is_empty() && source.looked_up < share)
                .min_by_key(|source| source.looked_up)?;
            let (_, name) = source.due.pop()?;
            if let Some(Name::Asked(_, begun @ false)) = self.table.get_mut(&name) {
                *begun = true;
                source.looked_up += 1;
                self.used += 1;
                return Some(name);
            }
        }
        None
    }

    /// Stores the result for a name; returns the values that waited for it.
    pub fn learn(&mut self, name: &str, found: Result<Vec<IpAddr>, net::Error>) -> Vec<Waiting> {
        match self.table.put(name, Name::Known(found)) {
            Some(Name::Asked(waiting, _)) => waiting,
            Some(Name::Known(_)) | None => Vec::new(),
        }
    }

    /// Returns one URL for each name that was not looked up.
    pub fn left(&self) -> Vec<Url> {
        let waiting = self.table.things().iter().filter_map(|name| match name {
            Name::Asked(waiting, false) => waiting.first(),
            Name::Asked(..) | Name::Known(_) => None,
        });
        waiting.map(|waiting| waiting.url().clone()).collect()
    }
}

impl Source {
    fn wants(&mut self, key: u64, name: &str) {
        let Err(index) = self.due.binary_search_by(|due| key.cmp(&due.0)) else {
            return;
        };
        self.due.insert(index, (key, name.to_owned()));
        if self.due.len() > LOOK_UPS {
            self.due.remove(0);
        }
    }
}
