//! `discoveryDetails` of Akri's udev handler.

use leafhost_sdk::Problem;
use leafhost_sdk::udev::Rule;

use crate::rules;

/// Upper bound of rules: each is a wake, and one of the 64 wakes is the timer's.
const MAX_RULES: usize = 63;
/// Upper bound of terms in all rules, as on the host.
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
}

fn all() -> String {
    "rwm".to_owned()
}

impl Details {
    /// Returns all problems of the details.
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

    /// Returns remarks on valid rules.
    pub fn remarks(&self) -> Vec<Problem> {
        let rules = self.rules().unwrap_or_default();
        let mut remarks = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for term in rule {
                let path = format!("udevRules[{index}]");
                let remark = rules::remark(term);
                remarks.extend(remark.map(|remark| Problem::new(path, remark)));
            }
        }
        remarks
    }

    /// Parses the rules; fails with a problem for each invalid one.
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
