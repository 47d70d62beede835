//! `leafhost status` without a VIEW: the node, the kubelet, problems, handlers, Configurations, Instances.

use jiff::Timestamp;
use leafhost_agent::status::Status;
use leafhost_core::instance::Instance;

use super::{kubelet, podman, tables};
use crate::table::Table;
use crate::terminal::{Paint, Size, Tone, count, wrap};

/// Minimum number of lines of the Instance table, even on a small terminal.
const FEWEST_LINES: usize = 5;

const NO_INSTANCES: &str = "No Instances.";

fn no_handlers(status: &Status) -> &'static str {
    match status.mode.as_str() {
        "cluster" => "No handlers: apply what leafhost handler configmap prints.",
        _ => "No handlers: put a .wasm file into the handlers folder.",
    }
}

fn no_configurations(status: &Status) -> &'static str {
    match status.mode.as_str() {
        "cluster" => "No Configurations: apply one with kubectl.",
        _ => "No Configurations: put a .yaml file into the configurations folder.",
    }
}

/// Returns the overview as lines. If `size` is given, the overview is cut to it: problems come first, and omitted lines are
/// counted.
pub fn lines(status: &Status, now: Timestamp, paint: Paint, size: Option<Size>) -> Vec<String> {
    let Some(size) = size else {
        return whole(status, now, paint);
    };
    let mut lines = vec![head(status, paint)];
    lines.extend(kubelet::hint(status).map(|line| paint.apply(Tone::Faint, &line)));
    // Problems get a third of the height, tables get the rest.
    let problems = problems(status, paint, size.width);
    lines.extend(limited(problems, size.height / 3, "leafhost status", paint));

    let mut configurations: Vec<_> = status.configurations.iter().collect();
    configurations.sort_by_cached_key(|configuration| !tables::has_trouble(configuration));
    let configurations = tables::configurations(configurations, now);
    let configurations = configurations.fitted(size.width, &["TOOK", "LAST-CALL", "HANDLER"]);
    let configurations = table(&configurations, no_configurations(status), paint);
    let handlers = handlers(status, now, paint, size.width);
    let mut instances: Vec<_> = status.instances.iter().collect();
    instances.sort_by_cached_key(|instance| !tables::is_troubled(instance, &status.node));
    let instances = tables::instances(status, &instances, now, Some(size.width));
    let instances = table(&instances, NO_INSTANCES, paint);

    // An empty line precedes each table, and one line is kept for the cursor.
    let room = size.height.saturating_sub(lines.len() + handlers.len() + 4);
    let configurations = limited(
        configurations,
        room.saturating_sub(instances.len()).max(room / 2),
        "leafhost status configuration",
        paint,
    );
    let room = room.saturating_sub(configurations.len()).max(FEWEST_LINES);
    let instances = limited(instances, room, "leafhost status instances", paint);
    for table in [configurations, instances, handlers] {
        lines.push(String::new());
        lines.extend(table);
    }
    lines
}

/// Returns the overview without any limit.
fn whole(status: &Status, now: Timestamp, paint: Paint) -> Vec<String> {
    let mut lines = vec![head(status, paint)];
    for line in podman::hint(status)
        .into_iter()
        .chain(kubelet::hint(status))
    {
        lines.push(paint.apply(Tone::Faint, &line));
    }
    lines.extend(problems(status, paint, usize::MAX));
    let instances: Vec<&Instance> = status.instances.iter().collect();
    for (content, nothing) in [
        (tables::handlers(&status.handlers, now), no_handlers(status)),
        (
            tables::configurations(&status.configurations, now),
            no_configurations(status),
        ),
        (
            tables::instances(status, &instances, now, None),
            NO_INSTANCES,
        ),
    ] {
        lines.push(String::new());
        lines.extend(table(&content, nothing, paint));
    }
    lines
}

fn problems(status: &Status, paint: Paint, width: usize) -> Vec<String> {
    let messages = status
        .problems
        .iter()
        .map(|problem| problem.message.clone());
    let problems = messages.chain(kubelet::problems(status));
    let problems = problems.map(|message| ("!", Tone::Warning, message));
    let notes = status.notes.iter();
    let notes = notes.map(|note| ("-", Tone::Faint, format!("note: {}", note.message)));
    let mut lines = Vec::new();
    for (mark, tone, message) in problems.chain(notes) {
        let message = crate::terminal::escape(&message);
        for (number, line) in wrap(&message, width.saturating_sub(2)).iter().enumerate() {
            let mark = if number == 0 { mark } else { " " };
            lines.push(paint.apply(tone, &format!("{mark} {line}")));
        }
    }
    lines
}

/// Returns the table of the handlers that have a note, and one line per state for all others.
fn handlers(status: &Status, now: Timestamp, paint: Paint, width: usize) -> Vec<String> {
    let (noted, well): (Vec<_>, Vec<_>) = status
        .handlers
        .iter()
        .partition(|handler| tables::has_note(handler));
    if status.handlers.is_empty() {
        return vec![paint.apply(Tone::Faint, no_handlers(status))];
    }
    let mut lines = Vec::new();
    if !noted.is_empty() {
        let table = tables::handlers(noted, now);
        let table = table.fitted(width, &["DIGEST", "VERSION", "SINCE", "SOURCE"]);
        lines.extend(table.lines(paint));
    }
    for (state, tone) in [
        ("Active", Tone::Good),
        ("Waiting", Tone::Faint),
        ("Loading", Tone::Faint),
    ] {
        let names = well.iter().filter(|handler| handler.status == state);
        // A handler has no name before it is loaded.
        let names = names.map(|handler| match handler.name.as_str() {
            "" => handler.source.as_str(),
            name => name,
        });
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            let state = paint.apply(tone, state);
            let names = paint.apply(Tone::Plain, &names.join(", "));
            lines.push(format!("{state}: {names}"));
        }
    }
    lines
}

/// Returns the lines of a table, or `nothing` if it is empty.
fn table(table: &Table, nothing: &str, paint: Paint) -> Vec<String> {
    if table.is_empty() {
        return vec![paint.apply(Tone::Faint, nothing)];
    }
    table.lines(paint)
}

/// Cuts the lines to `most`; the last line says how many more there are and which command shows them.
fn limited(mut lines: Vec<String>, most: usize, all: &str, paint: Paint) -> Vec<String> {
    if lines.len() > most {
        let shown = most.saturating_sub(1);
        let more = format!("and {} more: {all}", lines.len() - shown);
        lines.truncate(shown);
        lines.push(paint.apply(Tone::Faint, &more));
    }
    lines
}

fn head(status: &Status, paint: Paint) -> String {
    let node = paint.apply(Tone::Heading, &status.node);
    let rest = format!(
        "leafhost {} {}, {}, {}, {}",
        status.version,
        status.mode,
        count(status.handlers.len(), "handler"),
        count(status.configurations.len(), "Configuration"),
        count(status.instances.len(), "Instance"),
    );
    format!("{node}  {}", paint.apply(Tone::Plain, &rest))
}
