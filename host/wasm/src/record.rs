//! What is kept of a call whatever becomes of it: the store of a call that is ended dies with it, this does not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leafhost_core::session::Explanation;

use crate::cpu::CpuMeter;
use crate::limits::MemoryUse;
use crate::text::{Secrets, cut};

/// How many explanations of a call are kept.
const EXPLANATIONS: usize = 1000;
/// The longest text of an explanation, in bytes.
const EXPLANATION_TEXT: usize = 512;
/// How many different denials of a call are kept.
const DENIALS: usize = 64;
/// How much of the guest's last words on standard error is kept, in bytes.
const LAST_WORDS: usize = 1024;

/// What is kept of one call.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Memory.
    pub(crate) memory: Arc<MemoryUse>,
    /// Computing.
    pub(crate) cpu: Arc<CpuMeter>,
    /// Masked in all that is kept.
    secrets: Arc<Secrets>,
    kept: Mutex<Kept>,
}

/// The parts that are more than a number.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Things seen and left out.
    pub(crate) explained: Vec<Explanation>,
    /// How many more.
    pub(crate) explained_dropped: u64,
    /// What was asked for and denied.
    pub(crate) denied: BTreeSet<String>,
    /// Nodes of devices that udev gave to this call.
    pub(crate) nodes: BTreeSet<String>,
    /// Log lines over the rate.
    pub(crate) log_dropped: u64,
    /// The end of what it wrote to standard error: a panic's message, most often.
    pub(crate) last_words: String,
}

impl Record {
    /// Of a call that has seen these secrets.
    pub(crate) fn new(secrets: Arc<Secrets>) -> Self {
        Self {
            secrets,
            ..Self::default()
        }
    }

    /// The parts that are more than a number.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes them out.
    pub(crate) fn take(&self) -> Kept {
        std::mem::take(&mut *self.kept())
    }

    /// Keeps an explanation, within the bounds.
    pub(crate) fn explain(&self, subject: &str, rule: &str, reason: &str) {
        let mut kept = self.kept();
        if kept.explained.len() >= EXPLANATIONS {
            kept.explained_dropped += 1;
            return;
        }
        kept.explained.push(Explanation {
            subject: self.secrets.clean(subject, EXPLANATION_TEXT),
            rule: self.secrets.clean(rule, EXPLANATION_TEXT),
            reason: self.secrets.clean(reason, EXPLANATION_TEXT),
        });
    }

    /// Keeps a denial, within the bounds.
    pub(crate) fn deny(&self, what: &str) {
        let mut kept = self.kept();
        if kept.denied.len() < DENIALS {
            kept.denied.insert(self.secrets.clean(what, 256));
        }
    }

    /// Keeps the newest line of standard error.
    pub(crate) fn last_words(&self, line: &str) {
        let line = self.secrets.mask(line);
        let mut kept = self.kept();
        if !kept.last_words.is_empty() {
            kept.last_words.push(' ');
        }
        kept.last_words.push_str(cut(&line, LAST_WORDS));
        let over = kept.last_words.len().saturating_sub(LAST_WORDS);
        let start = (over..=kept.last_words.len())
            .find(|start| kept.last_words.is_char_boundary(*start))
            .unwrap_or(0);
        kept.last_words.drain(..start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_are_bounded_and_the_rest_is_counted() {
        let record = Record::default();
        for _ in 0..1100 {
            record.explain(&"s".repeat(600), "r", "n\n");
        }
        let kept = record.take();
        assert_eq!((kept.explained.len(), kept.explained_dropped), (1000, 100));
        let first = kept.explained.first().unwrap();
        assert!(first.subject.len() < 520);
        assert_eq!(first.reason, "n\\n");
    }

    #[test]
    fn the_last_words_are_the_end() {
        let record = Record::default();
        for n in 0..2000 {
            record.last_words(&format!("öine {n}"));
        }
        let kept = record.take();
        assert!(kept.last_words.len() <= 1024);
        assert!(kept.last_words.ends_with("öine 1999"));
    }

    #[test]
    fn a_secret_is_masked_before_words_are_cut() {
        let property = leafhost_core::session::Property {
            name: "password".into(),
            value: Some(b"hunter2hunter2".as_slice().into()),
            secret: true,
        };
        let record = Record::new(Arc::new(Secrets::new(&[property])));
        // The cut goes through the secret.
        record.last_words("hunter2hunter2");
        record.last_words(&"x".repeat(LAST_WORDS - 8));
        record.deny(&format!("{}hunter2hunter2", "y".repeat(250)));
        let kept = record.take();
        for text in kept.denied.iter().chain([&kept.last_words]) {
            assert!(!text.contains("nter2") && !text.contains("hunt"), "{text}");
        }
    }
}
