//! `leafhost status` without a VIEW: the node, the kubelet, problems, handlers, Configurations, Instances.

use jiff::Timestamp;
use leafhost_agent::status::Status;

use super::{kubelet, podman, tables};
use crate::terminal::{Paint, Size, Tone, wrap};

/// The fewest rows of the Instance table that are shown however low the terminal is.
const FEWEST_ROWS: usize = 3;

/// The overview as lines; where a size is given problems are wrapped and the Instance table is cut to fit into it.
pub fn lines(
    status: &Status,
    now: Timestamp,
    paint: Paint,
    size: Option<Size>,
) -> std::io::Result<Vec<String>> {
    let mut lines = vec![head(status, paint)];
    if let Some(line) = podman::hint(status) {
        lines.push(paint.apply(Tone::Faint, &line));
    }
    if let Some(line) = kubelet::hint(status) {
        lines.push(paint.apply(Tone::Faint, &line));
    }
    let problems = status
        .problems
        .iter()
        .map(|problem| problem.message.clone());
    for problem in problems.chain(kubelet::problems(status)) {
        let problem = crate::terminal::escape(&problem);
        let width = size.map_or(usize::MAX, |size| size.width.saturating_sub(2));
        for (number, line) in wrap(&problem, width).iter().enumerate() {
            let mark = if number == 0 { "!" } else { " " };
            lines.push(paint.apply(Tone::Warning, &format!("{mark} {line}")));
        }
    }
    for (table, nothing) in [
        (
            tables::handlers(status, now),
            "No handlers: put a .wasm file into the handlers folder.",
        ),
        (
            tables::configurations(status, now),
            "No Configurations: put a .yaml file into the configurations folder.",
        ),
    ] {
        lines.push(String::new());
        if table.is_empty() {
            lines.push(paint.apply(Tone::Faint, nothing));
        } else {
            lines.extend(table.lines(paint)?);
        }
    }
    lines.push(String::new());
    let table = tables::instances(status, None, now);
    if table.is_empty() {
        lines.push(paint.apply(Tone::Faint, "No Instances."));
        return Ok(lines);
    }
    let instances = table.lines(paint)?;
    // One line is the heading, one stays free for the cursor.
    let rows = instances.len().saturating_sub(1);
    let room = size.map_or(usize::MAX, |size| {
        size.height.saturating_sub(lines.len() + 2).max(FEWEST_ROWS)
    });
    if rows <= room {
        lines.extend(instances);
    } else {
        let shown = room.saturating_sub(1);
        lines.extend(instances.into_iter().take(shown + 1));
        let rest = rows - shown;
        lines.push(paint.apply(
            Tone::Faint,
            &format!("and {rest} more: leafhost status instances"),
        ));
    }
    Ok(lines)
}

fn head(status: &Status, paint: Paint) -> String {
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    };
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
