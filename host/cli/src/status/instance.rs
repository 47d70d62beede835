//! Details of one Instance: its nodes, the holders of its slots, and the properties and attributes of its device.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use jiff::Timestamp;
use leafhost_agent::status::Status;
use leafhost_core::attribute::AttributeValue;
use leafhost_core::instance::Instance;
use leafhost_core::text;

use super::page::{INDENT, Page};
use super::{kubelet, podman, slots, tables};
use crate::age::age;
use crate::table::Table;
use crate::terminal::{Paint, Tone};

/// Finds the Instance called `NAME` or `NAMESPACE/NAME`.
pub fn find<'a>(status: &'a Status, name: &str) -> Result<&'a Instance> {
    let fitting: Vec<&Instance> = status
        .instances
        .iter()
        .filter(|one| is_called(name, &one.metadata.namespace, &one.metadata.name))
        .collect();
    match fitting.as_slice() {
        [one] => Ok(one),
        [] => bail!("no Instance {name}: {}", instead(status, name)),
        several => bail!(
            "several Instances are called {name}; give one of {}",
            several
                .iter()
                .map(|one| one.key().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Returns true if `wanted`, which may have a namespace, is this name.
pub fn is_called(wanted: &str, namespace: &str, name: &str) -> bool {
    match wanted.split_once('/') {
        Some(wanted) => wanted == (namespace, name),
        None => wanted == name,
    }
}

/// Returns a hint for a name that no Instance has: the object that it names, or else the Instance with the most similar
/// name.
fn instead(status: &Status, name: &str) -> String {
    let mut configurations = status.configurations.iter();
    if configurations.any(|view| is_called(name, &view.namespace, &view.name)) {
        return format!(
            "it is a Configuration; its devices are shown by: leafhost status instances {name}"
        );
    }
    if status.handlers.iter().any(|handler| handler.name == name) {
        return "it is a handler; handlers are shown by: leafhost status handlers".to_owned();
    }
    let known = |one: &Instance| tables::qualified(&one.metadata.namespace, &one.metadata.name);
    let mut instances = status.instances.iter();
    if let Some(one) = instances.find(|one| one.device_id() == Some(name)) {
        return format!("it is the id of a device; its Instance is {}", known(one));
    }
    let names: Vec<String> = status.instances.iter().map(known).collect();
    match text::nearest(name, names.iter().map(String::as_str)) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None if names.is_empty() => "the agent has none".to_owned(),
        None => "all of them are shown by: leafhost status instances".to_owned(),
    }
}

/// Returns the Instance's details as lines. If `width` is given, the command fits it.
pub fn lines(
    status: &Status,
    instance: &Instance,
    now: Timestamp,
    width: Option<usize>,
    paint: Paint,
) -> Vec<String> {
    let mut out = Page::new(paint);
    let (metadata, spec) = (&instance.metadata, &instance.spec);
    out.field("Instance", &instance.key().to_string());
    out.field("Configuration", &spec.configuration_name);
    out.field("Device", instance.device_id().unwrap_or("-"));
    let described = spec.leafhost.as_ref();
    if let Some(id) = described.and_then(|leafhost| leafhost.physical_id.as_ref()) {
        out.field("Hardware", id);
    }
    out.field("Shared", if spec.shared { "yes" } else { "no" });
    out.field("Capacity", &spec.capacity.to_string());
    let cdi_device = tables::offered_as(status, instance);
    out.field("CDI device", cdi_device.unwrap_or("none is written"));
    if let Some(created) = &metadata.creation_timestamp {
        let age = age(Some(created.as_str()), now);
        out.field("Created", &format!("{created}, {age} ago"));
    }
    if let Some(deleted) = &metadata.deletion_timestamp {
        out.toned("Deleted", Tone::Warning, deleted);
    }
    out.section("Nodes");
    out.table(&nodes(instance, now));
    out.section("Slots");
    out.table(&slots::table_of(status, instance));
    section(&mut out, "Properties", &spec.broker_properties);
    if let Some(described) = described {
        let attributes = described.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name, attribute(value)));
        section(&mut out, "Attributes", attributes);
        section(&mut out, "Capacities", &described.capacity);
    }
    if let (Some(dir), Some(device)) = (&status.cdi_dir, cdi_device) {
        out.section("Use it");
        let width = width.map(|width| width.saturating_sub(INDENT));
        out.indented(podman::run_lines(dir, device, width));
    }
    if let Some(line) = kubelet::pod_line(status, &instance.metadata.name) {
        out.section("In a pod's container");
        out.indented([line]);
    }
    out.lines
}

fn nodes(instance: &Instance, now: Timestamp) -> Table {
    let seen = instance.spec.nodes.iter();
    let names: BTreeSet<&String> = seen.chain(instance.status.nodes.keys()).collect();
    let mut table = Table::new(&["NODE", "SEES-IT", "HEALTH"]);
    for name in names {
        let answer = if instance.is_seen_by(name) {
            "yes"
        } else {
            "no"
        };
        table.row([
            name.as_str().into(),
            answer.into(),
            tables::health(instance, name, now),
        ]);
    }
    table
}

/// Adds a table of names and values, if there are any.
fn section<N, V>(out: &mut Page, title: &str, values: impl IntoIterator<Item = (N, V)>)
where
    N: Into<String>,
    V: Into<String>,
{
    let mut table = Table::new(&["NAME", "VALUE"]);
    for (name, value) in values {
        let (name, value): (String, String) = (name.into(), value.into());
        table.row([name.into(), value.into()]);
    }
    if !table.is_empty() {
        out.section(title);
        out.table(&table);
    }
}

fn attribute(value: &AttributeValue) -> String {
    match value {
        AttributeValue::String(text) | AttributeValue::Version(text) => text.clone(),
        AttributeValue::Int(number) => number.to_string(),
        AttributeValue::Bool(flag) => flag.to_string(),
    }
}
