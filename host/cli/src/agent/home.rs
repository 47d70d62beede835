//! Home of the agent's Configurations, handlers and Instances: the files of one machine, or a cluster.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use leafhost_agent::{CdiReaders, ClaimHome};
use leafhost_core::ports::{ConfigurationSet, HandlerSource, InstanceStore, SourceProblem};
use leafhost_core::scheduling::LockPort;
use leafhost_core::tasks::Tasks;
use leafhost_files::{FileClaimRecords, FileInstances, NodeState, watch_configurations};
use leafhost_k8s::{ConnectError, KubeClaims, KubeHandlers, KubeInstances, KubeReport, KubeSlices};

use tokio::sync::watch;

use super::settings::Settings;
use crate::handler_sources::HandlerSources;

/// Ports of a home. It holds the lock of the state folder, so it must outlive the agent.
pub struct Home {
    pub node: String,
    /// Mode: `standalone` or `cluster`.
    pub mode: &'static str,
    /// Container runtimes that read the CDI specs; in a cluster those of nodes, which run as root.
    pub cdi_readers: CdiReaders,
    pub configurations: watch::Receiver<Arc<ConfigurationSet>>,
    pub handlers: Arc<dyn HandlerSource>,
    pub instances: Arc<dyn InstanceStore>,
    /// Writer of the agent's reports; `None` if operators read the status on the node.
    pub reports: Option<KubeReport>,
    /// Ports for resource claims; `None` outside of a cluster.
    pub claims: Option<ClaimHome>,
    /// Lock of the node, if schedulers lock it.
    pub lock: Option<LockPort>,
    /// Problems found when Configurations and Instances were opened.
    pub problems: Vec<SourceProblem>,
    /// Tasks that read and store all of this; they run as long as the agent.
    pub tasks: Tasks,
    pub state: NodeState,
}

impl Home {
    /// Opens the home that the flags name. `waits` receives the reason while opening has to wait.
    pub async fn open(settings: &Settings, waits: &watch::Sender<Option<String>>) -> Result<Self> {
        let tasks = Tasks::default();
        match &settings.dir {
            Some(dir) => Self::standalone(settings, dir, tasks).await,
            None => Self::cluster(settings, waits, tasks).await,
        }
    }

    async fn standalone(settings: &Settings, dir: &Path, mut tasks: Tasks) -> Result<Self> {
        let node = settings.node.clone().unwrap_or_default();
        let state = NodeState::open(settings.state_dir.clone(), &node).await?;
        let instances = FileInstances::open(state.dir.path.join("instances")).await?;
        let kept = state.dir.path.join("accepted/configurations");
        let (configurations, found) =
            watch_configurations(dir.to_owned(), kept, &mut tasks).await?;
        let problems = instances.problems.iter().chain(&found).cloned().collect();
        let mut folders = vec![dir.join("handlers")];
        folders.extend_from_slice(&settings.handlers_dirs);
        let without = &settings.args.without.without_handlers;
        let handlers = HandlerSources::open(None, folders, without, &mut tasks);
        Ok(Self {
            node,
            mode: "standalone",
            cdi_readers: CdiReaders::Everybody,
            problems,
            configurations,
            handlers: Arc::new(handlers),
            instances: Arc::new(instances),
            reports: None,
            claims: None,
            lock: None,
            tasks,
            state,
        })
    }

    async fn cluster(
        settings: &Settings,
        waits: &watch::Sender<Option<String>>,
        mut tasks: Tasks,
    ) -> Result<Self> {
        let client = leafhost_k8s::connect().await.map_err(|error| match error {
            ConnectError::NoCluster(_) => anyhow!("{error}, or use --standalone"),
            error @ ConnectError::Unusable(_) => error.into(),
        })?;
        let memory = |name: &str| settings.state_dir.join("cluster").join(name);
        let given = settings.node.as_deref();
        let kept = memory("identity.json");
        let identity = leafhost_k8s::identify(&client, given, &kept, waits).await?;
        let node = identity.node;
        let state = NodeState::open(settings.state_dir.clone(), &node).await?;
        let instances = KubeInstances::watch(&client, &node, memory("instances.json"), &mut tasks);
        let namespace = settings.args.handlers_namespace.as_ref();
        let namespace = namespace.unwrap_or(&identity.namespace);
        let maps = KubeHandlers::watch(&client, namespace, memory("handlers"), &mut tasks);
        let folders = settings.handlers_dirs.clone();
        let without = &settings.args.without.without_handlers;
        let handlers = HandlerSources::open(Some(maps), folders, without, &mut tasks);
        let is_locked = settings.args.tickets.node_lock;
        let lock = is_locked.then(|| leafhost_k8s::lock_of(&client, &node, &mut tasks));
        let reports = KubeReport::new(client.clone(), &node, &identity.node_uid, given);
        let claims = ClaimHome {
            reader: Arc::new(KubeClaims::new(client.clone())),
            slices: Arc::new(KubeSlices::new(
                client.clone(),
                &node,
                &identity.node_uid,
                given,
            )),
            records: Arc::new(FileClaimRecords::new(&settings.state_dir)),
        };
        let namespaces = settings
            .args
            .properties_namespaces
            .iter()
            .cloned()
            .collect();
        Ok(Self {
            mode: "cluster",
            cdi_readers: CdiReaders::Root,
            problems: Vec::new(),
            configurations: leafhost_k8s::watch_configurations(
                client,
                namespaces,
                memory("configurations.json"),
                &mut tasks,
            ),
            handlers: Arc::new(handlers),
            instances: Arc::new(instances),
            reports: Some(reports),
            claims: Some(claims),
            lock,
            node,
            tasks,
            state,
        })
    }
}
