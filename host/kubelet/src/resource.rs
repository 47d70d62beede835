//! Name of an extended resource, checked as the kubelet checks it.

use std::fmt;

/// Text that is not the name of an extended resource, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be an extended resource: {1}")]
pub struct InvalidResource(String, &'static str);

/// Name of an extended resource: `domain/name`, such as `akri.sh/cameras`.
///
/// Source: `IsExtendedResourceName` of Kubernetes 1.37.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

impl ResourceName {
    /// Parses `text`: a domain that is not Kubernetes' own, and a name of at most 63 characters.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidResource> {
        let text = text.into();
        match broken(&text) {
            None => Ok(Self(text)),
            Some(rule) => Err(InvalidResource(text, rule)),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn broken(text: &str) -> Option<&'static str> {
    let Some((domain, name)) = text.split_once('/') else {
        return Some("a domain and '/' must be before the name");
    };
    let label = |label: &str| {
        label.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && label.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    // The quota of a resource is named `requests.` and the resource, and that must be a valid name, too.
    if domain.len() > 253 - "requests.".len() || !domain.split('.').all(label) {
        return Some("the domain must be a DNS subdomain in lower case");
    }
    if text.contains("kubernetes.io/") {
        return Some("domains of kubernetes.io are Kubernetes' own");
    }
    if text.starts_with("requests.") {
        return Some("the domain must not begin with 'requests.'");
    }
    let ends = |c: char| c.is_ascii_alphanumeric();
    if name.len() > 63 {
        return Some("the name after '/' must have at most 63 characters");
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !(name.starts_with(ends) && name.ends_with(ends) && name.chars().all(inner)) {
        return Some(
            "the name after '/' must be letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_the_kubelet_takes() {
        let long = format!("akri.sh/{}", "a".repeat(63));
        let too_long = format!("akri.sh/{}", "a".repeat(64));
        for (text, good) in [
            ("akri.sh/cameras-8120fe", true),
            ("akri.sh/a.b_C-d", true),
            (long.as_str(), true),
            (too_long.as_str(), false),
            ("cpu", false),
            ("akri.sh/", false),
            ("/a", false),
            ("Akri.sh/a", false),
            ("akri..sh/a", false),
            ("akri.sh/-a", false),
            ("akri.sh/a/b", false),
            ("requests.akri.sh/a", false),
            ("node.kubernetes.io/a", false),
        ] {
            assert_eq!(ResourceName::new(text).is_ok(), good, "{text}");
        }
    }
}
