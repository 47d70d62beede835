//! Tables of `leafhost status`, built from the status document.

use std::borrow::Cow;

use jiff::Timestamp;
use leafhost_agent::status::{ConfigurationView, HandlerView, SessionView, Status};
use leafhost_core::device::Health;
use leafhost_core::instance::Instance;
use leafhost_core::left_out::LeftOut;
use leafhost_core::text::abridge;

use crate::age::{age, length};
use crate::table::{Cell, Table};
use crate::terminal::Tone;

/// Maximum number of bytes shown of a note; `-o json` has all of it.
const MAX_NOTE: usize = 300;

/// Builds the table with one line per handler and source.
pub fn handlers<'a>(handlers: impl IntoIterator<Item = &'a HandlerView>, now: Timestamp) -> Table {
    let mut table = Table::new(&[
        "HANDLER", "SOURCE", "STATUS", "SINCE", "VERSION", "DIGEST", "DEVICES", "NOTE",
    ]);
    for handler in handlers {
        table.row([
            handler.name.as_str().into(),
            source(handler).into(),
            Cell::new(handler_tone(&handler.status), &handler.status),
            age(handler.since.as_deref(), now).into(),
            handler.version.as_str().into(),
            handler.digest.get(..12).unwrap_or(&handler.digest).into(),
            Cell::count(handler.devices),
            handler_note(handler),
        ]);
    }
    table
}

/// Returns the file, or the endpoint of an external handler.
fn source(handler: &HandlerView) -> Cow<'_, str> {
    match &handler.endpoint {
        Some(endpoint) => format!("external {endpoint}").into(),
        None => handler.source.as_str().into(),
    }
}

fn handler_tone(status: &str) -> Tone {
    match status {
        "Active" => Tone::Good,
        "Waiting" => Tone::Plain,
        _ => Tone::Bad,
    }
}

/// Returns true if the handler is neither Active nor Waiting, or has an error, a warning or a missing grant.
pub fn has_note(handler: &HandlerView) -> bool {
    !matches!(handler.status.as_str(), "Active" | "Waiting")
        || !handler.missing_grants.is_empty()
        || handler.last_error.is_some()
        || !handler.warnings.is_empty()
}

fn handler_note(handler: &HandlerView) -> Cell {
    if !handler.missing_grants.is_empty() {
        let grants = handler.missing_grants.join(", ");
        return Cell::new(Tone::Bad, format!("needs the grant {grants}"));
    }
    match (&handler.last_error, handler.warnings.as_slice()) {
        (Some(error), _) => Cell::new(Tone::Bad, abridge(error, MAX_NOTE)),
        (None, warnings) => first_of(Tone::Warning, warnings),
    }
}

/// Shows the first of the texts and how many more there are.
fn first_of(tone: Tone, texts: &[String]) -> Cell {
    match texts {
        [] => "".into(),
        [only] => Cell::new(tone, abridge(only, MAX_NOTE)),
        [first, rest @ ..] => {
            let first = abridge(first, MAX_NOTE);
            Cell::new(tone, format!("{first} (and {} more)", rest.len()))
        }
    }
}

/// Builds the table with one line per Configuration.
pub fn configurations<'a>(
    configurations: impl IntoIterator<Item = &'a ConfigurationView>,
    now: Timestamp,
) -> Table {
    let mut table = Table::new(&[
        "CONFIGURATION",
        "HANDLER",
        "DEVICES",
        "UNHEALTHY",
        "LAST-CALL",
        "TOOK",
        "RESULT",
        "NOTE",
    ]);
    for configuration in configurations {
        let session = worst(configuration);
        let unhealthy = match configuration.unhealthy {
            0 => Cell::count(0),
            number => Cell::new(Tone::Warning, number.to_string()),
        };
        table.row([
            qualified(&configuration.namespace, &configuration.name).into(),
            configuration.handler.as_str().into(),
            Cell::count(configuration.devices),
            unhealthy,
            age(
                session.and_then(|session| session.last_call.as_deref()),
                now,
            )
            .into(),
            session
                .filter(|session| session.last_call.is_some())
                .map_or_else(String::new, |session| length(session.wall_ms))
                .into(),
            session.map_or_else(|| "".into(), result),
            configuration_note(configuration),
        ]);
    }
    table
}

/// Returns true if the Configuration, its handler or its devices have a problem.
pub fn has_trouble(configuration: &ConfigurationView) -> bool {
    configuration.unhealthy > 0
        || !configuration.problems.is_empty()
        || !configuration.invalid_details.is_empty()
        || worst(configuration).is_some_and(|session| session.error.is_some())
}

/// Returns a session with an error, or else the one called last.
fn worst(configuration: &ConfigurationView) -> Option<&SessionView> {
    let sessions = &configuration.sessions;
    sessions
        .iter()
        .find(|session| session.error.is_some())
        .or_else(|| sessions.iter().max_by_key(|session| &session.last_call))
}

/// Returns the result of the last call, coloured.
pub fn result(session: &SessionView) -> Cell {
    let tone = match session.result.as_str() {
        "ok" => Tone::Good,
        "partial" | "unavailable" => Tone::Warning,
        _ => Tone::Bad,
    };
    Cell::new(tone, &session.result)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn configuration_note(configuration: &ConfigurationView) -> Cell {
    let problems = configuration.problems.iter();
    let mut notes: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
    notes.extend(configuration.invalid_details.iter().map(|problem| {
        if problem.path.is_empty() {
            format!("discoveryDetails: {}", problem.message)
        } else {
            format!("discoveryDetails {}: {}", problem.path, problem.message)
        }
    }));
    notes.extend(
        configuration
            .sessions
            .iter()
            .filter_map(|session| session.error.clone()),
    );
    notes.dedup();
    if !notes.is_empty() {
        return first_of(Tone::Bad, &notes);
    }
    let sessions = || configuration.sessions.iter();
    let sum = |count: fn(&SessionView) -> u64| sessions().map(count).fold(0, u64::saturating_add);
    let left_out =
        sum(|session| number(session.left_out.len()).saturating_add(session.left_out_dropped));
    let denied = sum(|session| number(session.denied.len()));
    let mut hints = Vec::new();
    if let Some(LeftOut { id, reason }) = sessions().find_map(|session| session.left_out.first()) {
        hints.push(beginning("left out", left_out, &format!("{id}: {reason}")));
    }
    if let Some(first) = sessions().find_map(|session| session.denied.first()) {
        hints.push(beginning("denied", denied, first));
    }
    if let Some(first) = configuration.warnings.first() {
        let count = number(configuration.warnings.len());
        hints.push(beginning("without effect", count, &first.message));
    }
    Cell::new(Tone::Warning, hints.join("; "))
}

/// Formats the count of `what` and the first text.
fn beginning(what: &str, count: u64, first: &str) -> String {
    let first = abridge(first, MAX_NOTE);
    match count {
        1 => format!("{what}: {first}"),
        _ => format!("{count} {what}, the first: {first}"),
    }
}

/// Builds the table with one line per Instance.
pub fn instances(status: &Status, instances: &[&Instance], now: Timestamp) -> Table {
    instances_with(status, instances, now, |id| id.into())
}

/// Builds the same table in at most `width` characters: ids by their base names, without the less important columns.
pub fn narrow_instances(
    status: &Status,
    instances: &[&Instance],
    now: Timestamp,
    width: usize,
) -> Table {
    let table = instances_with(status, instances, now, |id| id.into());
    if table.width() <= width {
        return table;
    }
    let table = instances_with(status, instances, now, base_name);
    table.fitted(width, &["SHARED", "CDI-DEVICE", "AGE"])
}

fn instances_with(
    status: &Status,
    instances: &[&Instance],
    now: Timestamp,
    shown_id: fn(&str) -> Cow<'_, str>,
) -> Table {
    let mut table = Table::new(&[
        "INSTANCE",
        "CDI-DEVICE",
        "HEALTH",
        "SHARED",
        "SLOTS",
        "AGE",
        "ID",
    ]);
    for instance in instances {
        let used = used_slots(instance);
        let slots = format!("{used}/{}", instance.spec.capacity);
        table.row([
            qualified(&instance.metadata.namespace, &instance.metadata.name).into(),
            offered_as(status, instance).unwrap_or_default().into(),
            health(instance, &status.node, now),
            instance.spec.shared.to_string().into(),
            Cell::new(if used == 0 { Tone::Faint } else { Tone::Plain }, slots),
            age(instance.metadata.creation_timestamp.as_deref(), now).into(),
            shown_id(instance.device_id().unwrap_or_default()).into(),
        ]);
    }
    table
}

/// Returns the Instances of one Configuration, or all.
pub fn of<'a>(
    status: &'a Status,
    configuration: Option<&'a ConfigurationView>,
) -> impl Iterator<Item = &'a Instance> {
    status.instances.iter().filter(move |instance| {
        configuration.is_none_or(|configuration| {
            instance.spec.configuration_name == configuration.name
                && instance.metadata.namespace == configuration.namespace
        })
    })
}

/// Returns the CDI name of the device, if a spec contains it.
pub fn offered_as<'a>(status: &Status, instance: &'a Instance) -> Option<&'a str> {
    let configuration = status.configurations.iter().find(|configuration| {
        configuration.name == instance.spec.configuration_name
            && configuration.namespace == instance.metadata.namespace
    });
    let offered = configuration.is_none_or(|configuration| configuration.cdi_kind.is_some());
    (offered && status.cdi_dir.is_some() && !instance.spec.cdi_name.is_empty())
        .then_some(instance.spec.cdi_name.as_str())
}

fn health(instance: &Instance, node: &str, now: Timestamp) -> Cell {
    let Some(status) = instance.status.nodes.get(node) else {
        return Cell::new(Tone::Faint, "Unknown");
    };
    if status.missing_since.is_some() {
        let since = age(status.missing_since.as_deref(), now);
        return Cell::new(Tone::Warning, format!("Missing {since}"));
    }
    match &status.health {
        Health::Healthy => Cell::new(Tone::Good, "Healthy"),
        Health::Unhealthy(reason) if reason.is_empty() => Cell::new(Tone::Bad, "Unhealthy"),
        Health::Unhealthy(reason) => Cell::new(Tone::Bad, format!("Unhealthy: {reason}")),
        Health::Unknown => Cell::new(Tone::Faint, "Unknown"),
    }
}

/// Returns true if the device is unhealthy or missing on this node.
pub fn is_troubled(instance: &Instance, node: &str) -> bool {
    let status = instance.status.nodes.get(node);
    status.is_some_and(|status| {
        status.missing_since.is_some() || matches!(status.health, Health::Unhealthy(_))
    })
}

fn used_slots(instance: &Instance) -> usize {
    let usage = &instance.spec.device_usage;
    usage.values().filter(|holder| !holder.is_empty()).count()
}

/// Returns the last part of an id that is a path, such as `…/ttyS0`.
fn base_name(id: &str) -> Cow<'_, str> {
    match id.rsplit_once('/') {
        Some((_, base)) if id.starts_with('/') => format!("…/{base}").into(),
        _ => id.into(),
    }
}

/// Returns the name with its namespace, unless that is `default`.
pub fn qualified(namespace: &str, name: &str) -> String {
    if namespace == "default" || namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}
