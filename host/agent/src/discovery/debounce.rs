//! Limits how often the report about all sessions is made: it is a document of all Configurations, of which every answer
//! changes a little.

use std::time::Duration;

use tokio::time::Instant;

/// Reports are at least this far apart.
const SPACING: Duration = Duration::from_millis(200);

/// When the next report may be made. The first change after a pause is reported at once.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    last: Option<Instant>,
    /// Something has changed since the last report.
    is_pending: bool,
}

impl Debounce {
    /// Something has changed. Returns whether to report it now; if not, [`Self::due`] says when.
    pub fn may_report(&mut self) -> bool {
        let now = Instant::now();
        self.is_pending = self.last.is_some_and(|last| now < last + SPACING);
        if !self.is_pending {
            self.last = Some(now);
        }
        !self.is_pending
    }

    /// When the pending report may be made.
    pub fn due(&self) -> Option<Instant> {
        self.last
            .filter(|_| self.is_pending)
            .map(|last| last + SPACING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_change_is_reported_at_once_and_the_next_ones_together() {
        let mut debounce = Debounce::default();
        assert!(debounce.may_report());
        assert_eq!(debounce.due(), None);
        for _ in 0..100 {
            assert!(!debounce.may_report());
        }
        tokio::time::sleep_until(debounce.due().unwrap()).await;
        assert!(debounce.may_report());
        assert_eq!(debounce.due(), None);
    }
}
