//! The kubelet's part of the status: a line of the overview, the table of resources, and the requests for a pod.

use leafhost_agent::status::{ConfigurationView, ResourceView, Status};
use leafhost_core::device_id::resource;

use super::tables;
use crate::table::{Cell, Table};
use crate::terminal::{Paint, Tone};

/// Maximum number of failing resources that the overview lists.
const NAMED: usize = 3;

/// Returns the resources that the agent offers.
pub fn resources(status: &Status) -> &[ResourceView] {
    let kubelet = status.kubelet.as_ref();
    kubelet.map_or(&[], |kubelet| kubelet.resources.as_slice())
}

/// Returns the line of the overview; `None` if the agent offers nothing to a kubelet.
pub fn hint(status: &Status) -> Option<String> {
    let kubelet = status.kubelet.as_ref()?;
    let dir = &kubelet.dir;
    if kubelet.socket_missing {
        return Some(format!(
            "kubelet: {dir}, running without its registration socket"
        ));
    }
    if !kubelet.present {
        return Some(format!(
            "kubelet: none at {dir}; the agent offers devices as soon as one runs there (another folder: --kubelet-dir)"
        ));
    }
    let all = kubelet.resources.len();
    let in_state = |state: &str| {
        let resources = kubelet.resources.iter();
        resources.filter(|resource| resource.state == state).count()
    };
    let resources = match (all, in_state("listed")) {
        (0, _) => "nothing to offer".to_owned(),
        (1, 1) => "1 resource, listed".to_owned(),
        (_, listed) if listed == all => format!("{all} resources, all listed"),
        (1, _) => "1 resource, not listed".to_owned(),
        (_, listed) => format!("{all} resources, {listed} of them listed"),
    };
    Some(match in_state("failed") {
        0 => format!("kubelet: {dir}, {resources}"),
        failed => format!("kubelet: {dir}, {resources}, {failed} failed"),
    })
}

/// Returns the problems that keep devices from the kubelet.
pub fn problems(status: &Status) -> Vec<String> {
    let Some(kubelet) = &status.kubelet else {
        return Vec::new();
    };
    let mut problems: Vec<String> = kubelet
        .problems
        .iter()
        .map(|problem| problem.message.clone())
        // The overview's line says so already: a machine without a kubelet is fine.
        .filter(|problem| kubelet.present || !problem.starts_with("no kubelet here: "))
        .collect();
    let mut troubled = kubelet
        .resources
        .iter()
        .filter_map(|resource| Some(format!("{}: {}", resource.name, trouble(resource)?)));
    problems.extend(troubled.by_ref().take(NAMED));
    match troubled.count() {
        0 => {}
        1 => problems.push("1 more resource has a problem: leafhost status resources".to_owned()),
        more => problems.push(format!(
            "{more} more resources have problems: leafhost status resources"
        )),
    }
    problems
}

/// Returns the problem of a resource, or its last refusal.
fn trouble(resource: &ResourceView) -> Option<String> {
    let refused = || {
        let refused = resource.refused.as_ref()?;
        let (count, last, reason) = (refused.count, &refused.last, &refused.reason);
        Some(match count {
            1 => format!("an allocation was refused at {last}: {reason}"),
            _ => format!("{count} allocations in a row were refused, the last at {last}: {reason}"),
        })
    };
    resource.problem.clone().or_else(refused)
}

/// Returns the lines of `leafhost status resources`.
pub fn lines(status: &Status, paint: Paint) -> Vec<String> {
    if resources(status).is_empty() {
        let words = if status.kubelet.is_some() {
            "No resources: there is no Instance to offer to the kubelet."
        } else {
            "No resources: this agent offers nothing to a kubelet. Start it as root or with --kubelet-dir, and without --no-kubelet."
        };
        return vec![paint.apply(Tone::Faint, words)];
    }
    let mut table = Table::new(&["RESOURCE", "STATE", "REGISTRATIONS", "SOCKET", "PROBLEM"]);
    for resource in resources(status) {
        let tone = match resource.state.as_str() {
            "listed" => Tone::Good,
            "registered" => Tone::Plain,
            "waiting" => Tone::Warning,
            _ => Tone::Bad,
        };
        table.row([
            resource.name.as_str().into(),
            Cell::new(tone, &resource.state),
            resource.registrations.to_string().into(),
            resource.socket.as_str().into(),
            Cell::new(Tone::Bad, trouble(resource).unwrap_or_default()),
        ]);
    }
    table.lines(paint)
}

/// Returns the resource limits that a container sets for any device of the Configuration, and for a particular device; empty
/// without a kubelet.
pub fn pod_lines(status: &Status, view: &ConfigurationView) -> Vec<String> {
    let mut usable = tables::of(status, Some(view))
        .filter(|instance| !tables::is_troubled(instance, &status.node));
    let instance = usable.find_map(|instance| pod_line(status, &instance.metadata.name));
    let any = pod_line(status, &view.name);
    any.into_iter().chain(instance).collect()
}

/// Returns the resource limits that a container sets for a Configuration or an Instance; `None` if it has no resource of
/// its own.
pub fn pod_line(status: &Status, name: &str) -> Option<String> {
    let kubelet = status.kubelet.as_ref().filter(|kubelet| kubelet.present)?;
    let name = resource(name);
    let offered = kubelet.resources.iter().find(|one| one.name == name)?;
    let line = format!("resources: {{limits: {{{name}: 1}}}}");
    Some(match offered.state.as_str() {
        "listed" => line,
        state => format!("{line}   # {state}: leafhost status resources"),
    })
}
