//! `discoveryDetails`: the fields of Akri's udev handler and our additions.

use leafhost_sdk::Problem;
use leafhost_sdk::udev::Rule;

use crate::{paths, remarks, rules};

/// Maximum number of rules: each is a wake, and one of the 64 wakes is the timer's.
const MAX_RULES: usize = 63;
/// Maximum number of terms in all rules, as on the host.
const MAX_TERMS: usize = 256;

/// `discoveryDetails` of the handler.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Details {
    /// Rules in the syntax of a udev rules file.
    pub udev_rules: Vec<String>,
    /// Merges a device and all matched devices below it into one.
    #[serde(default)]
    pub group_recursive: bool,
    /// Permissions of a workload on the device nodes.
    #[serde(default = "all")]
    pub permissions: String,
    /// Path of the node in the container; `%n` stands for the number of the node.
    pub container_path: Option<String>,
    /// Adds the names of the nodes in `by-id` and `by-path` to the container.
    #[serde(default)]
    pub links: bool,
    /// Source of a device's id.
    #[serde(rename = "leafhost.dev/identity", default)]
    pub identity: Identity,
    /// Merges all matched devices of one piece of hardware into one.
    pub group: Option<Grouping>,
    /// Rules that select the nodes of each piece of hardware that a workload gets.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Rules for companions: other devices, whose nodes a workload gets with every piece of hardware.
    #[serde(default)]
    pub with: Vec<String>,
}

/// Criterion by which matched devices are merged into one.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Grouping {
    /// Matched devices of one piece of hardware.
    Hardware,
}

/// Parsed rules of the details.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules for devices.
    pub devices: Vec<Rule>,
    /// Rules for the nodes of a group.
    pub nodes: Vec<Rule>,
    /// Rules for the companions of all groups.
    pub with: Vec<Rule>,
}

impl Rules {
    /// Returns all rules: those for devices, for nodes, for companions.
    pub fn all(&self) -> impl Iterator<Item = &Rule> {
        self.devices.iter().chain(&self.nodes).chain(&self.with)
    }
}

/// Source of a device's id.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// Path below `/sys`, as in Akri: if the kernel gives the device another number, it is another device.
    #[default]
    Path,
    /// Controller and port that the hardware is plugged into.
    Port,
    /// Vendor, model and serial number of the hardware.
    Serial,
}

fn all() -> String {
    "rwm".to_owned()
}

impl Details {
    /// Returns all problems of the details.
    pub fn problems(&self) -> Vec<Problem> {
        let rules = self.rules();
        let terms = rules
            .as_ref()
            .map_or(0, |rules| rules.all().map(Vec::len).sum());
        let mut problems = rules.err().unwrap_or_default();
        let count = self.udev_rules.len() + self.nodes.len() + self.with.len();
        if self.udev_rules.len() > MAX_RULES {
            problems.push(Problem::new(
                "udevRules",
                format!("has more than {MAX_RULES} rules; write alternatives as KERNEL==\"a|b\""),
            ));
        } else if count > MAX_RULES {
            let place = if self.with.is_empty() {
                "nodes"
            } else {
                "with"
            };
            problems.push(Problem::new(
                place,
                format!(
                    "udevRules, nodes and with have {count} rules in all, at most {MAX_RULES}; write alternatives as KERNEL==\"a|b\""
                ),
            ));
        }
        if terms > MAX_TERMS {
            problems.push(Problem::new(
                "udevRules",
                format!("has {terms} terms in all, at most {MAX_TERMS}; split the Configuration"),
            ));
        }
        if !["r", "w", "m", "rw", "rm", "rwm", "wm"].contains(&self.permissions.as_str()) {
            problems.push(Problem::new(
                "permissions",
                format!(
                    "is {:?}, but must be one of r, w, m, rw, rm, wm, rwm",
                    self.permissions
                ),
            ));
        }
        let path = self.container_path.as_deref();
        if let Some(problem) = path.and_then(paths::problem) {
            problems.push(Problem::new("containerPath", problem));
        }
        problems.extend(self.problems_of_groups());
        problems
    }

    fn problems_of_groups(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.group.is_some() && self.group_recursive {
            let what = "is set together with groupRecursive: true; remove one of them";
            problems.push(Problem::new("group", what));
        }
        for (name, rules) in [("nodes", &self.nodes), ("with", &self.with)] {
            if self.group.is_none() && !rules.is_empty() {
                let what = "has no effect without group; add group: hardware";
                problems.push(Problem::new(name, what));
            }
        }
        problems
    }

    /// Returns remarks on valid rules.
    pub fn remarks(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        if self.udev_rules.is_empty() {
            let what =
                "is empty, so that no device is found; write a rule, such as KERNEL==\"video*\"";
            found.push(Problem::new("udevRules", what));
        }
        let rules = self.rules().unwrap_or_default();
        let wide = remarks::of_rules(&rules.devices);
        found.extend(wide.map(|(index, what)| Problem::new(format!("udevRules[{index}]"), what)));
        for (list, rules) in [
            ("udevRules", rules.devices),
            ("nodes", rules.nodes),
            ("with", rules.with),
        ] {
            for (index, rule) in rules.iter().enumerate() {
                let path = format!("{list}[{index}]");
                let of_terms = rule.iter().flat_map(|term| {
                    let remark = rules::remark(term).into_iter();
                    remark.chain(remarks::of_term(term))
                });
                let all = of_terms.chain(remarks::of_rule(rule));
                found.extend(all.map(|what| Problem::new(path.clone(), what)));
            }
        }
        found
    }

    /// Parses the rules; fails with a problem for each invalid one.
    pub fn rules(&self) -> Result<Rules, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut parse = |list: &str, texts: &[String]| {
            let mut rules = Vec::new();
            for (index, text) in texts.iter().enumerate() {
                match rules::parse(text) {
                    Ok(rule) => rules.push(rule),
                    Err(mistake) => problems.push(Problem::new(
                        format!("{list}[{index}]"),
                        mistake.to_string(),
                    )),
                }
            }
            rules
        };
        let rules = Rules {
            devices: parse("udevRules", &self.udev_rules),
            nodes: parse("nodes", &self.nodes),
            with: parse("with", &self.with),
        };
        if problems.is_empty() {
            Ok(rules)
        } else {
            Err(problems)
        }
    }
}
