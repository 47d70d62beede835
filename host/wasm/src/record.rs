//! Data kept of a call, however it ends: outlives the call's store.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leafhost_core::session::Explanation;
use leafhost_grants::{Secrets, cut};

use crate::cpu::CpuMeter;
use crate::limits::MemoryUse;

/// Maximum number of explanations kept per call.
const EXPLANATIONS: usize = 1000;
/// Maximum length of a text of an explanation, in bytes.
const EXPLANATION_TEXT: usize = 512;
/// Maximum number of different denials kept per call.
const DENIALS: usize = 64;
/// Bytes kept of the end of the guest's standard error.
const STDERR_TAIL: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) memory: Arc<MemoryUse>,
    pub(crate) cpu: Arc<CpuMeter>,
    /// Secrets, masked in everything that is kept.
    pub(crate) secrets: Arc<Secrets>,
    kept: Mutex<Kept>,
}

/// Parts of a [`Record`] behind its lock.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Explanations of things that were seen and left out.
    pub(crate) explained: Vec<Explanation>,
    /// Number of explanations that were dropped.
    pub(crate) explained_dropped: u64,
    pub(crate) denied: BTreeSet<String>,
    /// Device nodes that udev returned to this call.
    pub(crate) nodes: BTreeSet<String>,
    /// Number of log lines that the rate limit has dropped.
    pub(crate) log_dropped: u64,
    /// End of standard error; most often a panic's message.
    pub(crate) stderr_tail: String,
}

impl Record {
    /// Creates the record of a call that has access to these secrets.
    pub(crate) fn new(secrets: Arc<Secrets>) -> Self {
        Self {
            secrets,
            ..Self::default()
        }
    }

    /// Locks the [`Kept`] parts.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the [`Kept`] parts and leaves empty ones.
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

    /// Appends a line of standard error and keeps the end.
    pub(crate) fn stderr_tail(&self, line: &str) {
        let line = self.secrets.mask(line);
        let mut kept = self.kept();
        if !kept.stderr_tail.is_empty() {
            kept.stderr_tail.push(' ');
        }
        kept.stderr_tail.push_str(cut(&line, STDERR_TAIL));
        let over = kept.stderr_tail.len().saturating_sub(STDERR_TAIL);
        let start = kept.stderr_tail.ceil_char_boundary(over);
        kept.stderr_tail.drain(..start);
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
    fn the_end_of_standard_error_is_kept() {
        let record = Record::default();
        for n in 0..2000 {
            record.stderr_tail(&format!("öine {n}"));
        }
        let kept = record.take();
        assert!(kept.stderr_tail.len() <= 1024);
        assert!(kept.stderr_tail.ends_with("öine 1999"));
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
        record.stderr_tail("hunter2hunter2");
        record.stderr_tail(&"x".repeat(STDERR_TAIL - 8));
        record.deny(&format!("{}hunter2hunter2", "y".repeat(250)));
        let kept = record.take();
        for text in kept.denied.iter().chain([&kept.stderr_tail]) {
            assert!(!text.contains("nter2") && !text.contains("hunt"), "{text}");
        }
    }
}
