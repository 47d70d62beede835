//! Which names are looked up. A call has only so many look-ups: servers that list names take turns, and every call begins with
//! other names of theirs.

use std::net::IpAddr;

use leafhost_sdk::net::{self, LOOK_UPS};

use super::Waiting;
use crate::place::Lookup;
use crate::table::Table;
use crate::text::digest;
use crate::url::Url;

/// The names of a call.
#[derive(Debug, Default)]
pub struct Names {
    table: Table<Name>,
    /// By the server that listed them.
    sources: Vec<Source>,
    /// How many were looked up, or will be for the servers that are configured.
    used: usize,
    /// How many servers are configured, and how many of them have not said what they know.
    configured: usize,
    unheard: usize,
    /// What the order of the names depends on.
    round: u64,
}

#[derive(Debug)]
enum Name {
    /// What waits for it, and whether it is being looked up.
    Asked(Vec<Waiting>, bool),
    Known(Result<Vec<IpAddr>, net::Error>),
}

/// A server that lists names.
#[derive(Debug, Default)]
struct Source {
    /// The first of its names in the order of this call, the last one first.
    due: Vec<(u64, String)>,
    looked_up: usize,
}

/// What is known of a name.
pub enum Found<'a> {
    /// It is looked up; what wanted it comes back.
    Known(Lookup<'a>, Box<Waiting>),
    /// What wants it waits.
    Later,
}

impl Names {
    /// Keeps look-ups for the servers that are asked in any case.
    pub fn new<'a>(configured: impl Iterator<Item = &'a Url>, round: u64) -> Self {
        let mut names = Self {
            round,
            ..Self::default()
        };
        for url in configured {
            names.configured += 1;
            if url.host().can_be_looked_up() && !url.is_loopback() {
                names.used += 1;
            }
        }
        names.unheard = names.configured;
        names
    }

    /// One of the configured servers has said what it knows, or says nothing.
    pub fn heard(&mut self) {
        self.unheard = self.unheard.saturating_sub(1);
    }

    /// What a name leads to; or what wants it waits until that is known. `source` is the place of the server that listed it.
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

    /// The next name to look up: of the server whose names were looked up least. As long as others may list names too, it has
    /// its share and no more.
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

    /// Takes what a name leads to. What has waited for it comes back.
    pub fn learn(&mut self, name: &str, found: Result<Vec<IpAddr>, net::Error>) -> Vec<Waiting> {
        match self.table.put(name, Name::Known(found)) {
            Some(Name::Asked(waiting, _)) => waiting,
            Some(Name::Known(_)) | None => Vec::new(),
        }
    }

    /// What waits for names that were not looked up, one for each.
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
        let Err(place) = self.due.binary_search_by(|due| key.cmp(&due.0)) else {
            return;
        };
        self.due.insert(place, (key, name.to_owned()));
        if self.due.len() > LOOK_UPS {
            self.due.remove(0);
        }
    }
}
