//! The ports: how the agent reaches Configurations, handlers and Instances. `leafhost-files` implements them with
//! files, and tests with plain data.
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
use crate::handler::{Description, Digest, Registration};
use crate::instance::{Edit, Instance, InstanceKey};
use crate::names::ConfigurationKey;
use crate::node_report::{NodeReport, ObjectName};
use crate::resource_names::ResourceNames;
use crate::session::{Property, Session, SessionSpec};
use crate::text;

/// Something an operator wrote that cannot be used.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceProblem {
    /// Where it is: a file, `cameras.yaml`; or an object, `ConfigMap leafhost/handlers`.
    pub source: String,
    /// The line, where it is known, from 1.
    pub line: Option<usize>,
    /// The field, such as `spec.capacity`; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right; says so where an earlier version keeps serving.
    pub message: String,
    /// The Configuration it belongs to, where that much could be read.
    pub configuration: Option<ConfigurationKey>,
}

impl SourceProblem {
    /// A problem of a whole file or object.
    pub fn new(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            message: message.into(),
            ..Self::default()
        }
    }
}

/// On one line, whatever the names of files and the texts in them are.
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
    /// Whether the source has been read once. Until then an absent Configuration says nothing.
    pub complete: bool,
    /// Those that can be used.
    pub accepted: BTreeMap<ConfigurationKey, Arc<ConfiguredDiscovery>>,
    /// What cannot be used, sorted.
    pub problems: Vec<SourceProblem>,
    /// What has no effect in Configurations that can be used, such as a misspelt field; sorted.
    pub warnings: Vec<SourceProblem>,
    /// The names that namespaces have in a cluster.
    pub names: Arc<ResourceNames>,
    /// Those that are not taken because there are too many; of very many only some are named.
    pub left_out: BTreeMap<ConfigurationKey, LeftOutConfiguration>,
}

/// A Configuration that is not taken because there are too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutConfiguration {
    /// The handler that it names.
    pub handler: String,
    /// The object's version of its spec.
    pub generation: Option<i64>,
    /// The cap that it is beyond, such as `500 Configurations of a namespace`.
    pub cap: String,
}

/// A Configuration with its properties resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredDiscovery {
    /// The Configuration.
    pub configuration: Configuration,
    /// Its properties; or why one of them cannot be had, then the handler is not called.
    pub properties: Result<Vec<Property>, FieldProblem>,
}

/// Where Configurations come from.
pub trait ConfigurationSource: Send + Sync {
    /// The Configurations, newest first seen.
    fn configurations(&self) -> watch::Receiver<Arc<ConfigurationSet>>;
}

/// All handler files of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceSet {
    /// Whether the source has been read once. Until then an absent file says nothing.
    pub complete: bool,
    /// Whether a part of the source, such as a folder, is missing. Then an absent file says nothing, unless it is in `gone`.
    pub partial: bool,
    /// Files that were in a part that is not missing, and are no longer there.
    pub gone: BTreeSet<String>,
    /// By source name, which is the file name (`udev.wasm`). A file that is there and cannot be used now has no version.
    pub files: BTreeMap<String, Option<SourceVersion>>,
    /// The grants files there are, by name. Those of files are with their versions, too.
    pub grants: BTreeMap<String, GrantsFile>,
    /// The objects that have the files, where they are objects': by file, and by the name under which problems name them.
    pub objects: BTreeMap<String, ObjectName>,
    /// What cannot be read, sorted.
    pub problems: Vec<SourceProblem>,
}

/// A grants file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantsFile {
    /// Its text.
    pub text: Arc<str>,
    /// What is wrong with it if it is for no handler file, as `problems` of the set has it: it may be for a handler without a file.
    pub orphaned: Option<SourceProblem>,
}

/// Which state of a handler file, without its bytes: they are held only while they are loaded or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceVersion {
    /// Of the bytes as they lie there.
    pub digest: Digest,
    /// The text of the grants file next to it, if there is one.
    pub grants: Option<Arc<str>>,
}

/// One handler file with its grants.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The source's name.
    pub name: String,
    /// The bytes as they lie there: a component, perhaps gzipped.
    pub bytes: Arc<[u8]>,
    /// The text of the grants file next to it, if there is one.
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

/// Where handlers come from.
pub trait HandlerSource: Send + Sync {
    /// The handler files.
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>>;
    /// Reads that version of a file. A later attempt may succeed where this one fails: the error is transient. Blocks.
    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError>;
}

/// The version of a source that was last loaded successfully.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedVersion {
    /// The version.
    pub version: SourceVersion,
    /// Which handler it is, and its place among the sources of that handler.
    pub registration: Registration,
}

/// The source that a handler's name belongs to: what Configurations keep secret is for it, also while it is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The source's name.
    pub source: String,
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
}

/// Where a source is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "place", rename_all = "camelCase")]
pub enum Place {
    /// In a folder of the node, or in the image.
    Folder,
    /// In a ConfigMap.
    ConfigMap {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// It serves elsewhere, and is no component.
    External,
}

/// What the loader keeps over restarts of the agent. Every call blocks.
pub trait LoaderStore: Send + Sync {
    /// The accepted versions of the earlier run whose bytes are whole, by source name.
    fn accepted(&self) -> BTreeMap<String, AcceptedVersion>;
    /// The file of an accepted version, if it is kept.
    fn read(&self, name: &str, version: &SourceVersion) -> Option<SourceFile>;
    /// Keeps exactly these versions, durable when it returns; `files` are those that may be new.
    fn set_accepted(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        files: &BTreeMap<String, SourceFile>,
    ) -> Result<(), Box<SourceProblem>>;
    /// Which source each handler's name belongs to, as it was last kept.
    fn owners(&self) -> BTreeMap<String, Owner>;
    /// Keeps which source each handler's name belongs to, durable when it returns.
    fn set_owners(&self, owners: &BTreeMap<String, Owner>) -> Result<(), Box<SourceProblem>>;
    /// How many times in a row the agent has died while this version was being loaded.
    fn deaths(&self, version: &SourceVersion) -> u32;
    /// Records that these versions are being loaded and no others, so that the next start knows it if the agent dies.
    fn set_loading(&self, versions: &[SourceVersion]);
}

/// Why a handler file does not serve. The text names what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot load {}: {}", text::escape(source_name), text::escape(message))]
pub struct LoadError {
    /// The source's name.
    pub source_name: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// Grants that are missing, such as `udev`; empty if something else is wrong.
    pub missing_grants: Vec<String>,
    /// Whether trying again with the same version may help (the compiler could not be started, the file not be read).
    pub transient: bool,
}

/// Turns files into handlers.
#[async_trait]
pub trait Loader: Send + Sync {
    /// Checks, compiles or takes from the cache, and asks the component who it is.
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError>;
}

/// A handler that is ready to serve.
#[async_trait]
pub trait Handler: Send + Sync + Debug {
    /// What it says of itself.
    fn description(&self) -> &Description;
    /// The digest of its bytes.
    fn digest(&self) -> &Digest;
    /// Where it serves, if it is no component.
    fn endpoint(&self) -> Option<&str> {
        None
    }
    /// What an operator should know although it serves, such as a grant that names nothing.
    fn warnings(&self) -> &[String];
    /// Whether its grants name it: then it is trusted with what its Configurations keep secret, whoever was there before it.
    fn is_named(&self) -> bool;
    /// How many devices a session of it may have at a time.
    fn most_devices(&self) -> usize;
    /// Whether `details` can be used: no problem means yes.
    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, crate::fault::Fault>;
    /// Whether it asks for what udev knows of devices.
    fn uses_udev(&self) -> bool {
        false
    }
    /// What an operator should know of `details` that can be used.
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
    /// Whether the store has been read. Until then an absent Instance says nothing, and none is written.
    pub complete: bool,
    /// Whether the Instances are those that an earlier agent last knew, of a store that has not been read yet.
    pub remembered: bool,
    /// Why changes that others make cannot be seen at the moment.
    pub interrupted: Option<String>,
    /// By namespace and name.
    pub instances: BTreeMap<InstanceKey, Arc<Instance>>,
}

impl InstanceSet {
    /// All Instances of a store that has been read.
    pub fn read(instances: BTreeMap<InstanceKey, Arc<Instance>>) -> Self {
        Self {
            complete: true,
            remembered: false,
            interrupted: None,
            instances,
        }
    }

    /// Whether anything is known: pods that run are served by it.
    pub fn is_known(&self) -> bool {
        self.complete || self.remembered
    }
}

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Creates; the store sets uid, resource version and creation time.
    Create(Box<Instance>),
    /// Edits.
    Update {
        /// Which.
        key: InstanceKey,
        /// The object meant; another under the same name is left alone.
        uid: String,
        /// In this order. Without any the object is written as it is: that tells whether it can be.
        edits: Vec<Edit>,
    },
    /// Removes.
    Delete {
        /// Which.
        key: InstanceKey,
        /// The object meant; another under the same name is left alone.
        uid: String,
        /// The version that was looked at: another node may have entered itself since.
        resource_version: String,
    },
}

impl Change {
    /// The Instance that is changed.
    pub fn key(&self) -> InstanceKey {
        match self {
            Self::Create(instance) => instance.key(),
            Self::Update { key, .. } | Self::Delete { key, .. } => key.clone(),
        }
    }
}

/// Why a write did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another Instance has the name.
    #[error("Instance {key} is there already")]
    AlreadyExists {
        /// Which.
        key: InstanceKey,
        /// The Instance that has the name, where the store could read it.
        found: Option<Arc<Instance>>,
    },
    /// The object is not as the change assumes; look again.
    #[error("Instance {key} was changed meanwhile")]
    Conflict {
        /// Which.
        key: InstanceKey,
    },
    /// The object meant is not there any more.
    #[error("Instance {key} was deleted meanwhile")]
    Gone {
        /// Which.
        key: InstanceKey,
    },
    /// The store refuses the change, and does so until somebody changes its rules; the text says what and the remedy.
    #[error("cannot write Instance {key}: {message}")]
    Denied {
        /// Which.
        key: InstanceKey,
        /// What and the remedy.
        message: String,
    },
    /// No answer came: the change may have been made.
    #[error("cannot tell whether Instance {key} was written: {message}")]
    Unknown {
        /// Which.
        key: InstanceKey,
        /// What happened.
        message: String,
    },
    /// The store cannot be written; the text says what and the remedy.
    #[error("cannot write Instance {key}: {message}")]
    Unavailable {
        /// Which.
        key: InstanceKey,
        /// What and the remedy.
        message: String,
        /// When the store wants to be asked again, where it says so.
        retry_after: Option<Duration>,
        /// Cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl StoreError {
    /// The word for it in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::AlreadyExists { .. } => "exists",
            Self::Conflict { .. } => "conflict",
            Self::Gone { .. } => "gone",
            Self::Denied { .. } => "denied",
            Self::Unknown { .. } => "unknown",
            Self::Unavailable { .. } => "unavailable",
        }
    }

    /// Whether the store has seen an object other than the one the change assumes: a look at what it shows now may help at once.
    pub fn is_outdated(&self) -> bool {
        matches!(
            self,
            Self::AlreadyExists { .. } | Self::Conflict { .. } | Self::Gone { .. }
        )
    }

    /// The Instance that was to be written.
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

/// What came of a change: the object as it was written, nothing for a deletion.
pub type Written = Result<Option<Arc<Instance>>, StoreError>;

/// Where Instances are kept.
#[async_trait]
pub trait InstanceStore: Send + Sync {
    /// The Instances as they are known now. A change that succeeded is in here before `apply` returns, and what others
    /// changed since then comes later; nothing older follows what is newer.
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>>;
    /// Makes the changes, each for itself, durable when it returns; one result a change, in order. It ends in bounded time.
    async fn apply(&self, changes: Vec<Change>) -> Vec<Written>;
    /// Returns the most changes that `apply` is given at once. Until they are made nothing else is planned, so many take no long time.
    fn batch(&self) -> usize {
        500
    }
    /// Whether agents of other nodes have slots of the same Instances.
    fn has_other_nodes(&self) -> bool {
        false
    }
    /// Counts the nodes whose agents may have slots of the same Instances; nothing where that cannot be told now. It ends in bounded time.
    async fn count_nodes(&self) -> Option<usize> {
        None
    }
    /// Whether the store itself removes the Instances of a Configuration that was deleted.
    fn collects_garbage(&self) -> bool {
        false
    }
}

/// Where the agent reports how the handlers of its node stand, for people who are not on the node.
#[async_trait]
pub trait ReportSink: Send + Sync {
    /// Shows the newest report, in place of earlier ones, until the sender is gone. `problem` says why that is not possible, as long as it
    /// is not.
    async fn keep(
        &self,
        reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    );
}

/// Why something was not written down.
#[derive(Debug, thiserror::Error)]
#[error("cannot remember what the kubelet was offered: {message}")]
pub struct LedgerError {
    /// What, where, and the remedy.
    pub message: String,
    /// Cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What must outlive the agent of its dealings with the kubelet: the names of resources that this node has ever offered for its
/// Instances, since the Node object never forgets one and there is a limit; and which kubelet's records have all its slots.
#[async_trait]
pub trait ResourceLedger: Send + Sync {
    /// All of them.
    fn names(&self) -> BTreeSet<String>;
    /// Adds names, durable when it returns.
    async fn add(&self, names: BTreeSet<String>) -> Result<(), LedgerError>;
    /// The kubelet that was last written down.
    fn kubelet(&self) -> Option<String>;
    /// Writes down that each slot of this node is in the records of that kubelet, or was given to nobody; durable when it returns.
    async fn set_kubelet(&self, kubelet: String) -> Result<(), LedgerError>;
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
