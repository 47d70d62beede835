//! Tables of `leafhost status`, built from the status document.

use std::borrow::Cow;

use jiff::Timestamp;
use leafhost_agent::status::{ConfigurationView, HandlerView, ProblemView, SessionView, Status};
use leafhost_core::device::Health;
use leafhost_core::instance::Instance;
use leafhost_core::left_out::LeftOut;
use leafhost_core::problem::Reason;
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
            // An external handler has an endpoint instead of a file.
            match &handler.endpoint {
                Some(endpoint) => format!("external {endpoint}").into(),
                None => handler.source.as_str().into(),
            },
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

fn handler_tone(status: &str) -> Tone {
    match status {
        "Active" => Tone::Good,
        "Waiting" | "Loading" => Tone::Plain,
        _ => Tone::Bad,
    }
}

/// Returns true if the handler is neither Active, Waiting nor Loading, or has an error, a warning or a missing grant.
pub fn has_note(handler: &HandlerView) -> bool {
    handler_tone(&handler.status) == Tone::Bad
        || !handler.missing_grants.is_empty()
        || handler.last_error.is_some()
        || !handler.warnings.is_empty()
}

fn handler_note(handler: &HandlerView) -> Cell {
    if !handler.missing_grants.is_empty() {
        let grants = handler.missing_grants.join(", ");
        return Cell::new(Tone::Bad, format!("needs the grant {grants}"));
    }
    match handler.last_error.as_slice() {
        [] => first_of(Tone::Warning, &handler.warnings),
        error => first_of(Tone::Bad, error),
    }
}

/// Returns a cell with the first of the texts and the number of further ones.
fn first_of(tone: Tone, texts: &[String]) -> Cell {
    let Some((first, rest)) = texts.split_first() else {
        return "".into();
    };
    let first = abridge(&message_first(first), MAX_NOTE);
    match rest.len() {
        0 => Cell::new(tone, first),
        more => Cell::new(tone, format!("{first} (and {more} more)")),
    }
}

/// Moves the places at the beginning of a message, such as `cameras.yaml:7: spec.capcity: `, to its end: a narrow column shows
/// only the beginning of a text.
fn message_first(message: &str) -> Cow<'_, str> {
    let (mut rest, mut places) = (message, Vec::new());
    while let Some((place, after)) = rest.split_once(": ") {
        if !is_place(place) {
            break;
        }
        places.push(place);
        rest = after;
    }
    if places.is_empty() {
        return message.into();
    }
    format!("{rest} ({})", places.join(": ")).into()
}

/// Returns true if the text is a file, a line of a file, or a field of a Configuration.
fn is_place(text: &str) -> bool {
    let has_line = text.rsplit_once(':').is_some_and(|(_, line)| {
        !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
    });
    if text.contains(' ') {
        return text.starts_with('/') && has_line;
    }
    has_line || text.contains('/') || text.starts_with("spec.") || text.starts_with("metadata.")
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
        let called = session.filter(|session| session.last_call.is_some());
        let took = called.map(|session| length(session.wall_ms));
        // Instances of an earlier start of the agent count before the first call.
        let mut sessions = configuration.sessions.iter();
        let is_called = sessions.any(|session| session.last_call.is_some());
        let is_unknown = configuration.devices == 0 && !is_called;
        let devices = match configuration.devices {
            0 if is_unknown => "".into(),
            number => Cell::count(number),
        };
        let unhealthy = match configuration.unhealthy {
            0 if is_unknown => "".into(),
            0 => Cell::count(0),
            number => Cell::new(Tone::Warning, number.to_string()),
        };
        table.row([
            qualified(&configuration.namespace, &configuration.name).into(),
            configuration.handler.as_str().into(),
            devices,
            unhealthy,
            age(called.and_then(|one| one.last_call.as_deref()), now).into(),
            took.unwrap_or_default().into(),
            session.map_or_else(|| "".into(), result),
            configuration_note(configuration),
        ]);
    }
    table
}

/// Returns true if the problem is only that the handler is not loaded yet.
pub fn is_loading(problem: &ProblemView) -> bool {
    problem.reason == <&str>::from(Reason::HandlerLoading)
}

/// Returns true if the Configuration, its handler or its devices have a problem.
pub fn has_trouble(configuration: &ConfigurationView) -> bool {
    configuration.unhealthy > 0
        || !configuration.problems.iter().all(is_loading)
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

/// Returns the number of entries, those that were dropped included.
pub fn total(kept: usize, dropped: u64) -> u64 {
    let kept = u64::try_from(kept).unwrap_or(u64::MAX);
    kept.saturating_add(dropped)
}

fn configuration_note(configuration: &ConfigurationView) -> Cell {
    let (loading, problems): (Vec<_>, Vec<_>) = configuration
        .problems
        .iter()
        .partition(|problem| is_loading(problem));
    let problems = problems.into_iter();
    let mut notes: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
    notes.extend(configuration.invalid_details.iter().map(|problem| {
        let colon = if problem.path.is_empty() { ":" } else { "" };
        format!("discoveryDetails{colon} {problem}")
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
    if let Some(problem) = loading.first() {
        return Cell::new(Tone::Faint, abridge(&problem.message, MAX_NOTE));
    }
    let sessions = || configuration.sessions.iter();
    let sum = |count: fn(&SessionView) -> u64| sessions().map(count).fold(0, u64::saturating_add);
    let left_out = sum(|session| total(session.left_out.len(), session.left_out_dropped));
    let denied = sum(|session| total(session.denied.len(), 0));
    let mut hints = Vec::new();
    if let Some(LeftOut { id, reason }) = sessions().find_map(|session| session.left_out.first()) {
        hints.push(beginning("left out", left_out, &format!("{id}: {reason}")));
    }
    if let Some(first) = sessions().find_map(|session| session.denied.first()) {
        hints.push(beginning("denied", denied, first));
    }
    if let Some(first) = configuration.warnings.first() {
        let count = total(configuration.warnings.len(), 0);
        let first = message_first(&first.message);
        hints.push(beginning("without effect", count, &first));
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

/// Builds the table with one line per Instance. If it does not fit `width` characters, ids are shortened to their base names or
/// cut in the middle, and less important columns are dropped.
pub fn instances(
    status: &Status,
    instances: &[&Instance],
    now: Timestamp,
    width: Option<usize>,
) -> Table {
    let table = instances_with(status, instances, now, |id| id.into());
    let Some(width) = width.filter(|width| table.width() > *width) else {
        return table;
    };
    let table = instances_with(status, instances, now, base_name);
    let table = table.fitted(width, &["SHARED", "CDI-DEVICE", "AGE"]);
    table.cut_in_middle(width)
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
        table.row([
            qualified(&instance.metadata.namespace, &instance.metadata.name).into(),
            offered_as(status, instance).unwrap_or_default().into(),
            health(instance, &status.node, now),
            instance.spec.shared.to_string().into(),
            slots(status, instance),
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
    let instances = status.instances.iter();
    instances.filter(move |instance| configuration.is_none_or(|one| is_of(instance, one)))
}

fn is_of(instance: &Instance, configuration: &ConfigurationView) -> bool {
    instance.spec.configuration_name == configuration.name
        && instance.metadata.namespace == configuration.namespace
}

/// Returns the CDI name of the device, if a spec contains it.
pub fn offered_as<'a>(status: &Status, instance: &'a Instance) -> Option<&'a str> {
    let mut configurations = status.configurations.iter();
    let configuration = configurations.find(|configuration| is_of(instance, configuration));
    let offered = configuration.is_none_or(|configuration| configuration.cdi_kind.is_some());
    (offered && status.cdi_dir.is_some() && !instance.spec.cdi_name.is_empty())
        .then_some(instance.spec.cdi_name.as_str())
}

/// Returns the health of the device as the node sees it, coloured.
pub fn health(instance: &Instance, node: &str, now: Timestamp) -> Cell {
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

/// Returns the number of used slots and the capacity; `-` if no slot is used and there is no kubelet, because only pods take
/// slots.
fn slots(status: &Status, instance: &Instance) -> Cell {
    let kubelet = status.kubelet.as_ref();
    let has_pods = status.mode == "cluster"
        || kubelet.is_some_and(|kubelet| kubelet.present || kubelet.socket_missing);
    let usage = instance.spec.device_usage.values();
    match usage.filter(|holder| !holder.is_empty()).count() {
        0 if !has_pods => "".into(),
        0 => Cell::new(Tone::Faint, format!("0/{}", instance.spec.capacity)),
        used => format!("{used}/{}", instance.spec.capacity).into(),
    }
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
