//! Applies the answers of sessions to their devices, the registry and the metrics.

use leafhost_core::backoff;
use leafhost_core::clock::later;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::session::{CallStats, Outcome, Report};

use super::DiscoveryTask;
use super::served::{AppliedReport, SourceSession};
use super::session::{Answer, SessionId};
use crate::devices::Budget;

/// Maximum number of bytes of explanations kept for all sessions, of which each has an equal share.
const EXPLANATIONS: usize = 16 << 20;

impl DiscoveryTask {
    /// Applies an answer of a session.
    pub(super) fn answered(&mut self, answer: Answer) {
        let Answer {
            id,
            generation,
            mut report,
        } = answer;
        let now = self.now();
        let explanations = EXPLANATIONS / self.ids.len().max(1);
        let served = self.served.values();
        let sessions = served.flat_map(|served| served.sessions.values());
        let budget = Budget::of(sessions.map(|session| &session.devices));
        let Some(served) = self.served.get_mut(&id.configuration) else {
            return;
        };
        let grace = served.grace();
        let source = &id.handler.source;
        let is_newest = |session: &&mut Box<SourceSession>| {
            let orders = session.running.as_ref();
            orders.is_some_and(|orders| orders.borrow().generation == generation)
        };
        let Some(session) = served.sessions.get_mut(source).filter(is_newest) else {
            return;
        };
        if let Outcome::Discovered(discovery) = &report.outcome
            && let Err(why) = budget.admit(&session.devices, discovery, grace)
        {
            // `Unavailable` is not a fault: other handlers may have filled the budget.
            report.outcome = Outcome::Unavailable(why);
            session.refuse(now);
        }
        // Counted before `take`, which adds the earlier denials to an answer without changes.
        let denied = report.call.denied.len();
        let AppliedReport {
            answered,
            differs,
            left_out,
        } = session.take(source, *report, explanations, grace, now);
        let (name, configuration) = (&id.handler.name, id.configuration.name());
        self.metrics
            .called(name, configuration, &session.view, denied);
        self.registry
            .called(&id.handler, &id.configuration, answered, now);
        let all_known = self.all_known;
        if let Some(served) = self.served.get_mut(&id.configuration) {
            served.stale |= differs;
            served.log(left_out, now);
            served.expire(all_known, now);
        }
    }

    /// Handles the panic of a session's task. It is a bug of the agent and does not affect other sessions.
    pub(super) fn broken(&mut self, id: &SessionId) {
        let now = self.now();
        let fault = Fault::new(
            FaultReason::Host,
            "the session panicked; this is a bug, see the log",
        );
        tracing::error!(configuration = %id.configuration, handler = id.handler.name, source = id.handler.source,
            "a session panicked; this is a bug");
        if let Some(served) = self.served.get_mut(&id.configuration) {
            let grace = served.grace();
            let Some(session) = served.sessions.get_mut(&id.handler.source) else {
                return;
            };
            session.running = None;
            let report = Report::new(Outcome::Faulted(fault), CallStats::default());
            session.take(&id.handler.source, report, 0, grace, now);
            let failures = u32::try_from(session.view.failures).unwrap_or(u32::MAX);
            session.restart = Some(later(now, backoff::wait(failures)));
            served.touched = true;
            self.registry
                .called(&id.handler, &id.configuration, false, now);
        }
    }
}
