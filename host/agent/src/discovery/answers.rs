//! Takes in the sessions' answers: into their devices, the registry, the metrics and the log.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::session::Outcome;
use leafhost_core::text::{abridge, few};

use super::DiscoveryTask;
use super::served::{SourceSession, Taken};
use super::session::{Answer, Said, SessionId};
use super::trouble::Trouble;
use crate::backoff;
use crate::clock::later;
use crate::metrics::{Call, Ended};

/// The most bytes of explanations that are kept of all sessions.
const EXPLANATIONS: usize = 16 << 20;
/// So many of the problems with details the log names; the status has all.
const MOST_PROBLEMS: usize = 3;
/// The most bytes of each.
const MAX_PROBLEM: usize = 300;

impl DiscoveryTask {
    /// How many bytes of explanations a session may leave: all have the same part of [`EXPLANATIONS`].
    pub(super) fn explanations(&self) -> usize {
        EXPLANATIONS / self.ids.len().max(1)
    }

    /// A session has said something.
    pub(super) fn answered(&mut self, answer: Answer) {
        let Answer {
            id,
            generation,
            said,
        } = answer;
        let (now, explanations) = (self.now(), self.explanations());
        let Some(served) = self.served.get_mut(&id.configuration) else {
            return;
        };
        let grace = served.grace();
        let source = &id.handler.source;
        let session = match served.sessions.get_mut(source) {
            Some(session) if session.generation() == Some(generation) => session,
            _ => return,
        };
        let was_fine = session.fault.is_none();
        let Taken { answered, differs } = match said {
            Said::Report(report) => {
                let ended = match &report.outcome {
                    Outcome::Discovered(_) => Ended::Discovered,
                    Outcome::Faulted(fault) => Ended::Faulted(fault),
                    Outcome::InvalidDetails(_) | Outcome::Unavailable(_) => Ended::Refused,
                };
                self.metrics.called(Call {
                    handler: &id.handler.name,
                    configuration: id.configuration.name(),
                    seconds: report.call.wall.as_secs_f64(),
                    late: report.call.late.as_secs_f64(),
                    ended,
                    denied: report.call.denied.len(),
                });
                session.take(source, *report, explanations, grace, now)
            }
            Said::Refused(problems) => {
                session.refused(source, problems, now);
                Taken {
                    answered: true,
                    differs: false,
                }
            }
            Said::NotValidated { fault, took } => {
                self.metrics.called(Call {
                    handler: &id.handler.name,
                    configuration: id.configuration.name(),
                    seconds: took.as_secs_f64(),
                    late: 0.0,
                    ended: Ended::Faulted(&fault),
                    denied: 0,
                });
                session.failed(source, &fault, now);
                Taken {
                    answered: false,
                    differs: false,
                }
            }
        };
        tell(&mut self.trouble, &id, session, was_fine);
        if answered {
            self.registry.answered(&id.handler, &id.configuration, now);
        } else {
            self.registry.failed(&id.handler, &id.configuration, now);
        }
        let all_known = self.all_known;
        if let Some(served) = self.served.get_mut(&id.configuration) {
            served.stale |= differs;
            served.expire(all_known, now);
        }
    }

    /// A session's task panicked: a bug of ours, for which no other session pays.
    pub(super) fn broken(&mut self, id: &SessionId) {
        let now = self.now();
        let fault = Fault::new(
            FaultReason::Host,
            "the session panicked; this is a bug, see the log",
        );
        tracing::error!(configuration = %id.configuration, handler = id.handler.name, source = id.handler.source,
            "a session panicked; this is a bug");
        if let Some(served) = self.served.get_mut(&id.configuration)
            && let Some(session) = served.sessions.get_mut(&id.handler.source)
        {
            session.running = None;
            session.failed(&id.handler.source, &fault, now);
            let failures = u32::try_from(session.view.failures).unwrap_or(u32::MAX);
            session.restart = Some(later(now, backoff::wait(failures)));
            served.touched = true;
            self.registry.failed(&id.handler, &id.configuration, now);
        }
    }
}

impl SourceSession {
    fn generation(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.generation)
    }
}

/// Tells the log of the first failure in a row and of ever fewer of those that follow, and of the end of them.
fn tell(trouble: &mut Trouble, id: &SessionId, session: &mut SourceSession, was_fine: bool) {
    let view = &session.view;
    let (configuration, handler, source) =
        (&id.configuration, &id.handler.name, &id.handler.source);
    if view.failures == 0 {
        if !was_fine && trouble.is_told(&id.handler) {
            tracing::info!(%configuration, handler, source, "discovery works again");
        }
    } else if backoff::is_told(view.failures) && trouble.is_told(&id.handler) {
        let error = view
            .error
            .clone()
            .unwrap_or_else(|| details(&session.invalid));
        tracing::warn!(%configuration, handler, source, result = view.result.label(), failures = view.failures, error,
            "no devices from the handler");
    }
}

/// What is wrong with details, on one line of the log.
fn details(problems: &[FieldProblem]) -> String {
    let told = |problem: &FieldProblem| {
        let problem = format!("{}: {}", problem.path, problem.message);
        abridge(&problem, MAX_PROBLEM)
    };
    few(problems.iter().map(told), MOST_PROBLEMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_and_long_problems_the_log_has_the_first_and_their_number() {
        let problem =
            |number: usize| FieldProblem::new(format!("items[{number}]"), "x".repeat(1024));
        let problems: Vec<_> = (0..100).map(problem).collect();
        let told = details(&problems);
        assert!(told.starts_with("items[0]: x") && told.ends_with(" and 97 more"));
        assert!(told.contains("items[2]: ") && told.len() < 1000, "{told}");
        let one = FieldProblem::new("url", "is no URL");
        assert_eq!(details(&[one]), "url: is no URL");
    }
}
