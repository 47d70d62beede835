//! Parses the annotation of a pod: for each container, a subset of the field `devices` of a resource claim.
//!
//! Source: `resource.k8s.io/v1` `DeviceClaim`. Unsupported fields are rejected, so that no pod gets less than it asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leafhost_core::attribute::name_problem;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::instance::MAX_USES;
use leafhost_core::names::{ConfigurationKey, GROUP};
use leafhost_core::scheduling::{Container, ContainerKind, DEVICES};
use leafhost_core::yaml;
use serde::Deserialize;

/// Maximum length of the annotation, in bytes.
pub const MAX_TEXT: usize = 16 << 10;
/// Maximum number of devices per request.
const MAX_COUNT: u32 = 32;
/// Maximum number of devices per pod.
pub const MAX_DEVICES: u32 = 64;
/// Maximum number of containers per pod that ask for devices.
const MAX_CONTAINERS: usize = MAX_USES;
/// Maximum number of requests, and of constraints, per container.
const MAX_REQUESTS: usize = 32;
/// Maximum number of alternatives per request, as in a resource claim.
const MAX_ALTERNATIVES: usize = 8;
/// Maximum number of expressions per pod.
const MAX_EXPRESSIONS: usize = 32;

/// Problem in a pod's annotation: path of the field, such as `main.requests[0].exactly.count`, problem and remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {DEVICES}: {0}")]
pub struct InvalidRequest(String);

/// Container and the devices it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Name of the container.
    pub container: String,
    /// Index of the container in the pod, init containers first.
    pub place: u32,
    /// Kind of the container, which decides when it runs.
    pub kind: ContainerKind,
    /// Requests of the container, all of which must be met.
    pub requests: Vec<Request>,
    /// Constraints across the devices of the container.
    pub constraints: Vec<Constraint>,
}

/// Request for devices, which can be met by one of several alternatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Name of the request.
    pub name: String,
    /// Ways to meet the request, the preferred one first.
    pub alternatives: Vec<Alternative>,
}

/// Alternative of a request: a number of devices of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// Name of the alternative; `None` if the request uses `exactly`.
    pub name: Option<String>,
    /// Name of the Configuration.
    pub configuration: String,
    /// Expressions that must all be true for each device.
    pub expressions: Vec<String>,
    /// Number of devices.
    pub count: u32,
}

/// Constraint: an attribute that must have the same value on all devices of `requests`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// Qualified name of the attribute, `<domain>/<name>`.
    pub attribute: String,
    /// Requests that the constraint applies to, as `<request>` or `<request>/<alternative>`; all requests if empty.
    pub requests: BTreeSet<String>,
}

impl Constraint {
    /// Returns true if the constraint applies to devices of an alternative of a request.
    pub fn concerns(&self, request: &Request, alternative: &Alternative) -> bool {
        self.requests.is_empty()
            || self.requests.contains(&request.name)
            || self.requests.contains(&alternative.whole_name(request))
    }
}

impl Alternative {
    /// Returns `<request>/<alternative>`, or `<request>` if the alternative has no name.
    pub fn whole_name(&self, request: &Request) -> String {
        match &self.name {
            Some(alternative) => format!("{}/{alternative}", request.name),
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
    exactly: Option<RawWay>,
    first_available: Option<Vec<RawWay>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawWay {
    /// Empty in `exactly`.
    #[serde(default)]
    name: String,
    device_class_name: String,
    #[serde(default)]
    selectors: Vec<RawSelector>,
    allocation_mode: Option<String>,
    count: Option<i64>,
    admin_access: Option<bool>,
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

/// Parses the annotation `text` of a pod for its containers that ask for devices, in their order. `check` returns an error if an expression is
/// invalid.
pub fn read(
    text: &str,
    containers: &[Container],
    check: impl FnMut(&str) -> Result<(), String>,
) -> Result<Vec<ContainerRequest>, InvalidRequest> {
    if text.len() > MAX_TEXT {
        let length = text.len();
        return Err(InvalidRequest(format!(
            "it has {length} bytes; at most {MAX_TEXT} are allowed"
        )));
    }
    let asking = containers.iter().filter(|one| one.asks).count();
    if asking > MAX_CONTAINERS {
        return Err(InvalidRequest(format!(
            "{asking} containers ask for {DEVICES}; at most {MAX_CONTAINERS} may"
        )));
    }
    let raw: Option<BTreeMap<String, RawDevices>> = yaml::read(text).map_err(|mistake| {
        let problem = mistake.with_line();
        InvalidRequest(FieldProblem::new(mistake.path, problem).to_string())
    })?;
    let mut raw = raw.unwrap_or_default();
    let mut all = Vec::new();
    let mut reader = Reader {
        devices: 0,
        expressions: 0,
        check,
    };
    for (place, container) in containers.iter().enumerate() {
        let name = &container.name;
        match (container.asks, raw.remove(name)) {
            (true, Some(devices)) => {
                let (requests, constraints) = reader.devices(name, devices)?;
                all.push(ContainerRequest {
                    container: name.clone(),
                    place: u32::try_from(place).unwrap_or(u32::MAX),
                    kind: container.kind,
                    requests,
                    constraints,
                });
            }
            (true, None) => {
                return Err(InvalidRequest(format!(
                    "it does not describe the devices of container {name}, which requests {DEVICES}; add them"
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

fn wrong(path: impl fmt::Display, problem: impl fmt::Display) -> InvalidRequest {
    InvalidRequest(format!("{path}: {problem}"))
}

const OWN_NAME: &str = "must be a name of its own of at most 63 lower-case letters, digits and '-'";

/// Parser of the requests of a pod, with the numbers of devices and expressions that all containers ask for together.
struct Reader<C> {
    devices: u32,
    expressions: usize,
    check: C,
}

impl<C: FnMut(&str) -> Result<(), String>> Reader<C> {
    fn devices(
        &mut self,
        path: &str,
        raw: RawDevices,
    ) -> Result<(Vec<Request>, Vec<Constraint>), InvalidRequest> {
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
            return Err(wrong(path_of("requests"), "there must be at least one"));
        }
        let mut requests: Vec<Request> = Vec::new();
        for (index, one) in raw.requests.into_iter().enumerate() {
            let path = path_of(&format!("requests[{index}]"));
            if !is_label(&one.name) || requests.iter().any(|other| other.name == one.name) {
                return Err(wrong(format!("{path}.name"), OWN_NAME));
            }
            let ways = ways(&path, one.exactly, one.first_available)?.into_iter();
            let alternatives = ways.map(|(path, way)| self.alternative(&path, way));
            let alternatives: Vec<Alternative> = alternatives.collect::<Result<_, _>>()?;
            let most = alternatives.iter().map(|alternative| alternative.count);
            self.devices = self.devices.saturating_add(most.max().unwrap_or(0));
            if self.devices > MAX_DEVICES {
                let problem = format!("the pod asks for more than {MAX_DEVICES} devices");
                return Err(wrong(path, problem));
            }
            requests.push(Request {
                name: one.name,
                alternatives,
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
                    let mut alternatives = request.alternatives.iter();
                    *name == request.name
                        || alternatives.any(|one| one.whole_name(request) == *name)
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

    fn alternative(&mut self, path: &str, raw: RawWay) -> Result<Alternative, InvalidRequest> {
        if let Some(mode) = raw.allocation_mode.filter(|mode| mode != "ExactCount") {
            let problem = format!("{mode:?} is not possible here; only ExactCount is");
            return Err(wrong(format!("{path}.allocationMode"), problem));
        }
        if raw.admin_access == Some(true) {
            let problem = "is not possible here; use a resource claim";
            return Err(wrong(format!("{path}.adminAccess"), problem));
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
        // The namespace is not known here and does not affect whether the name is valid.
        if ConfigurationKey::new("default", name).is_err() {
            let problem =
                format!("{class:?} must be <Configuration>.{GROUP} or the name of a Configuration");
            return Err(wrong(format!("{path}.deviceClassName"), problem));
        }
        let mut expressions = Vec::new();
        for (index, selector) in raw.selectors.into_iter().enumerate() {
            let path = format!("{path}.selectors[{index}].cel.expression");
            self.expressions += 1;
            if self.expressions > MAX_EXPRESSIONS {
                let problem = format!("the pod has more than {MAX_EXPRESSIONS} expressions");
                return Err(wrong(path, problem));
            }
            let text = selector.cel.expression;
            (self.check)(&text).map_err(|problem| wrong(path, problem))?;
            expressions.push(text);
        }
        Ok(Alternative {
            name: Some(raw.name).filter(|name| !name.is_empty()),
            configuration: name.to_owned(),
            expressions,
            count,
        })
    }
}

/// Returns the alternatives of a request, each with the path of its field.
fn ways(
    path: &str,
    exactly: Option<RawWay>,
    first: Option<Vec<RawWay>>,
) -> Result<Vec<(String, RawWay)>, InvalidRequest> {
    match (exactly, first) {
        (Some(exactly), None) => {
            let path = format!("{path}.exactly");
            if !exactly.name.is_empty() {
                return Err(wrong(format!("{path}.name"), "is not possible here"));
            }
            Ok(vec![(path, exactly)])
        }
        (None, Some(alternatives)) => {
            let path = format!("{path}.firstAvailable");
            if alternatives.is_empty() || alternatives.len() > MAX_ALTERNATIVES {
                let problem = format!(
                    "there are {}; 1 to {MAX_ALTERNATIVES} are allowed",
                    alternatives.len()
                );
                return Err(wrong(path, problem));
            }
            let mut names = BTreeSet::new();
            for (index, alternative) in alternatives.iter().enumerate() {
                if !is_label(&alternative.name) || !names.insert(alternative.name.clone()) {
                    return Err(wrong(format!("{path}[{index}].name"), OWN_NAME));
                }
                if alternative.admin_access.is_some() {
                    let path = format!("{path}[{index}].adminAccess");
                    return Err(wrong(path, "is not possible here; use a resource claim"));
                }
            }
            let paths = alternatives.into_iter().enumerate();
            Ok(paths
                .map(|(index, alternative)| (format!("{path}[{index}]"), alternative))
                .collect())
        }
        _ => Err(wrong(path, "must have either exactly or firstAvailable")),
    }
}

/// Returns true if a text is a DNS label.
fn is_label(text: &str) -> bool {
    ConfigurationKey::new(text, "a").is_ok()
}

#[cfg(test)]
mod tests;
