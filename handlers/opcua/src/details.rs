//! `discoveryDetails` of Akri's OPC UA handler, with our additions.

use leafhost_sdk::Problem;

use crate::text::quoted;
use crate::url::Url;

/// Maximum number of discovery URLs.
const MAX_URLS: usize = 64;
/// Maximum number of names in a filter.
const MAX_NAMES: usize = 1_000;

/// `discoveryDetails` of the handler.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Details {
    /// Method by which servers are found.
    pub opcua_discovery_method: Method,
    /// Filter of the devices by application name.
    #[serde(default)]
    pub application_names: Option<FilterList>,
    /// Filter of the devices by application type, with names of [`KINDS`].
    #[serde(default = "servers")]
    pub application_types: Vec<String>,
    /// Rule for replacing the host of a listed URL by the requested host, a name of [`REWRITES`].
    #[serde(default = "unresolvable")]
    pub host_rewrite: String,
}

/// `opcuaDiscoveryMethod` of the details.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Method {
    /// Method that asks known servers.
    pub standard: Standard,
}

/// `opcuaDiscoveryMethod.standard` of the details.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct Standard {
    /// URLs of servers and discovery servers.
    #[serde(default = "local_discovery_server")]
    pub discovery_urls: Vec<String>,
}

/// Filter of names, compared exactly.
#[leafhost_sdk::details]
#[derive(Debug)]
pub struct FilterList {
    pub items: Vec<String>,
    /// Effect of the filter: `Include` selects only these names, `Exclude` all others.
    #[serde(default = "include")]
    pub action: String,
}

/// Types of applications that can be devices, with their numbers (OPC 10000-4, 7.4). A pure client has no address.
///
/// Enumerations are read as texts: a type for each would add ten kilobytes to the component.
pub const KINDS: [(&str, u32); 3] = [
    ("Server", 0),
    ("ClientAndServer", 2),
    ("DiscoveryServer", 3),
];

/// Condition under which a listed URL is changed to the host that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRewrite {
    /// Keeps the listed URL.
    None,
    /// Replaces the host if it cannot be reached from this node.
    Unresolvable,
    /// Replaces the host always.
    UseConfiguredHost,
}

/// Names of the rewrites.
const REWRITES: [(&str, HostRewrite); 3] = [
    ("unresolvable", HostRewrite::Unresolvable),
    ("none", HostRewrite::None),
    ("use-configured-host", HostRewrite::UseConfiguredHost),
];

/// Names of the filter actions; true selects the listed items.
const ACTIONS: [(&str, bool); 2] = [("Include", true), ("Exclude", false)];

fn include() -> String {
    "Include".to_owned()
}

fn unresolvable() -> String {
    "unresolvable".to_owned()
}

fn servers() -> Vec<String> {
    vec!["Server".to_owned(), "ClientAndServer".to_owned()]
}

fn local_discovery_server() -> Vec<String> {
    vec!["opc.tcp://localhost:4840/".to_owned()]
}

impl Details {
    /// Returns all problems of the details.
    pub fn problems(&self) -> Vec<Problem> {
        let urls = &self.opcua_discovery_method.standard.discovery_urls;
        let mut problems: Vec<Problem> = urls
            .iter()
            .enumerate()
            .filter_map(|(index, text)| Some(Problem::new(path(index), problem(text)?)))
            .collect();
        if urls.len() > MAX_URLS {
            problems.push(Problem::new(
                "opcuaDiscoveryMethod.standard.discoveryUrls",
                format!(
                    "has {} URLs, at most {MAX_URLS}; split the Configuration, or name a discovery server that knows them",
                    urls.len()
                ),
            ));
        }
        let names = self.application_names.as_ref();
        if names.is_some_and(|names| names.items.len() > MAX_NAMES) {
            problems.push(Problem::new(
                "applicationNames.items",
                format!("has more than {MAX_NAMES} names"),
            ));
        }
        if let Some(names) = names {
            problems.extend(unknown("applicationNames.action", &names.action, &ACTIONS));
        }
        for (index, kind) in self.application_types.iter().enumerate() {
            problems.extend(unknown(&format!("applicationTypes[{index}]"), kind, &KINDS));
        }
        problems.extend(unknown("hostRewrite", &self.host_rewrite, &REWRITES));
        if self.application_types.is_empty() {
            problems.push(Problem::new(
                "applicationTypes",
                "is empty, so that nothing would be found; must have some of Server, ClientAndServer, DiscoveryServer",
            ));
        }
        problems
    }

    /// Returns a remark if `applicationNames` selects nothing.
    pub fn remarks(&self) -> Vec<Problem> {
        let names = self.application_names.iter();
        let empty = names.filter(|names| names.action == "Include" && names.items.is_empty());
        let what =
            "includes nothing, so that no server is a device; remove it, or write action: Exclude";
        empty
            .map(|_| Problem::new("applicationNames", what))
            .collect()
    }

    /// Returns the URLs to ask, each once, with their indices in the list.
    pub fn urls(&self) -> Vec<(usize, Url)> {
        let mut urls: Vec<(usize, Url)> = Vec::new();
        let texts = &self.opcua_discovery_method.standard.discovery_urls;
        for (index, text) in texts.iter().enumerate() {
            if let Ok(url) = Url::parse(text)
                && !urls.iter().any(|(_, other)| *other == url)
            {
                urls.push((index, url));
            }
        }
        urls
    }
}

impl Details {
    /// Returns true if an application of that type can be a device.
    pub fn takes(&self, kind: u32) -> bool {
        let mut kinds = self.application_types.iter();
        kinds.any(|name| meaning(name, &KINDS) == Some(kind))
    }

    /// Returns the configured rewrite.
    pub fn rewrites(&self) -> HostRewrite {
        meaning(&self.host_rewrite, &REWRITES).unwrap_or(HostRewrite::Unresolvable)
    }
}

impl FilterList {
    /// Returns true if an application of that name is selected. As in Akri, an empty filter includes none or excludes none.
    pub fn takes(&self, name: &str) -> bool {
        let listed = self.items.iter().any(|item| item == name);
        meaning(&self.action, &ACTIONS) == Some(listed)
    }
}

/// Returns the path of the field that has the discovery URL at `index`.
pub fn path(index: usize) -> String {
    format!("opcuaDiscoveryMethod.standard.discoveryUrls[{index}]")
}

fn meaning<T: Copy>(word: &str, words: &[(&str, T)]) -> Option<T> {
    let known = words.iter().find(|(known, _)| *known == word)?;
    Some(known.1)
}

fn unknown<T: Copy>(path: &str, word: &str, words: &[(&str, T)]) -> Option<Problem> {
    if meaning(word, words).is_some() {
        return None;
    }
    let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
    let message = format!(
        "is {}, but must be one of {}",
        quoted(word),
        known.join(", ")
    );
    Some(Problem::new(path, message))
}

fn problem(text: &str) -> Option<String> {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            return Some(format!(
                "{error}; write it as opc.tcp://HOST:PORT/, such as opc.tcp://10.1.2.3:4840/"
            ));
        }
    };
    if !url.is_opc_tcp() {
        return Some(format!(
            "has the scheme {:?}, but only opc.tcp is supported; write opc.tcp://HOST:PORT/",
            url.scheme()
        ));
    }
    if url.explicit_port().is_none() {
        return Some("has no port; 4840 is the usual one: opc.tcp://HOST:4840/".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_includes_nothing_has_a_remark() {
        for (action, items, count) in [
            ("Include", "[]", 1),
            ("Exclude", "[]", 0),
            ("Include", "[a]", 0),
        ] {
            let told = leafhost_sdk::testing::remarks::<crate::OpcUa>(&format!(
                "opcuaDiscoveryMethod: {{standard: {{}}}}\napplicationNames: {{action: {action}, items: {items}}}"
            ));
            assert_eq!(told.len(), count, "{told:?}");
        }
    }

    #[test]
    fn a_filter_compares_whole_names_and_their_case() {
        let filter = |action: &str, items: &[&str]| FilterList {
            items: items.iter().map(|&item| item.to_owned()).collect(),
            action: action.to_owned(),
        };
        for (action, items, name, takes) in [
            ("Include", &["PLC 1", "b"][..], "PLC 1", true),
            ("Include", &["PLC 1"], "plc 1", false),
            ("Include", &["PLC 1"], "PLC 10", false),
            ("Include", &[], "PLC 1", false),
            ("Exclude", &["PLC 1"], "PLC 1", false),
            ("Exclude", &["PLC 1"], "PLC 10", true),
            ("Exclude", &[], "", true),
        ] {
            assert_eq!(
                filter(action, items).takes(name),
                takes,
                "{action} {items:?} {name}"
            );
        }
    }
}
