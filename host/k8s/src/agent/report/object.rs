//! Builds the wanted objects of a node, and the writes that bring them about. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::fair::round_robin;
use leafhost_core::names::{DigestLength, device_hash, is_node_name, label_value};
use leafhost_core::node_report::{NodeReport, ReportedConfiguration, ReportedHandler};
use leafhost_core::text;

use crate::bounded_store::BoundedStore;
use crate::crd::{
    ConfigurationReport, DiscoveryHandler, DiscoveryHandlerSpec, DiscoveryHandlerStatus,
    SourceKind, SourceReport,
};
use crate::reconciler::Reconcile;
use crate::reports::{
    MAX_GRANTS, MAX_SOURCES, MAX_TEXT, NODE_LABEL, bounded, configuration, size, source,
};

/// Maximum size of the texts of all sources, in bytes.
const MAX_SOURCE_TEXTS: usize = 48 << 10;
/// Maximum size of the names and reasons of all Configurations, in bytes.
const MAX_NAMES: usize = 88 << 10;
/// Maximum size of the problems of all Configurations, in bytes.
const MAX_PROBLEMS: usize = 48 << 10;
/// Maximum size of the first skipped and first denied entries of all Configurations, in bytes.
const MAX_LEFT_OUT: usize = 32 << 10;
/// Maximum length of a name before its digest.
const MAX_HEAD: usize = 236;

/// Node that owns the objects.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Name of the node.
    pub node: String,
    /// Uid of the Node object; `None` while the agent may not create objects owned by it.
    pub uid: Option<String>,
}

impl Owner {
    /// Returns the objects of a report by name.
    pub fn objects(&self, report: &NodeReport) -> BTreeMap<String, DiscoveryHandler> {
        let mut objects = BTreeMap::new();
        for (handler, reported) in &report.handlers {
            let plain = format!("{}.{}", self.node, handler.to_ascii_lowercase());
            // A dot in the handler's name could make the object another node's, since names of nodes may have dots.
            let is_its = is_node_name(&plain) && !handler.contains('.');
            let name = if is_its && !objects.contains_key(&plain) {
                plain
            } else {
                self.hashed(handler)
            };
            let object = self.object(&name, handler, reported);
            objects.insert(name, object);
        }
        objects
    }

    /// Returns a name with a digest for a handler whose plain name is invalid or taken. The last dot is the one after the node.
    fn hashed(&self, handler: &str) -> String {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let lower = handler.to_ascii_lowercase();
        let handler_head = lower.replace(|c| !is_plain(c), "-");
        let named = format!("{}.{}", self.node, handler_head.trim_matches('-'));
        let head: String = named.chars().take(MAX_HEAD).collect();
        let head = head.trim_end_matches(|c| !is_plain(c));
        let mark = if head.len() > self.node.len() {
            '-'
        } else {
            '.'
        };
        let digest = device_hash(handler, Some(&self.node), DigestLength::Eight);
        format!("{head}{mark}{digest}")
    }

    fn object(&self, name: &str, handler: &str, reported: &ReportedHandler) -> DiscoveryHandler {
        let spec = DiscoveryHandlerSpec {
            node: self.node.clone(),
            handler: handler.to_owned(),
        };
        let mut object = DiscoveryHandler::new(name, spec);
        object.metadata.labels = Some(self.labels());
        object.metadata.owner_references = self.uid.clone().map(|uid| {
            vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.clone(),
                uid,
                ..OwnerReference::default()
            }]
        });
        object.status = Some(status(reported));
        object
    }

    /// Returns an object without its content, to be rewritten or deleted.
    pub fn bare(&self, object: DiscoveryHandler) -> DiscoveryHandler {
        let is_own = object.spec.node == self.node;
        let spec = DiscoveryHandlerSpec {
            node: if is_own {
                self.node.clone()
            } else {
                String::new()
            },
            handler: String::new(),
        };
        let mut bare = DiscoveryHandler::new(&object.name_any(), spec);
        bare.metadata.uid = object.metadata.uid;
        bare.metadata.resource_version = object.metadata.resource_version;
        bare.metadata.deletion_timestamp = object.metadata.deletion_timestamp;
        bare
    }

    fn labels(&self) -> BTreeMap<String, String> {
        [(NODE_LABEL.to_owned(), label_value(&self.node))].into()
    }
}

impl Reconcile for Owner {
    type Object = DiscoveryHandler;

    const LOST: &'static str = "it is deleted again and again; find out who deletes it, or whether its Node exists: kubectl get nodes";

    /// Returns true if the object belongs to this node. A user may have set this node's label on an object of another node.
    fn is_own(&self, found: &DiscoveryHandler) -> bool {
        found.spec.node == self.node
    }

    fn corrected(
        &self,
        found: &DiscoveryHandler,
        wanted: &DiscoveryHandler,
    ) -> Option<DiscoveryHandler> {
        let mut right = found.clone();
        right.labels_mut().extend(self.labels());
        right
            .metadata
            .owner_references
            .clone_from(&wanted.metadata.owner_references);
        right.spec.clone_from(&wanted.spec);
        right.status.clone_from(&wanted.status);
        if let (Some(status), Some(before)) = (&mut right.status, &found.status)
            && status.phase == before.phase
            && before.since.is_some()
        {
            // A restarted agent that finds the handler unchanged writes nothing.
            status.since.clone_from(&before.since);
        }
        (right != *found).then_some(right)
    }

    /// Holds a wanted object with all fields. Of an unwanted object, or one beyond a node's share, holds only the fields that a later write
    /// needs.
    fn hold(
        &self,
        held: &mut BoundedStore<DiscoveryHandler>,
        is_wanted: bool,
        object: DiscoveryHandler,
    ) {
        let name = object.name_any();
        let group = if is_wanted { "wanted" } else { "others" };
        let object = if is_wanted {
            let size = size(&object);
            match held.put(&name, group, size, object) {
                Ok(()) => return,
                Err(object) => object,
            }
        } else {
            object
        };
        let bare = self.bare(object);
        let size = size(&bare);
        if held.put(&name, group, size, bare).is_err() && held.is_first_rejection() {
            tracing::warn!(
                report = name,
                "a report is ignored, because too many reports have the label of this node; delete those that its agent did not write: kubectl get dh"
            );
        }
    }
}

fn status(reported: &ReportedHandler) -> DiscoveryHandlerStatus {
    let count = reported.sources.len().clamp(1, MAX_SOURCES);
    // Each source has four texts and its grants.
    let longest = MAX_TEXT.min(MAX_SOURCE_TEXTS / (count * (4 + MAX_GRANTS)));
    let mut listed: Vec<_> = reported.sources.iter().collect();
    listed.sort_by_key(|(_, source)| source.problem.is_none());
    listed.truncate(MAX_SOURCES);
    listed.sort_by_key(|(name, _)| *name);
    let sources = listed.into_iter().map(|(name, one)| SourceReport {
        name: text::abridge(name, longest),
        kind: if one.endpoint.is_some() {
            SourceKind::External
        } else {
            SourceKind::Component
        },
        source: source(one, longest),
    });
    let sources: Vec<SourceReport> = sources.collect();
    let configurations = &reported.configurations;
    let mut listed: Vec<_> = configurations.iter().collect();
    listed.sort_by_key(|(_, one)| (one.problem.is_none(), one.denied == 0));
    // A namespace with many Configurations does not displace those of others.
    let mut listed = round_robin(listed, |(key, _)| key.namespace());
    listed.truncate(MAX_CONFIGURATIONS);
    let mut names = 0;
    listed.retain(|(key, one)| {
        let reason = one.problem.as_ref().map_or(0, |one| one.reason.len());
        names += key.namespace().len() + key.name().len() + reason;
        names <= MAX_NAMES
    });
    listed.sort_by_key(|(key, _)| *key);
    let problems = listed.iter().filter(|(_, one)| one.problem.is_some());
    let longest = MAX_TEXT.min(MAX_PROBLEMS / problems.count().max(1));
    let texts = listed.iter();
    let texts = texts.flat_map(|(_, one)| [&one.first_skipped, &one.first_denied]);
    let longest_left_out = MAX_TEXT.min(MAX_LEFT_OUT / texts.flatten().count().max(1));
    let listed = listed.into_iter().map(|(key, one)| ConfigurationReport {
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
        configuration: configuration(one, longest, longest_left_out),
    });
    let all = || configurations.values();
    let of_source = sources.iter().find_map(|one| one.source.problem.as_ref());
    let of_configuration = all().find_map(|one| one.problem.as_ref());
    let denied = all().find_map(|one| one.first_denied.as_ref());
    let mut without_devices = all().filter(|one| one.devices == 0);
    let skipped = without_devices.find_map(|one| one.first_skipped.as_ref());
    let problem = of_source
        .map(|one| one.message.clone())
        .or_else(|| of_configuration.map(|one| bounded(&one.message)))
        .or_else(|| denied.map(|one| bounded(&format!("denied: {one}"))))
        .or_else(|| skipped.map(|one| bounded(&format!("skipped: {one}"))));
    let sum = |count: fn(&ReportedConfiguration) -> usize| {
        let sum = all().map(count).fold(0, usize::saturating_add);
        u32::try_from(sum).unwrap_or(u32::MAX)
    };
    DiscoveryHandlerStatus {
        phase: reported.phase,
        since: reported.since.map(|since| since.to_string()),
        devices: sum(|one| one.devices),
        skipped: sum(|one| one.skipped),
        denied: sum(|one| one.denied),
        problem,
        sources,
        configurations: listed.collect(),
    }
}

#[cfg(test)]
mod tests;
