//! Ports through which the agent reaches Configurations, handlers and Instances. `leafhost-files` implements them with
//! files, `leafhost-k8s` with objects of the API server, and tests with plain data.
//!
//! Snapshots travel through `tokio::sync::watch`; a receiver always starts from the newest one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::configuration::{Configuration, FieldProblem};
use crate::handler::{Digest, HandlerFacts, Registration};
use crate::instance::{Edit, Instance, InstanceKey};
use crate::names::ConfigurationKey;
use crate::node_report::ObjectName;
use crate::resource_names::ResourceNames;
use crate::session::{Property, Session, SessionSpec};
use crate::text;

/// Problem of a file or object that an operator wrote and that cannot be used, in whole or in part.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceProblem {
    /// File or object with the problem, such as `cameras.yaml` or `ConfigMap leafhost/handlers`.
    pub source: String,
    /// Line of the problem, from 1, if known.
    pub line: Option<usize>,
    /// Path of the field, such as `spec.capacity`; empty for the whole file or object.
    pub path: String,
    /// Description of the problem and of a valid value; states if an earlier version stays in service.
    pub message: String,
    /// Configuration that the problem belongs to, if its name could be read.
    pub configuration: Option<ConfigurationKey>,
}

impl SourceProblem {
    /// Creates a problem of a whole file or object.
    pub fn new(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            message: message.into(),
            ..Self::default()
        }
    }
}

/// Formats the problem on one line, whatever text the file names and values contain.
impl std::fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text::escape(&self.source))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", text::escape(&self.path))?;
        }
        write!(f, ": {}", text::escape(&self.message))
    }
}

/// All Configurations of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigurationSet {
    /// True once the source has been read. Until then an absent Configuration may exist.
    pub complete: bool,
    /// Valid Configurations.
    pub accepted: BTreeMap<ConfigurationKey, Arc<ConfiguredDiscovery>>,
    /// Problems of Configurations and files that cannot be used, sorted.
    pub problems: Vec<SourceProblem>,
    /// Parts of valid Configurations that have no effect, such as a misspelt field; sorted.
    pub warnings: Vec<SourceProblem>,
    /// Resource names by namespace, in a cluster.
    pub names: Arc<ResourceNames>,
    /// Configurations beyond a cap; if there are very many, only some are listed.
    pub left_out: BTreeMap<ConfigurationKey, LeftOutConfiguration>,
}

/// Configuration that is not used because a cap is exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutConfiguration {
    /// Name of its handler.
    pub handler: String,
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// Exceeded cap, such as `500 Configurations of a namespace`.
    pub cap: String,
}

/// Configuration with resolved properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredDiscovery {
    /// Validated Configuration.
    pub configuration: Configuration,
    /// Resolved properties, or the problem of one that is unavailable; the handler is then not called.
    pub properties: Result<Vec<Property>, FieldProblem>,
}

/// All handler files of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceSet {
    /// True once the source has been read. Until then an absent file may exist.
    pub complete: bool,
    /// True if a part of the source, such as a folder, is missing. An absent file may then exist, unless `gone` lists
    /// it.
    pub partial: bool,
    /// Files removed from a part of the source that is not missing.
    pub gone: BTreeSet<String>,
    /// Versions by source name, which is the file name (`udev.wasm`). A file that exists but is currently unusable has
    /// no version.
    pub files: BTreeMap<String, Option<SourceVersion>>,
    /// Grants files by name, including those already contained in versions.
    pub grants: BTreeMap<String, GrantsFile>,
    /// ConfigMaps that contain the files, if any: by file name, and by the `source` of their problems.
    pub objects: BTreeMap<String, ObjectName>,
    /// Problems of files, folders and objects that cannot be read, sorted.
    pub problems: Vec<SourceProblem>,
    /// Notes about files that are not read, sorted.
    pub warnings: Vec<SourceProblem>,
}

/// Grants file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantsFile {
    /// Text of the file.
    pub text: Arc<str>,
    /// Problem of a grants file that no handler file of its set uses; also in `problems` of the set. An external
    /// handler, or a component of another source, may still use the file.
    pub orphaned: Option<SourceProblem>,
}

/// Version of a handler file without its bytes, which are held only while they are loaded or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceVersion {
    /// Digest of the stored bytes.
    pub digest: Digest,
    /// Text of the grants file next to it, if any.
    pub grants: Option<Arc<str>>,
}

/// Handler file with its grants.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Name of the source.
    pub name: String,
    /// Stored bytes: a component, perhaps gzipped.
    pub bytes: Arc<[u8]>,
    /// Text of the grants file next to it, if any.
    pub grants: Option<Arc<str>>,
}

impl Debug for SourceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceFile")
            .field("name", &self.name)
            .field("bytes", &self.bytes.len())
            .field("grants", &self.grants.is_some())
            .finish()
    }
}

/// Source of handler files.
pub trait HandlerSource: Send + Sync {
    /// Returns a watch of the handler files.
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>>;
    /// Reads this version of a file. Blocks; errors are transient, so that a later attempt may succeed.
    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError>;
}

/// Version of a source that was last loaded successfully.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedVersion {
    /// Version of the file.
    pub version: SourceVersion,
    /// Handler name, and the order of the source among the sources of that handler.
    pub registration: Registration,
}

/// Source that owns a handler's name. Secrets of Configurations are passed to no other source, even while it is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Name of the source.
    pub source: String,
    /// Location of the source.
    #[serde(flatten)]
    pub location: SourceLocation,
}

/// Location of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "place", rename_all = "camelCase")]
pub enum SourceLocation {
    /// Folder of the node, or of the image.
    Folder,
    /// ConfigMap.
    ConfigMap {
        /// Namespace of the ConfigMap.
        namespace: String,
        /// Name of the ConfigMap.
        name: String,
    },
    /// External handler, which is not a component.
    External,
}

/// State of the loader that survives restarts of the agent. Every call blocks.
pub trait LoaderStore: Send + Sync {
    /// Returns the accepted versions of the earlier run whose bytes are intact, by source name.
    fn accepted(&self) -> BTreeMap<String, AcceptedVersion>;
    /// Reads the file of an accepted version, if stored.
    fn read(&self, name: &str, version: &SourceVersion) -> Option<SourceFile>;
    /// Replaces the stored versions; durable on return. `files` contains those that may be new.
    fn set_accepted(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        files: &BTreeMap<String, SourceFile>,
    ) -> Result<(), Box<SourceProblem>>;
    /// Returns the last saved owner of each handler name.
    fn owners(&self) -> BTreeMap<String, Owner>;
    /// Saves the owner of each handler name; durable on return.
    fn set_owners(&self, owners: &BTreeMap<String, Owner>) -> Result<(), Box<SourceProblem>>;
    /// Returns the number of consecutive times the agent died while loading this version.
    fn deaths(&self, version: &SourceVersion) -> u32;
    /// Records that exactly these versions are being loaded, so that the next start knows it if the agent dies.
    fn set_loading(&self, versions: &[SourceVersion]);
}

/// Error for a handler file that cannot be loaded, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot load {}: {}", text::escape(source_name), text::escape(message))]
pub struct LoadError {
    /// Name of the source.
    pub source_name: String,
    /// Description of the error and its remedy.
    pub message: String,
    /// Missing grants, such as `udev`; empty for other errors.
    pub missing_grants: Vec<String>,
    /// True if a retry with the same version may succeed (the compiler did not start, the file could not be read).
    pub transient: bool,
}

impl LoadError {
    /// Creates an error other than that of missing grants.
    pub fn new(source_name: &str, message: impl Into<String>, transient: bool) -> Self {
        Self {
            source_name: source_name.to_owned(),
            message: message.into(),
            missing_grants: Vec::new(),
            transient,
        }
    }
}

/// Loader that turns files into handlers.
#[async_trait]
pub trait Loader: Send + Sync {
    /// Validates the component, compiles it or takes it from the cache, and asks it for its description.
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError>;
}

/// Loaded handler.
#[async_trait]
pub trait Handler: Send + Sync + Debug {
    /// Returns the facts about the handler.
    fn facts(&self) -> &HandlerFacts;
    /// Validates `details`; an empty list means they are valid.
    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, crate::fault::Fault>;
    /// Returns hints for the operator on valid `details`.
    async fn remarks(&self, details: &str) -> Vec<crate::session::Explanation> {
        let _ = details;
        Vec::new()
    }
    /// Opens a session. The first call starts when [`Session::next`] is first awaited.
    fn open(&self, spec: SessionSpec) -> Box<dyn Session>;
}

/// All Instances that concern this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InstanceSet {
    /// True once the store has been read. Until then an absent Instance may exist, and none is written.
    pub complete: bool,
    /// True if the Instances are the last known ones of an earlier agent, from a store that has not been read yet.
    pub remembered: bool,
    /// Reason why changes by others are currently not visible.
    pub interrupted: Option<String>,
    /// Instances by namespace and name.
    pub instances: BTreeMap<InstanceKey, Arc<Instance>>,
}

impl InstanceSet {
    /// Creates the set of Instances of a store that has been read.
    pub fn read(instances: BTreeMap<InstanceKey, Arc<Instance>>) -> Self {
        Self {
            complete: true,
            instances,
            ..Self::default()
        }
    }

    /// True once Instances are available, live or cached; running pods are served from either.
    pub fn is_known(&self) -> bool {
        self.complete || self.remembered
    }
}

/// Write to one Instance.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Creates an Instance; the store sets uid, resource version and creation time.
    Create(Box<Instance>),
    /// Edits an Instance.
    Update {
        /// Instance to edit.
        key: InstanceKey,
        /// Uid that the object must have; a successor of the same name is left unchanged.
        uid: String,
        /// Edits in order of application. An empty list writes the object unchanged, to test whether writes succeed.
        edits: Vec<Edit>,
    },
    /// Deletes an Instance.
    Delete {
        /// Instance to delete.
        key: InstanceKey,
        /// Uid that the object must have; a successor of the same name is left unchanged.
        uid: String,
        /// Version that the object must have: another node may have added itself since.
        resource_version: String,
    },
}

impl Change {
    /// Returns the change that edits an Instance, as it was seen.
    pub fn edit(instance: &Instance, edits: Vec<Edit>) -> Self {
        Self::Update {
            key: instance.key(),
            uid: instance.metadata.uid.clone(),
            edits,
        }
    }

    /// Returns the change that deletes an Instance if it still is as it was seen.
    pub fn delete(instance: &Instance) -> Self {
        Self::Delete {
            key: instance.key(),
            uid: instance.metadata.uid.clone(),
            resource_version: instance.metadata.resource_version.clone(),
        }
    }

    /// Returns the key of the changed Instance.
    pub fn key(&self) -> InstanceKey {
        match self {
            Self::Create(instance) => instance.key(),
            Self::Update { key, .. } | Self::Delete { key, .. } => key.clone(),
        }
    }
}

/// Reason why a write failed or may have failed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum StoreError {
    /// Another Instance has the name.
    #[strum(serialize = "exists")]
    #[error("Instance {key} already exists")]
    AlreadyExists {
        /// Key of the Instance.
        key: InstanceKey,
        /// Instance that has the name, if the store could read it.
        found: Option<Arc<Instance>>,
    },
    /// The object differs from the one that the change assumes; read again.
    #[error("Instance {key} has changed since it was read")]
    Conflict {
        /// Key of the Instance.
        key: InstanceKey,
    },
    /// The object was deleted.
    #[error("Instance {key} was deleted since it was read")]
    Gone {
        /// Key of the Instance.
        key: InstanceKey,
    },
    /// Rejected by RBAC, admission or schema; retrying does not help.
    #[error("cannot write Instance {key}: {message}")]
    Denied {
        /// Key of the Instance.
        key: InstanceKey,
        /// Description of the error and its remedy.
        message: String,
    },
    /// No answer arrived; the change may have been applied.
    #[error("cannot determine whether Instance {key} was written: {message}")]
    Unknown {
        /// Key of the Instance.
        key: InstanceKey,
        /// Description of the error.
        message: String,
    },
    /// The store cannot be written.
    #[error("cannot write Instance {key}: {message}")]
    Unavailable {
        /// Key of the Instance.
        key: InstanceKey,
        /// Description of the error and its remedy.
        message: String,
        /// Delay before the next attempt, if the store asks for one.
        retry_after: Option<Duration>,
    },
}

impl StoreError {
    /// Returns the label in metrics.
    pub fn label(&self) -> &'static str {
        self.into()
    }

    /// Returns true if the store has a newer object than the change assumes; a retry with the current one may succeed
    /// at once.
    pub fn is_outdated(&self) -> bool {
        matches!(
            self,
            Self::AlreadyExists { .. } | Self::Conflict { .. } | Self::Gone { .. }
        )
    }

    /// Returns true if the same change may succeed when the store is available again.
    pub fn may_recover(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Unavailable { .. })
    }

    /// Returns the key of the Instance to be written.
    pub fn key(&self) -> &InstanceKey {
        match self {
            Self::AlreadyExists { key, .. }
            | Self::Conflict { key }
            | Self::Gone { key }
            | Self::Denied { key, .. }
            | Self::Unknown { key, .. }
            | Self::Unavailable { key, .. } => key,
        }
    }
}

/// Result of a change: the written object, or `None` for a deletion.
pub type Written = Result<Option<Arc<Instance>>, StoreError>;

/// Store of Instances.
#[async_trait]
pub trait InstanceStore: Send + Sync {
    /// Returns a watch of the Instances. It contains a successful change before `apply` returns, and changes by others
    /// later; an older version never follows a newer one.
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>>;
    /// Applies the changes independently of each other and returns one result per change, in order; durable on return.
    /// Ends in bounded time.
    async fn apply(&self, changes: Vec<Change>) -> Vec<Written>;
    /// Reads the Instances of this node as they are now, so that [`Self::instances`] has at least their state at the time of the call. Fails with a
    /// reason, in bounded time.
    async fn refresh(&self) -> Result<(), String> {
        Ok(())
    }
    /// Returns the maximum number of changes per call of `apply`. Nothing else is planned until the call returns, so a
    /// batch must not take long.
    fn batch(&self) -> usize {
        500
    }
    /// Returns true if agents of other nodes have slots of the same Instances.
    fn has_other_nodes(&self) -> bool {
        false
    }
    /// Returns the number of nodes whose agents may have slots of the same Instances, or `None` if currently unknown.
    /// Ends in bounded time.
    async fn count_nodes(&self) -> Option<usize> {
        None
    }
    /// Returns true if the store itself deletes the Instances of a deleted Configuration.
    fn collects_garbage(&self) -> bool {
        false
    }
}

/// Durable record of the names of all resources that this node has ever offered for its Instances, and of the last
/// kubelet whose records contained all slots held on this node. The names are recorded because the Node object keeps
/// each of them and their number is limited.
#[async_trait]
pub trait ResourceLedger: Send + Sync {
    /// Returns all recorded names.
    fn names(&self) -> BTreeSet<String>;
    /// Adds names; durable on return. Fails with the path, the remedy and the cause.
    async fn add(&self, names: BTreeSet<String>) -> Result<(), String>;
    /// Returns the last recorded kubelet.
    fn kubelet(&self) -> Option<String>;
    /// Returns true if the machine has booted since the last agent of this node started, so that no container from before the boot still runs.
    fn has_rebooted(&self) -> bool {
        false
    }
    /// Records that `kubelet` has every held slot of this node in its records; durable on return.
    async fn set_kubelet(&self, kubelet: String) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_file_forges_no_line_of_the_log() {
        let name = "a\nINFO all is well\u{202e}.wasm".to_owned();
        let shown = "a\\nINFO all is well\\u{202e}.wasm";
        let problem = SourceProblem {
            source: name.clone(),
            line: Some(1),
            path: name.clone(),
            message: name.clone(),
            configuration: None,
        };
        assert_eq!(problem.to_string(), format!("{shown}:1: {shown}: {shown}"));
        let error = LoadError {
            source_name: name.clone(),
            message: name,
            missing_grants: Vec::new(),
            transient: false,
        };
        assert_eq!(error.to_string(), format!("cannot load {shown}: {shown}"));
    }
}
