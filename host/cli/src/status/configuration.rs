//! Details of one Configuration: last call, problems, devices, explanations, and the lines for podman and for a pod.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use jiff::Timestamp;
use leafhost_agent::status::{ConfigurationView, ProblemView, SessionView, Status};
use leafhost_core::instance::Instance;
use leafhost_core::left_out::LeftOut;
use leafhost_core::session::Explanation;

use super::instance::is_called;
use super::page::{INDENT, Page};
use super::{kubelet, podman, tables};
use crate::age::{age, bytes, length};
use crate::table::{Cell, Table};
use crate::terminal::{Paint, Tone};

/// Finds the Configuration called `NAME` or `NAMESPACE/NAME`.
pub fn find<'a>(status: &'a Status, name: &str) -> Result<&'a ConfigurationView> {
    let views = status.configurations.iter();
    let fitting: Vec<&ConfigurationView> = views
        .clone()
        .filter(|view| is_called(name, &view.namespace, &view.name))
        .collect();
    let name = name.split_once('/').map_or(name, |(_, name)| name);
    match fitting.as_slice() {
        [one] => Ok(one),
        [] if status.configurations.is_empty() => {
            bail!("no Configuration {name}: the agent has none")
        }
        [] => {
            let names = views.map(|view| tables::qualified(&view.namespace, &view.name));
            let names: Vec<String> = names.collect();
            bail!(
                "no Configuration {name}: the agent has {}",
                names.join(", ")
            )
        }
        several => bail!(
            "several Configurations are called {name}; give one of {}",
            several
                .iter()
                .map(|view| format!("{}/{}", view.namespace, view.name))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Returns the Configuration's details as lines. If `width` is given, Instances and commands fit it.
pub fn lines(
    status: &Status,
    view: &ConfigurationView,
    now: Timestamp,
    all: bool,
    width: Option<usize>,
    paint: Paint,
) -> Vec<String> {
    let mut out = Page::new(paint);
    out.field(
        "Configuration",
        &format!("{}/{}", view.namespace, view.name),
    );
    out.field("Handler", &view.handler);
    let devices = match view.unhealthy {
        0 => view.devices.to_string(),
        unhealthy => format!("{}, {unhealthy} of them unhealthy or missing", view.devices),
    };
    out.field("Devices", &devices);
    out.field(
        "CDI kind",
        view.cdi_kind.as_deref().unwrap_or("none is written"),
    );
    if let Some(allocation) = &view.allocation {
        let sharing = match allocation.sharing.as_deref() {
            Some("shares") => "; claims share a device of several slots",
            Some(_) => {
                "; each slot is a separate device, because the API server does not support shares of a device"
            }
            None => "; the API server has not reported yet whether it supports shares of a device",
        };
        let text = format!(
            "by the scheduler; {} local devices are offered{sharing}",
            allocation.local_devices
        );
        out.field("Allocation", &text);
    }
    let messages = |problems: &[&ProblemView]| -> Vec<String> {
        let problems = problems.iter();
        problems.map(|problem| problem.message.clone()).collect()
    };
    let (loading, problems): (Vec<_>, Vec<_>) = view
        .problems
        .iter()
        .partition(|problem| tables::is_loading(problem));
    let warnings: Vec<_> = view.warnings.iter().collect();
    out.list("Problems", Tone::Bad, &messages(&problems));
    out.list("Waits", Tone::Plain, &messages(&loading));
    out.list("Warnings", Tone::Warning, &messages(&warnings));
    let refused = view.invalid_details.iter().map(ToString::to_string);
    let refused: Vec<String> = refused.collect();
    out.list("Refused details", Tone::Bad, &refused);
    if view.sessions.is_empty() {
        let has_problems = !problems.is_empty() || !refused.is_empty();
        out.section(if has_problems {
            "Not called until the problems above are fixed."
        } else {
            "Not called yet."
        });
    }
    for session in &view.sessions {
        session_lines(&mut out, session, now);
    }
    let instances: Vec<&Instance> = tables::of(status, Some(view)).collect();
    let within = width.map(|width| width.saturating_sub(INDENT));
    let instances = tables::instances(status, &instances, now, within);
    if !instances.is_empty() {
        out.section("Instances");
        out.table(&instances);
    }
    podman_lines(&mut out, status, view, within);
    let pod_lines = kubelet::pod_lines(status, view);
    if !pod_lines.is_empty() {
        out.section("In a pod's container: any device, or a particular one");
        out.indented(pod_lines);
    }
    // Explanations come last, since there may be a thousand.
    for session in &view.sessions {
        skipped_lines(&mut out, session, all);
    }
    out.lines
}

fn session_lines(out: &mut Page, session: &SessionView, now: Timestamp) {
    out.section(&format!("Session of {}", session.source));
    if let Some(last) = &session.last_call {
        out.field(
            "Last call",
            &format!(
                "{} ago, {}, took {} (computing {}, memory {})",
                age(Some(last), now),
                session.result,
                length(session.wall_ms),
                length(session.cpu_ms),
                bytes(session.memory_bytes)
            ),
        );
        out.field("Called for", &session.events.join(", "));
    } else {
        out.field("Last call", "none yet");
    }
    if let Some(error) = &session.error {
        out.toned("Error", Tone::Bad, error);
    }
    if session.failures > 0 {
        let failures = session.failures.to_string();
        out.toned("Failed in a row", Tone::Bad, &failures);
    }
    let next = match session.next_ms.map(u32::try_from) {
        Some(next) => {
            let next = length(f64::from(next.unwrap_or(u32::MAX)));
            format!("at most {next} after the last")
        }
        None if session.result == "invalid-details" => "when the Configuration changes".to_owned(),
        None => "only on an event or a change".to_owned(),
    };
    out.field("Next call", &next);
    out.field("Devices", &session.devices.to_string());
    out.list("Denied", Tone::Warning, &session.denied);
    out.list("Wakes refused", Tone::Warning, &session.wakes_refused);
    if !session.left_out.is_empty() {
        out.lines.push(String::new());
        out.table(&left_out(&session.left_out));
        out.more(session.left_out_dropped);
    }
}

fn skipped_lines(out: &mut Page, session: &SessionView, all: bool) {
    if session.skipped.is_empty() && session.skipped_dropped == 0 {
        return;
    }
    out.section(&format!(
        "Seen by {}, but not matched or not complete",
        session.source
    ));
    if !session.skipped.is_empty() {
        out.table(&skipped(&session.skipped, all));
    }
    out.more(session.skipped_dropped);
}

/// Builds the table of devices that were left out.
pub fn left_out(devices: &[LeftOut]) -> Table {
    let mut table = Table::new(&["LEFT-OUT", "WHY"]);
    for LeftOut { id, reason } in devices {
        table.row([id.as_str().into(), Cell::new(Tone::Warning, reason)]);
    }
    table
}

/// Builds the table of explanations. Unless `all` is set, explanations that differ only in the subject's name share a line.
pub fn skipped(explanations: &[Explanation], all: bool) -> Table {
    let mut groups: BTreeMap<(&str, String), Vec<&Explanation>> = BTreeMap::new();
    for explanation in explanations {
        let Explanation {
            subject, reason, ..
        } = explanation;
        let base = subject.rsplit('/').next().unwrap_or(subject);
        let key = if all {
            subject.clone()
        } else {
            reason.replace(subject, "").replace(base, "")
        };
        groups
            .entry((&explanation.rule, key))
            .or_default()
            .push(explanation);
    }
    let mut table = Table::new(&["SKIPPED", "RULE", "WHY"]);
    for group in groups.values() {
        let Some(first) = group.first() else { continue };
        let subject = match group.len() {
            1 => first.subject.clone(),
            number => format!("{} and {} more (--all)", first.subject, number - 1),
        };
        table.row([
            subject.into(),
            first.rule.as_str().into(),
            first.reason.as_str().into(),
        ]);
    }
    table
}

fn podman_lines(out: &mut Page, status: &Status, view: &ConfigurationView, width: Option<usize>) {
    let (Some(dir), Some(kind)) = (&status.cdi_dir, &view.cdi_kind) else {
        return;
    };
    let offered = |usable: bool| {
        let mut instances = tables::of(status, Some(view))
            .filter(|instance| !usable || !tables::is_troubled(instance, &status.node));
        instances.find_map(|instance| tables::offered_as(status, instance))
    };
    if offered(false).is_none() {
        return;
    }
    // A device that does not work is a bad example.
    if let Some(first) = offered(true) {
        out.section("Use one device, or all");
        out.indented(podman::run_lines(dir, first, width));
    } else {
        out.section("Use all devices");
    }
    out.indented(podman::run_lines(dir, &format!("{kind}=all"), width));
    if let Some(note) = podman::other_podman(dir) {
        let note = out.paint.apply(Tone::Faint, &format!("  ({note})"));
        out.lines.push(note);
    }
}
