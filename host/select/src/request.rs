//! Reads what a pod says: by container the text `devices` of a resource claim, as far as it is taken here.
//!
//! Source: `resource.k8s.io/v1` `DeviceClaim`. What is not taken is refused, so that no pod gets less than it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leafhost_core::attribute::name_problem;
use leafhost_core::instance::MAX_USES;
use leafhost_core::names::{ConfigurationKey, GROUP};
use leafhost_core::scheduling::{Container, ContainerKind, DEVICES};
use leafhost_core::yaml_cost::{has_alias_bomb, is_nested_too_deep};
use serde::Deserialize;

use crate::expression::InvalidExpression;
use crate::expression::MAX_EXPRESSION;

/// The longest text of a pod, in bytes.
pub const MAX_TEXT: usize = 16 << 10;
/// The most devices of one request.
pub const MAX_COUNT: u32 = 32;
/// The most devices of a pod.
pub const MAX_DEVICES: u32 = 64;
/// The most containers of a pod that ask.
const MAX_CONTAINERS: usize = MAX_USES;
/// The most requests and the most constraints of a container.
const MAX_REQUESTS: usize = 32;
/// The most ways of a request, as in a resource claim.
const MAX_WAYS: usize = 8;
/// The most expressions of a pod.
const MAX_EXPRESSIONS: usize = 32;

/// Says what a pod's annotation has that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {DEVICES}: {}{problem}", at(.path))]
pub struct InvalidRequest {
    /// The field, such as `main.requests[0].exactly.count`; empty for the whole.
    pub path: String,
    /// What is wrong, with the remedy.
    pub problem: String,
}

fn at(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    format!("{path}: ")
}

/// Is a container with what its devices must be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its name.
    pub container: String,
    /// Where it is among the containers of the pod, init containers first.
    pub place: u32,
    /// Says when it runs.
    pub kind: ContainerKind,
    /// What it asks for.
    pub requests: Vec<Request>,
    /// What must be alike.
    pub constraints: Vec<Constraint>,
}

/// Asks for devices, in one of several ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// The ways, the best first.
    pub ways: Vec<Way>,
}

/// Asks for some devices of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Its name, if there are several.
    pub name: Option<String>,
    /// The Configuration.
    pub configuration: String,
    /// Each of these must be true of each device.
    pub expressions: Vec<String>,
    /// How many devices.
    pub count: u32,
}

/// Says that devices have the same value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// The attribute, `<domain>/<name>`.
    pub attribute: String,
    /// The requests, each perhaps with a way behind a slash; none means all.
    pub requests: BTreeSet<String>,
}

impl Constraint {
    /// Tells that it holds for devices of a way of a request.
    pub fn concerns(&self, request: &Request, way: &Way) -> bool {
        self.requests.is_empty()
            || self.requests.contains(&request.name)
            || self.requests.contains(&way.whole_name(request))
    }
}

impl Way {
    /// Returns `<request>`, with `/<way>` if there are several.
    pub fn whole_name(&self, request: &Request) -> String {
        match &self.name {
            Some(way) => format!("{}/{way}", request.name),
            None => request.name.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawDevices {
    requests: Vec<RawRequest>,
    #[serde(default)]
    constraints: Vec<RawConstraint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawRequest {
    name: String,
    exactly: Option<RawExactly>,
    first_available: Option<Vec<RawWay>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawExactly {
    device_class_name: String,
    #[serde(default)]
    selectors: Vec<RawSelector>,
    allocation_mode: Option<String>,
    count: Option<i64>,
    admin_access: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawWay {
    name: String,
    device_class_name: String,
    #[serde(default)]
    selectors: Vec<RawSelector>,
    allocation_mode: Option<String>,
    count: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSelector {
    cel: RawCel,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCel {
    expression: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawConstraint {
    #[serde(default)]
    requests: Vec<String>,
    match_attribute: String,
}

/// Reads what a pod says of the containers that ask, in their order. `check` says whether an expression can be read.
pub fn read(
    text: &str,
    containers: &[Container],
    mut check: impl FnMut(&str) -> Result<(), InvalidExpression>,
) -> Result<Vec<Asked>, InvalidRequest> {
    let whole = |problem: String| InvalidRequest {
        path: String::new(),
        problem,
    };
    if text.len() > MAX_TEXT {
        let length = text.len();
        return Err(whole(format!(
            "it has {length} bytes; at most {MAX_TEXT} are allowed"
        )));
    }
    if is_nested_too_deep(text) {
        return Err(whole("it is nested too deep".to_owned()));
    }
    if has_alias_bomb(text, serde_yaml_ng::Deserializer::from_str(text)) {
        return Err(whole(
            "its aliases stand for too much; write it out".to_owned(),
        ));
    }
    let asking = containers.iter().filter(|one| one.asks).count();
    if asking > MAX_CONTAINERS {
        return Err(whole(format!(
            "{asking} containers ask for {DEVICES}; at most {MAX_CONTAINERS} may"
        )));
    }
    let reader = serde_yaml_ng::Deserializer::from_str(text);
    let raw: Result<BTreeMap<String, RawDevices>, _> = serde_path_to_error::deserialize(reader);
    let mut raw = raw.map_err(|error| InvalidRequest {
        path: match error.path().to_string() {
            path if path == "." || path == "?" => String::new(),
            path => path,
        },
        problem: error.inner().to_string(),
    })?;
    let mut all = Vec::new();
    let mut counts = Counts::default();
    for (place, container) in containers.iter().enumerate() {
        let name = &container.name;
        match (container.asks, raw.remove(name)) {
            (true, Some(devices)) => {
                let (requests, constraints) = checked(name, devices, &mut counts, &mut check)?;
                all.push(Asked {
                    container: name.clone(),
                    place: u32::try_from(place).unwrap_or(u32::MAX),
                    kind: container.kind,
                    requests,
                    constraints,
                });
            }
            (true, None) => {
                return Err(whole(format!(
                    "it says nothing of container {name}, which asks for {DEVICES}; add what its devices must be like"
                )));
            }
            (false, Some(_)) => {
                return Err(wrong(
                    name,
                    format!("the container does not ask for {DEVICES}; add a limit of 1"),
                ));
            }
            (false, None) => {}
        }
    }
    if let Some(name) = raw.into_keys().next() {
        return Err(wrong(&name, "the pod has no such container"));
    }
    Ok(all)
}

#[derive(Default)]
struct Counts {
    devices: u32,
    expressions: usize,
}

fn wrong(path: impl fmt::Display, problem: impl fmt::Display) -> InvalidRequest {
    InvalidRequest {
        path: path.to_string(),
        problem: problem.to_string(),
    }
}

type Checked = (Vec<Request>, Vec<Constraint>);

fn checked(
    path: &str,
    raw: RawDevices,
    counts: &mut Counts,
    check: &mut impl FnMut(&str) -> Result<(), InvalidExpression>,
) -> Result<Checked, InvalidRequest> {
    let path_of = |what: &str| format!("{path}.{what}");
    for (what, found) in [
        ("requests", raw.requests.len()),
        ("constraints", raw.constraints.len()),
    ] {
        if found > MAX_REQUESTS {
            let problem = format!("there are {found}; at most {MAX_REQUESTS} are allowed");
            return Err(wrong(path_of(what), problem));
        }
    }
    if raw.requests.is_empty() {
        return Err(wrong(path_of("requests"), "there must be one at least"));
    }
    let mut requests: Vec<Request> = Vec::new();
    for (index, one) in raw.requests.into_iter().enumerate() {
        let path = path_of(&format!("requests[{index}]"));
        if !is_label(&one.name) || requests.iter().any(|other| other.name == one.name) {
            let problem =
                "must be a name of its own of at most 63 lower-case letters, digits and '-'";
            return Err(wrong(format!("{path}.name"), problem));
        }
        let ways = ways(&path, one.exactly, one.first_available)?;
        let mut checked = Vec::new();
        for (path, way) in ways {
            checked.push(way_of(&path, way, counts, check)?);
        }
        let most = checked.iter().map(|way: &Way| way.count).max();
        counts.devices = counts.devices.saturating_add(most.unwrap_or(0));
        if counts.devices > MAX_DEVICES {
            let problem = format!("the pod asks for more than {MAX_DEVICES} devices");
            return Err(wrong(path, problem));
        }
        requests.push(Request {
            name: one.name,
            ways: checked,
        });
    }
    let mut constraints = Vec::new();
    for (index, one) in raw.constraints.into_iter().enumerate() {
        let path = path_of(&format!("constraints[{index}]"));
        let attribute = one.match_attribute;
        if !attribute.contains('/') || name_problem(&attribute).is_some() {
            let problem = format!(
                "{attribute:?} must be a domain, '/' and a name, such as leafhost.dev/model"
            );
            return Err(wrong(format!("{path}.matchAttribute"), problem));
        }
        let is_known = |name: &String| {
            requests.iter().any(|request| {
                *name == request.name
                    || request
                        .ways
                        .iter()
                        .any(|way| way.whole_name(request) == *name)
            })
        };
        if let Some(name) = one.requests.iter().find(|name| !is_known(name)) {
            let problem = format!("there is no request {name:?}");
            return Err(wrong(format!("{path}.requests"), problem));
        }
        constraints.push(Constraint {
            attribute,
            requests: one.requests.into_iter().collect(),
        });
    }
    Ok((requests, constraints))
}

/// Returns the ways of a request, each with its path.
fn ways(
    path: &str,
    exactly: Option<RawExactly>,
    first: Option<Vec<RawWay>>,
) -> Result<Vec<(String, RawWay)>, InvalidRequest> {
    match (exactly, first) {
        (Some(exactly), None) => {
            let path = format!("{path}.exactly");
            if exactly.admin_access == Some(true) {
                let problem = "is not possible here; use a resource claim";
                return Err(wrong(format!("{path}.adminAccess"), problem));
            }
            let way = RawWay {
                name: String::new(),
                device_class_name: exactly.device_class_name,
                selectors: exactly.selectors,
                allocation_mode: exactly.allocation_mode,
                count: exactly.count,
            };
            Ok(vec![(path, way)])
        }
        (None, Some(ways)) => {
            let path = format!("{path}.firstAvailable");
            if ways.is_empty() || ways.len() > MAX_WAYS {
                let problem = format!("there are {}; 1 to {MAX_WAYS} are allowed", ways.len());
                return Err(wrong(path, problem));
            }
            let mut names = BTreeSet::new();
            for (index, way) in ways.iter().enumerate() {
                if !is_label(&way.name) || !names.insert(way.name.clone()) {
                    let problem = "must be a name of its own of at most 63 lower-case letters, digits and '-'";
                    return Err(wrong(format!("{path}[{index}].name"), problem));
                }
            }
            let paths = ways.into_iter().enumerate();
            Ok(paths
                .map(|(index, way)| (format!("{path}[{index}]"), way))
                .collect())
        }
        _ => Err(wrong(path, "must have either exactly or firstAvailable")),
    }
}

fn way_of(
    path: &str,
    raw: RawWay,
    counts: &mut Counts,
    check: &mut impl FnMut(&str) -> Result<(), InvalidExpression>,
) -> Result<Way, InvalidRequest> {
    if let Some(mode) = raw.allocation_mode.filter(|mode| mode != "ExactCount") {
        let problem = format!("{mode:?} is not possible here; only ExactCount is");
        return Err(wrong(format!("{path}.allocationMode"), problem));
    }
    let count = u32::try_from(raw.count.unwrap_or(1)).ok();
    let count = count.filter(|count| (1..=MAX_COUNT).contains(count));
    let Some(count) = count else {
        let problem = format!("must be 1 to {MAX_COUNT}");
        return Err(wrong(format!("{path}.count"), problem));
    };
    let class = &raw.device_class_name;
    let name = class.strip_suffix(GROUP);
    let name = name
        .and_then(|name| name.strip_suffix('.'))
        .unwrap_or(class);
    // Its namespace is not known here, and has no part in whether the name is one.
    if ConfigurationKey::new("default", name).is_err() {
        let problem =
            format!("{class:?} must be <Configuration>.{GROUP} or the name of a Configuration");
        return Err(wrong(format!("{path}.deviceClassName"), problem));
    }
    let mut expressions = Vec::new();
    for (index, selector) in raw.selectors.into_iter().enumerate() {
        let path = format!("{path}.selectors[{index}].cel.expression");
        counts.expressions += 1;
        if counts.expressions > MAX_EXPRESSIONS {
            let problem = format!("the pod has more than {MAX_EXPRESSIONS} expressions");
            return Err(wrong(path, problem));
        }
        let text = selector.cel.expression;
        if text.len() > MAX_EXPRESSION {
            return Err(wrong(path, InvalidExpression::TooLong(text.len())));
        }
        check(&text).map_err(|problem| wrong(path, problem))?;
        expressions.push(text);
    }
    Ok(Way {
        name: Some(raw.name).filter(|name| !name.is_empty()),
        configuration: name.to_owned(),
        expressions,
        count,
    })
}

/// Tells that a text is a DNS label.
fn is_label(text: &str) -> bool {
    ConfigurationKey::new(text, "a").is_ok()
}

#[cfg(test)]
mod tests;
