//! Report as text: a block per device on stdout, the call's cost on stderr.

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::Health;
use leafhost_grants::Limits;

use super::document::{Document, Found};
use crate::age::{bytes, length};
use crate::status::configuration::{left_out, skipped};
use crate::status::tables::total;
use crate::table::Table;
use crate::terminal::{Paint, Tone, count};

/// Formats the devices, those left out, with `explain` the skipped candidates, and the departed devices.
pub fn text(document: &Document, explain: bool, paint: Paint) -> String {
    let mut blocks: Vec<Vec<String>> = document
        .devices
        .iter()
        .map(|found| block(found, paint))
        .collect();
    if !document.left_out.is_empty() {
        let lines = left_out(&document.left_out).lines(paint);
        blocks.push(and_more(lines, document.left_out_dropped));
    }
    if explain && !document.skipped.is_empty() {
        let lines = skipped(&document.skipped, true).lines(paint);
        blocks.push(and_more(lines, document.skipped_dropped));
    }
    if !document.departed.is_empty() {
        let mut table = Table::new(&["DEPARTED"]);
        for id in &document.departed {
            table.row([id.as_str().into()]);
        }
        blocks.push(table.lines(paint));
    }
    let blocks = blocks.iter().map(|block| block.join("\n") + "\n");
    blocks.collect::<Vec<_>>().join("\n")
}

/// Adds the number of entries that are not kept, if there are any.
fn and_more(mut lines: Vec<String>, dropped: u64) -> Vec<String> {
    if dropped > 0 {
        lines.push(format!("and {dropped} more"));
    }
    lines
}

fn block(found: &Found, paint: Paint) -> Vec<String> {
    let device = &found.device;
    let health = match &device.health {
        Health::Healthy => paint.apply(Tone::Good, "healthy"),
        Health::Unknown => paint.apply(Tone::Faint, "health unknown"),
        Health::Unhealthy(why) => paint.apply(Tone::Bad, &format!("unhealthy: {why}")),
    };
    let mut lines = vec![format!(
        "{}  {}, {health}",
        paint.apply(Tone::Heading, &device.id),
        if device.shared { "shared" } else { "local" },
    )];
    let mut line = |name: &str, value: &str| {
        let value = paint.apply(Tone::Plain, value);
        lines.push(format!("  {name:<10} {value}"));
    };
    line("instance", &found.instance);
    line("cdi", &found.cdi_name);
    if let Some(id) = &device.physical_id {
        line("hardware", id);
    }
    for (name, value) in &device.properties {
        line("env", &format!("{name}={value}"));
    }
    for node in &device.nodes {
        let place = place(&node.host_path, &node.container_path);
        line("node", &format!("{place} ({})", node.permissions));
    }
    for mount in &device.mounts {
        let place = place(&mount.host_path, &mount.container_path);
        let mode = if mount.read_only { "ro" } else { "rw" };
        line("mount", &format!("{place} ({mode})"));
    }
    for (name, value) in &device.attributes {
        let value = match value {
            AttributeValue::String(text) => format!("{text:?}"),
            AttributeValue::Int(number) => number.to_string(),
            AttributeValue::Bool(yes) => yes.to_string(),
            AttributeValue::Version(text) => format!("version {text}"),
        };
        line("attribute", &format!("{name} = {value}"));
    }
    for (name, quantity) in &device.capacity {
        line("capacity", &format!("{name} = {quantity}"));
    }
    lines
}

fn place(host: &str, container: &str) -> String {
    if host == container {
        host.to_owned()
    } else {
        format!("{host} as {container}")
    }
}

/// Formats the result and cost of the call, with the limits.
pub fn cost(document: &Document, explain: bool, limits: &Limits) -> Vec<String> {
    let Some(call) = &document.call else {
        return Vec::new();
    };
    let mut parts = Vec::new();
    if let Some(extent) = document.extent {
        let devices = count(document.devices.len(), "device");
        parts.push(match extent {
            "unchanged" => "the same devices as before".to_owned(),
            "partial" => format!("{devices} (partial answer)"),
            _ => devices,
        });
    }
    let left_out = total(document.left_out.len(), document.left_out_dropped);
    if left_out > 0 {
        parts.push(format!("{left_out} left out"));
    }
    let seen = total(document.skipped.len(), document.skipped_dropped);
    if seen > 0 {
        let hint = if explain {
            ""
        } else {
            " (--explain shows them)"
        };
        parts.push(format!("{seen} skipped{hint}"));
    }
    parts.push(format!("woken by {}", call.events.join(", ")));
    let milliseconds = |time: std::time::Duration| length(time.as_secs_f64() * 1000.0);
    let mut lines = vec![
        parts.join(", "),
        format!(
            "took {} of {}, computed {} of {}, memory {} of {}",
            milliseconds(call.wall),
            milliseconds(limits.wall),
            milliseconds(call.cpu),
            milliseconds(limits.cpu),
            bytes(call.memory),
            bytes(limits.memory),
        ),
        match call.next {
            Some(next) => format!("next call after {} if nothing wakes it", milliseconds(next)),
            None => "next call only on an event or a change".to_owned(),
        },
    ];
    if call.log_dropped > 0 {
        lines.push(format!(
            "{} log lines dropped: over the rate",
            call.log_dropped
        ));
    }
    lines.extend(call.denied.iter().map(|what| format!("denied: {what}")));
    lines.extend(
        call.wakes_refused
            .iter()
            .map(|what| format!("wake refused: {what}")),
    );
    lines
}

#[cfg(test)]
mod tests;
