//! Akri's `discoveryDetails` for udev.

use leafhost_sdk::Problem;
use leafhost_sdk::udev::Rule;

use crate::rules;

/// The most rules: each is a wake, and one of the 64 is the timer's.
const MAX_RULES: usize = 63;
/// The most terms of all rules: what the host takes.
const MAX_TERMS: usize = 256;

/// `discoveryDetails`.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Details {
    /// As in a udev rules file.
    pub udev_rules: Vec<String>,
    /// Makes one device of a device and all matched below it.
    #[serde(default)]
    pub group_recursive: bool,
    /// What a workload may do with the nodes.
    #[serde(default = "all")]
    pub permissions: String,
}

fn all() -> String {
    "rwm".to_owned()
}

impl Details {
    /// All problems.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.rules().err().unwrap_or_default();
        if self.udev_rules.len() > MAX_RULES {
            problems.push(Problem::new(
                "udevRules",
                format!("has more than {MAX_RULES} rules; write alternatives as KERNEL==\"a|b\""),
            ));
        }
        let terms = self
            .rules()
            .map_or(0, |rules| rules.iter().map(Vec::len).sum());
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
        problems
    }

    /// Remarks on rules that can be used.
    pub fn remarks(&self) -> Vec<Problem> {
        let rules = self.rules().unwrap_or_default();
        let mut remarks = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for term in rule {
                let path = format!("udevRules[{index}]");
                let told = rules::remark(term);
                remarks.extend(told.map(|told| Problem::new(path, told)));
            }
        }
        remarks
    }

    /// The parsed rules.
    pub fn rules(&self) -> Result<Vec<Rule>, Vec<Problem>> {
        let mut rules = Vec::new();
        let mut problems = Vec::new();
        for (index, text) in self.udev_rules.iter().enumerate() {
            match rules::parse(text) {
                Ok(rule) => rules.push(rule),
                Err(mistake) => problems.push(Problem::new(
                    format!("udevRules[{index}]"),
                    mistake.to_string(),
                )),
            }
        }
        if problems.is_empty() {
            Ok(rules)
        } else {
            Err(problems)
        }
    }
}
