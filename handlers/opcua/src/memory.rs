//! State that a call leaves to the next one: the servers that answered, their settings, and the servers that did not answer.
//! Without it a call finds the same devices, only slower.

use std::fmt;

use crate::security_settings::SecuritySettings;
use crate::text::digest;

/// Maximum number of known servers.
const MAX_SERVERS: usize = 4_096;
/// Maximum number of silent servers.
const MAX_SILENT: usize = 8_192;
/// Maximum number of bytes in the cursor.
const MAX_BYTES: usize = 1 << 20;
/// Number of calls after which a server's endpoints are requested again: ten minutes with a call every ten seconds.
const REFRESH: u64 = 60;

/// Address of a server: its host as written, and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Host, as in a URL.
    pub host: String,
    pub port: u16,
}

/// Decoded cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Number of calls so far.
    round: u64,
    /// Digest of the last complete answer.
    answer: Option<u64>,
    /// Servers that answered, by digest of host and port, sorted.
    servers: Vec<(u64, Option<SecuritySettings>)>,
    /// Digests of servers that did not answer, sorted.
    silent: Vec<u64>,
}

impl Memory {
    /// Decodes the output of [`write`](Self::write); an unreadable cursor is discarded.
    pub fn read(bytes: Option<&[u8]>) -> Self {
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let mut memory = Self::default();
        for line in text.unwrap_or_default().lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let mut fields = rest.split('\t');
            let number = fields
                .next()
                .and_then(|digits| u64::from_str_radix(digits, 16).ok());
            match (word, number) {
                ("round", Some(number)) => memory.round = number,
                ("answer", number) => memory.answer = number,
                ("server", Some(number)) => memory
                    .servers
                    .push((number, SecuritySettings::read(fields))),
                ("silent", Some(number)) => memory.silent.push(number),
                _ => return Self::default(),
            }
        }
        let sorted = memory.servers.is_sorted_by_key(|(number, _)| *number);
        if sorted && memory.silent.is_sorted() {
            memory
        } else {
            Self::default()
        }
    }

    /// Encodes the cursor, one line per item; `None` if it is too large. A format for arbitrary types would make the
    /// component larger.
    pub fn write(&self) -> Option<Vec<u8>> {
        let mut lines = vec![format!("round {:x}", self.round)];
        lines.extend(self.answer.map(|answer| format!("answer {answer:x}")));
        for (number, settings) in &self.servers {
            lines.push(match settings {
                Some(settings) => format!("server {number:x}\t{}", settings.write()),
                None => format!("server {number:x}"),
            });
        }
        for number in &self.silent {
            lines.push(format!("silent {number:x}"));
        }
        let text = lines.join("\n");
        (text.len() <= MAX_BYTES).then(|| text.into_bytes())
    }

    /// Creates an empty memory for the next call.
    pub fn following(&self) -> Self {
        Self {
            round: self.round.wrapping_add(1),
            ..Self::default()
        }
    }

    /// Returns the number of calls so far.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns true if that server answered last time.
    pub fn knows(&self, peer: &Peer) -> bool {
        self.index_of(peer).is_ok()
    }

    /// Returns true if that server did not answer last time.
    pub fn was_silent(&self, peer: &Peer) -> bool {
        self.silent.binary_search(&peer.digest()).is_ok()
    }

    /// Returns the last known settings of the server.
    pub fn settings(&self, peer: &Peer) -> Option<&SecuritySettings> {
        let index = self.index_of(peer).ok()?;
        self.servers.get(index)?.1.as_ref()
    }

    fn index_of(&self, peer: &Peer) -> Result<usize, usize> {
        let digest = peer.digest();
        self.servers
            .binary_search_by(|(other, _)| other.cmp(&digest))
    }

    /// Returns true if the server's endpoints are to be requested in this call; the servers take turns.
    pub fn wants_facts(&self, peer: &Peer) -> bool {
        let turn = peer.digest() % REFRESH == self.round % REFRESH;
        turn || self.settings(peer).is_none()
    }

    /// Records that a server answered.
    pub fn answered(&mut self, peer: &Peer, settings: Option<SecuritySettings>) {
        if let Err(index) = self.index_of(peer)
            && self.servers.len() < MAX_SERVERS
        {
            self.servers.insert(index, (peer.digest(), settings));
        }
    }

    /// Records that a server did not answer.
    pub fn failed(&mut self, peer: &Peer) {
        let digest = peer.digest();
        if let Err(index) = self.silent.binary_search(&digest)
            && self.silent.len() < MAX_SILENT
        {
            self.silent.insert(index, digest);
        }
    }

    /// Records a complete answer; returns true if it equals that of `before`.
    pub fn answer(&mut self, before: &Self, written: &str) -> bool {
        self.answer = Some(digest(written.as_bytes()));
        self.answer == before.answer
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Peer {
    fn digest(&self) -> u64 {
        digest(self.to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_peer(number: u16) -> Peer {
        Peer {
            host: "plc".to_owned(),
            port: number,
        }
    }

    #[test]
    fn servers_are_remembered_for_the_next_call() {
        let mut memory = Memory::default().following();
        memory.answered(&mk_peer(1), Some(SecuritySettings::default()));
        memory.answered(&mk_peer(2), None);
        memory.failed(&mk_peer(3));
        let written = memory.write().unwrap();
        assert_eq!(Memory::read(Some(&written)), memory);
        assert!(memory.knows(&mk_peer(1)) && memory.knows(&mk_peer(2)));
        assert!(!memory.knows(&mk_peer(3)) && memory.was_silent(&mk_peer(3)));
        assert!(memory.wants_facts(&mk_peer(2)) && memory.wants_facts(&mk_peer(4)));
        assert_eq!(memory.following().round, 2);
    }

    #[test]
    fn every_servers_endpoints_are_asked_for_once_in_sixty_calls() {
        let peer = mk_peer(4840);
        let mut memory = Memory::default();
        memory.answered(&peer, Some(SecuritySettings::default()));
        let asked = (0..120).filter(|_| {
            memory.round += 1;
            memory.wants_facts(&peer)
        });
        assert_eq!(asked.count(), 2);
    }

    #[test]
    fn unreadable_bytes_give_an_empty_memory() {
        for bytes in [
            None,
            Some(&b""[..]),
            Some(&[0xff; 40]),
            Some(b"round 1\nelse 2\n"),
            Some(b"round x\n"),
            Some(b"silent 2\nsilent 1\n"),
            Some(b"server 2\nserver 1\n"),
        ] {
            assert_eq!(Memory::read(bytes), Memory::default());
        }
    }

    #[test]
    fn a_full_memory_fits_into_a_cursor() {
        let mut memory = Memory::default();
        for number in 0..u16::MAX {
            let settings = SecuritySettings {
                certificate: "a".repeat(64),
                application: "u".repeat(60),
                policies: vec!["Aes256_Sha256_RsaPss".to_owned(), "None".to_owned()],
                ..SecuritySettings::default()
            };
            memory.answered(&mk_peer(number), Some(settings));
            memory.failed(&mk_peer(number));
        }
        let written = memory.write().unwrap();
        assert_eq!(Memory::read(Some(&written)), memory);
    }

    #[test]
    fn a_repeated_answer_is_recognized() {
        let mut before = Memory::default();
        assert!(!before.answer(&Memory::default(), "a"));
        assert!(before.following().answer(&before, "a"));
        assert!(!before.following().answer(&before, "b"));
        let nothing = before.following();
        assert!(!nothing.following().answer(&nothing, "a"));
    }
}
