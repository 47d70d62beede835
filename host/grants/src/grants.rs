//! Grants file of a handler: what the handler may use and hand out. Without a file, nothing.
//!
//! Validates the file as a whole and reports every problem with the path of its field. Knows no engine and opens no
//! file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glob::{MatchOptions, Pattern};
use leafhost_core::configuration::FieldProblem;
use leafhost_core::names::is_handler_name;
use leafhost_core::{variables, yaml};
use serde::Deserialize;

use crate::limits::Limits;

mod network;

pub use leafhost_net::grants::{HostPorts, NetPorts, NetworkGrants, Ports, Tls};

/// Maximum size of a grants file, in bytes.
pub const MAX_TEXT: usize = 64 << 10;
/// Maximum number of entries in a list.
const MAX_ENTRIES: usize = 256;

/// Permissions of a handler.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grants {
    /// `name`: handler that the file is for.
    pub name: Option<String>,
    /// `udev.subsystems`: devices that the handler may see and be woken by; `None` grants none.
    pub udev: Option<Vec<String>>,
    /// `network`: peers that the handler may reach and be woken by; `None` grants none.
    pub network: Option<NetworkGrants>,
    /// `limits`: raised limits, applied to the defaults.
    pub limits: Limits,
    /// `devices`: what the handler's devices may add to a container.
    pub devices: DeviceGrants,
}

/// Permissions for the devices of a handler.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceGrants {
    /// True if `nodes` contains `udev`: grants the nodes of devices that udev returned to the same call.
    pub udev_nodes: bool,
    /// Patterns of device nodes.
    pub nodes: Vec<Pattern>,
    /// Patterns of files and folders.
    pub mounts: Vec<MountGrant>,
    /// Patterns of environment variables.
    pub env: Vec<Pattern>,
    /// Folders that are never mounted, and neither are their ancestors or contents: those of the agent and the kubelet.
    /// Not from the file.
    pub never: Arc<[String]>,
}

/// File or folder that a device may add to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountGrant {
    /// Pattern of paths.
    pub path: Pattern,
    /// True if writing is granted as well.
    pub write: bool,
}

/// Match options under which a star stays within one part of a path.
const PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

impl DeviceGrants {
    /// Returns true if a pattern matches the device node. Ignores nodes granted through udev.
    pub fn allows_node(&self, path: &str) -> bool {
        self.nodes
            .iter()
            .any(|pattern| pattern.matches_with(path, PATHS))
    }

    /// Returns true if the path may be mounted with this access. Never grants the root, file systems of the kernel, or
    /// the folders of the agent and the kubelet, whatever the patterns say.
    pub fn allows_mount(&self, path: &str, read_only: bool) -> bool {
        let never = path == "/"
            || is_of_the_kernel(path)
            || self
                .never
                .iter()
                .any(|folder| is_within(path, folder) || is_within(folder, path));
        !never
            && self
                .mounts
                .iter()
                .any(|grant| (read_only || grant.write) && grant.path.matches_with(path, PATHS))
    }

    /// Returns true if the environment variable may be set. Never grants variables that change what a workload runs or
    /// whom it trusts.
    pub fn allows_env(&self, name: &str) -> bool {
        // Most patterns are a prefix and a star, which `starts_with` checks faster.
        let matches = |pattern: &Pattern| {
            let beginning = pattern.as_str().strip_suffix('*');
            match beginning.filter(|beginning| !beginning.contains(['*', '?', '['])) {
                Some(beginning) => name.starts_with(beginning),
                None => pattern.matches(name),
            }
        };
        !variables::is_never_set(name) && self.env.iter().any(matches)
    }
}

/// Returns the folders and their paths without links, for [`DeviceGrants::never`]. Blocks.
pub fn never(folders: &[PathBuf]) -> Arc<[String]> {
    let real = folders
        .iter()
        .filter_map(|folder| std::fs::canonicalize(folder).ok());
    let all = folders.iter().cloned().chain(real);
    all.filter_map(|folder| Some(folder.to_str()?.trim_end_matches('/').to_owned()))
        .filter(|folder| !folder.is_empty())
        .collect()
}

/// Returns true if the path, or the beginning of a pattern, lies in a file system of the kernel.
pub(crate) fn is_of_the_kernel(path: &str) -> bool {
    ["/dev", "/proc", "/sys"]
        .iter()
        .any(|root| is_within(path, root))
}

/// Returns true if the path is the folder or lies below it.
pub(crate) fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a forbidden variable name that the pattern matches: such a pattern is a mistake or grants more than
/// intended.
fn never_env_in(pattern: &Pattern) -> Option<&'static str> {
    const NAMES: [&str; 16] = [
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "KUBERNETES_SERVICE_HOST",
        "BASH_ENV",
        "ENV",
        "GIT_SSH_COMMAND",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "https_proxy",
        "JAVA_TOOL_OPTIONS",
        "NODE_OPTIONS",
        "PERL5OPT",
        "PYTHONPATH",
        "PYTHONSTARTUP",
    ];
    NAMES.into_iter().find(|name| pattern.matches(name))
}

/// Returns a system path, or one with credentials or sockets, that a wildcard of the pattern matches. Such a path must
/// be written out.
fn system_path_in(pattern: &Pattern) -> Option<&'static str> {
    const SYSTEM: [&str; 12] = [
        "/etc",
        "/etc/shadow",
        "/etc/kubernetes",
        "/home",
        "/root",
        "/root/.ssh",
        "/run",
        "/run/docker.sock",
        "/run/containerd",
        "/usr",
        "/var",
        "/var/lib",
    ];
    let is_literal = !pattern.as_str().contains(['*', '?', '[']);
    let mut paths = SYSTEM.into_iter().filter(|_| !is_literal);
    paths.find(|path| pattern.matches_with(path, PATHS))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    name: Option<String>,
    udev: Option<UdevSection>,
    network: Option<network::Section>,
    limits: LimitsSection,
    devices: DevicesSection,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UdevSection {
    subsystems: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct LimitsSection {
    #[serde(rename = "memoryMiB")]
    memory_mib: Option<u64>,
    cpu_seconds: Option<u64>,
    wall_seconds: Option<u64>,
    devices: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct DevicesSection {
    nodes: Vec<String>,
    mounts: Vec<String>,
    env: Vec<String>,
}

impl Grants {
    /// Parses a grants file. An empty one grants nothing.
    ///
    /// # Errors
    /// Returns every problem, with the path of its field, such as `network.udp[1]`.
    pub fn parse(text: &str) -> Result<Self, Vec<FieldProblem>> {
        if text.len() > MAX_TEXT {
            let message = format!("the grants file is larger than {} KiB", MAX_TEXT >> 10);
            return Err(vec![FieldProblem::new("", message)]);
        }
        // A file with nothing but comments parses as null.
        let file: Option<File> = yaml::read(text)
            .map_err(|mistake| vec![FieldProblem::new(&mistake.path, mistake.with_line())])?;
        let file = file.unwrap_or_default();
        let mut problems = Vec::new();
        if file
            .name
            .as_deref()
            .is_some_and(|name| !is_handler_name(name))
        {
            problems.push(FieldProblem::new(
                "name",
                "is not the name of a handler; must be the name that the component describes itself by, such as `onvif`",
            ));
        }
        let grants = Self {
            name: file.name,
            udev: file.udev.map(|section| {
                check_list("udev.subsystems", &section.subsystems, &mut problems);
                section.subsystems
            }),
            network: file.network.map(|section| section.check(&mut problems)),
            limits: file.limits.check(&mut problems),
            devices: file.devices.check(&mut problems),
        };
        if problems.is_empty() {
            Ok(grants)
        } else {
            Err(problems)
        }
    }

    /// Parses the text of a grants file, if there is one.
    ///
    /// # Errors
    /// Returns the problems on one line.
    pub fn read(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        Self::parse(text).map_err(|problems| {
            let lines = problems.iter().take(10).map(ToString::to_string);
            let lines: Vec<String> = lines.collect();
            lines.join("; ")
        })
    }

    /// Returns true if the grant of this name, as used in the imports of a component, is given.
    pub fn gives(&self, name: &str) -> bool {
        match name {
            "udev" => self.udev.is_some(),
            "network" => self.network.is_some(),
            _ => false,
        }
    }

    /// Returns warnings for the operator about grants without effect.
    pub fn warnings(&self) -> Vec<String> {
        let is_vain = self.devices.udev_nodes && self.udev.is_none();
        let warning = "`devices.nodes` has `udev`, but there is no grant `udev`; it names no node";
        is_vain.then(|| warning.to_owned()).into_iter().collect()
    }
}

impl LimitsSection {
    fn check(self, problems: &mut Vec<FieldProblem>) -> Limits {
        let defaults = Limits::default();
        let mut raised = |name: &str, value: Option<u64>, default: u64, ceiling: u64| {
            let value = value.unwrap_or(default);
            if !(default..=ceiling).contains(&value) {
                problems.push(FieldProblem::new(
                    format!("limits.{name}"),
                    format!(
                        "is {value}, must be {default} to {ceiling}; grants can raise limits, not lower them"
                    ),
                ));
            }
            value.clamp(default, ceiling)
        };
        let memory = raised("memoryMiB", self.memory_mib, defaults.memory >> 20, 1024);
        let cpu = raised("cpuSeconds", self.cpu_seconds, defaults.cpu.as_secs(), 60);
        let wall = raised(
            "wallSeconds",
            self.wall_seconds,
            defaults.wall.as_secs(),
            600,
        );
        let devices = raised("devices", self.devices, defaults.devices.into(), 65_536);
        Limits {
            memory: memory << 20,
            cpu: Duration::from_secs(cpu),
            wall: Duration::from_secs(wall),
            devices: u32::try_from(devices).unwrap_or(defaults.devices),
            answer: defaults.answer,
        }
    }
}

impl DevicesSection {
    fn check(self, problems: &mut Vec<FieldProblem>) -> DeviceGrants {
        let nodes = entries("devices.nodes", &self.nodes, problems, node_grant);
        DeviceGrants {
            udev_nodes: nodes.iter().any(Option::is_none),
            nodes: nodes.into_iter().flatten().collect(),
            mounts: entries("devices.mounts", &self.mounts, problems, mount_grant),
            env: entries("devices.env", &self.env, problems, env_grant),
            ..DeviceGrants::default()
        }
    }
}

/// Parses the entries; leaves out invalid ones and adds a problem for each.
fn entries<T>(
    path: &str,
    list: &[String],
    problems: &mut Vec<FieldProblem>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    check_list(path, list, problems);
    let mut entries = Vec::new();
    for (index, text) in list.iter().enumerate() {
        match parse(text) {
            Ok(entry) => entries.push(entry),
            Err(message) => problems.push(FieldProblem::new(
                format!("{path}[{index}]"),
                format!("{text:?} {message}"),
            )),
        }
    }
    entries
}

fn check_list(path: &str, list: &[String], problems: &mut Vec<FieldProblem>) {
    if list.len() > MAX_ENTRIES {
        problems.push(FieldProblem::new(
            path,
            format!("has {} entries, at most {MAX_ENTRIES}", list.len()),
        ));
    }
    for (index, entry) in list.iter().enumerate() {
        if entry.is_empty() || entry.len() > 4096 || entry.chars().any(char::is_control) {
            problems.push(FieldProblem::new(
                format!("{path}[{index}]"),
                "must be 1 to 4,096 bytes without control characters",
            ));
        }
    }
}

fn path_pattern(text: &str) -> Result<Pattern, String> {
    if let Some(problem) = leafhost_core::device::path_problem(text) {
        return Err(problem.to_owned());
    }
    if text.contains("**") {
        return Err("has `**`; one star stays within one folder".to_owned());
    }
    pattern(text)
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("is not a pattern: {}", error.msg))
}

/// Parses a pattern of device nodes; `None` for `udev`.
fn node_grant(entry: &str) -> Result<Option<Pattern>, String> {
    if entry == "udev" {
        return Ok(None);
    }
    let pattern = path_pattern(entry)?;
    if !entry.starts_with("/dev/") {
        let message = "must be `udev` or a path below /dev such as \"/dev/vfio/*\"";
        return Err(message.to_owned());
    }
    Ok(Some(pattern))
}

fn env_grant(entry: &str) -> Result<Pattern, String> {
    if variables::is_never_set(entry) {
        let why = variables::NEVER_SET;
        return Err(format!("is never handed out, because {why}; remove it"));
    }
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '?');
    let pattern = Pattern::new(entry).ok();
    let Some(pattern) = pattern.filter(|_| !entry.is_empty() && entry.chars().all(named)) else {
        return Err("must be a name or a pattern such as \"UDEV_*\"".to_owned());
    };
    match never_env_in(&pattern) {
        Some(name) => Err(format!(
            "has {name}, which is never handed out; begin the pattern with the common prefix of your names, such as \"UDEV_*\""
        )),
        None => Ok(pattern),
    }
}

fn mount_grant(entry: &str) -> Result<MountGrant, String> {
    let (path, write) = match entry.rsplit_once(':') {
        Some((path, "ro")) => (path, false),
        Some((path, "rw")) => (path, true),
        _ => return Err("must end in `:ro` or `:rw`, such as \"/run/udev:ro\"".to_owned()),
    };
    if is_of_the_kernel(path) {
        return Err("lies in /dev, /proc or /sys; nodes are granted by `devices.nodes`".to_owned());
    }
    let path = path_pattern(path)?;
    if let Some(system) = system_path_in(&path) {
        return Err(format!(
            "has {system}, too; name the files and folders that you mean, such as \"/etc/vendor.conf:ro\""
        ));
    }
    Ok(MountGrant { path, write })
}

#[cfg(test)]
mod tests;
