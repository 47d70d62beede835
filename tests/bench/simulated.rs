//! Agents of many nodes in few processes: the agent's own code with a handler that returns the devices of its node at once. Each agent has its own
//! connections and its own folder; none has a kubelet.
//!
//! The bench starts itself again as such a process, which reads its input to the end and restarts its agents at each line `restart`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::pending;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use leafhost_agent::{Agent, AgentConfig, CdiReaders, Identity, Ports};
use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::Device;
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest, HandlerFacts};
use leafhost_core::left_out::LeftOuts;
use leafhost_core::ports::{
    AcceptedVersion, Handler, HandlerSource, LoadError, Loader, LoaderStore, Owner, ResourceLedger,
    SourceFile, SourceProblem, SourceSet, SourceVersion,
};
use leafhost_core::session::{
    CallStats, Devices, Discovery, Outcome, Report, Session, SessionSpec,
};
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_k8s::{KubeInstances, KubeReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Name of the handler.
pub const HANDLER: &str = "simulated";
/// Number of local devices of each node.
pub const LOCAL: usize = 20;
/// Number of shared devices, and number of them that each node sees.
pub const SHARED: usize = 100;
pub const SHARED_OF_NODE: usize = 4;
/// Configurations of both kinds.
pub const CONFIGURATIONS: [&str; 2] = ["local", "shared"];

/// Environment variable with the first node, the number of nodes, and the folder.
const VARIABLE: &str = "LEAFHOST_SIMULATED_NODES";

/// Returns the name of a node.
pub fn name(number: usize) -> String {
    format!("simulated-{number}")
}

/// Process with the agents of some nodes. It ends when this is dropped.
pub struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process with `count` nodes from number `first`; they keep their state in `folder`.
    pub fn start(kubeconfig: &Path, folder: &Path, first: usize, count: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env("KUBECONFIG", kubeconfig)
            .env(VARIABLE, format!("{first} {count} {}", folder.display()))
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the agents")?;
        let output = child.stdout.take().context("it has no output")?;
        let mut process = Self {
            child,
            output: BufReader::new(output),
        };
        process.until_done()?;
        Ok(process)
    }

    /// Stops and starts one agent after the other.
    pub fn restart(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("it has no input")?;
        input.write_all(b"restart\n")?;
        self.until_done()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn until_done(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line == "done\n", "it said {line:?}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs agents to the end of the input if `VARIABLE` is set; returns true if it did.
pub fn run_if_asked() -> Result<bool> {
    let Ok(asked) = std::env::var(VARIABLE) else {
        return Ok(false);
    };
    let mut words = asked.splitn(3, ' ');
    let mut word = || words.next().context("the variable says too little");
    let (first, count): (usize, usize) = (word()?.parse()?, word()?.parse()?);
    let folder = PathBuf::from(word()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut agents = Vec::new();
    for number in first..first + count {
        agents.push(runtime.block_on(Running::start(number, &folder))?);
    }
    println!("done");
    // The agents run while this waits for input.
    let (sender, mut lines) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    runtime.block_on(async {
        while lines.recv().await.is_some() {
            for agent in &mut agents {
                agent.stop().await?;
                *agent = Running::start(agent.number, &folder).await?;
            }
            println!("done");
        }
        for agent in &mut agents {
            agent.stop().await?;
        }
        Ok(true)
    })
}

struct Running {
    number: usize,
    shutdown: CancellationToken,
    tasks: Tasks,
    task: JoinHandle<Result<(), leafhost_agent::Error>>,
}

impl Running {
    async fn start(number: usize, folder: &Path) -> Result<Self> {
        let node = name(number);
        let folder = folder.join(&node);
        fs::create_dir_all(&folder)?;
        let client = leafhost_k8s::connect().await?;
        let memory = |name: &str| folder.join(name);
        // Nothing reads the state of `identify`.
        let waits = tokio::sync::watch::Sender::default();
        let kept = memory("identity.json");
        let identity = leafhost_k8s::identify(&client, Some(&node), &kept, &waits).await?;
        let simulation = Arc::new(Simulation::new(number));
        let mut tasks = Tasks::default();
        let instances = KubeInstances::watch(&client, &node, memory("instances.json"), &mut tasks);
        let configurations = leafhost_k8s::watch_configurations(
            client.clone(),
            BTreeSet::new(),
            memory("configurations.json"),
            &mut tasks,
        );
        let report = KubeReport::new(client, &node, &identity.node_uid, None);
        let ports = Ports {
            configurations,
            handlers: Arc::<Simulation>::clone(&simulation),
            accepted: Arc::<Simulation>::clone(&simulation),
            loader: Arc::<Simulation>::clone(&simulation),
            instances: Arc::new(instances),
            ledger: simulation,
            claims: None,
        };
        let config = AgentConfig {
            identity: Identity {
                node,
                version: "1.0.0".to_owned(),
                mode: "cluster".to_owned(),
                ..Identity::default()
            },
            cdi_readers: CdiReaders::Everybody,
            kubelet: None,
            handler_eviction: timeouts::HANDLER_EVICTION,
            listener: None,
            socket: None,
            metrics_listener: None,
            lost_log_lines: || 0,
        };
        let mut agent = Agent::build(config, ports)?;
        agent.report_to(|reports, problem| report.keep(reports, problem));
        let shutdown = CancellationToken::new();
        Ok(Self {
            number,
            task: tokio::spawn(agent.run(shutdown.clone())),
            shutdown,
            tasks,
        })
    }

    async fn stop(&mut self) -> Result<()> {
        self.shutdown.cancel();
        (&mut self.task).await??;
        Ok(self.tasks.drain(timeouts::DRAIN).await?)
    }
}

/// Handler of one node, and the agent's interfaces to it.
#[derive(Debug)]
struct Simulation {
    number: usize,
    files: watch::Sender<Arc<SourceSet>>,
    accepted: Mutex<BTreeMap<String, AcceptedVersion>>,
}

fn file() -> SourceFile {
    SourceFile {
        name: format!("{HANDLER}.wasm"),
        bytes: HANDLER.as_bytes().into(),
        grants: None,
    }
}

impl Simulation {
    fn new(number: usize) -> Self {
        let version = SourceVersion {
            digest: Digest(HANDLER.to_owned()),
            grants: None,
        };
        let set = SourceSet {
            complete: true,
            files: BTreeMap::from([(file().name, Some(version))]),
            ..SourceSet::default()
        };
        Self {
            number,
            files: watch::Sender::new(Arc::new(set)),
            accepted: Mutex::default(),
        }
    }
}

impl HandlerSource for Simulation {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.files.subscribe()
    }

    fn read(&self, _: &str, _: &SourceVersion) -> Result<SourceFile, LoadError> {
        Ok(file())
    }
}

impl LoaderStore for Simulation {
    fn accepted(&self) -> BTreeMap<String, AcceptedVersion> {
        let accepted = self.accepted.lock();
        accepted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read(&self, _: &str, _: &SourceVersion) -> Option<SourceFile> {
        Some(file())
    }

    fn set_accepted(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        _: &BTreeMap<String, SourceFile>,
    ) -> Result<(), Box<SourceProblem>> {
        let mut kept = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone_from(accepted);
        Ok(())
    }

    fn owners(&self) -> BTreeMap<String, Owner> {
        BTreeMap::new()
    }

    fn set_owners(&self, _: &BTreeMap<String, Owner>) -> Result<(), Box<SourceProblem>> {
        Ok(())
    }

    fn deaths(&self, _: &SourceVersion) -> u32 {
        0
    }

    fn set_loading(&self, _: &[SourceVersion]) {}
}

#[async_trait]
impl Loader for Simulation {
    async fn load(&self, _: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        let facts = HandlerFacts {
            description: Description {
                name: HANDLER.to_owned(),
                version: "1".to_owned(),
                summary: String::new(),
                example: String::new(),
                shared: false,
            },
            digest: Digest(HANDLER.to_owned()),
            endpoint: None,
            warnings: Vec::new(),
            is_named: false,
            most_devices: SHARED,
            uses_udev: false,
        };
        Ok(Arc::new(Simulated {
            number: self.number,
            facts,
        }))
    }
}

#[async_trait]
impl ResourceLedger for Simulation {
    fn names(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    async fn add(&self, _: BTreeSet<String>) -> Result<(), String> {
        Ok(())
    }

    fn kubelet(&self) -> Option<String> {
        None
    }

    async fn set_kubelet(&self, _: String) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Debug)]
struct Simulated {
    number: usize,
    facts: HandlerFacts,
}

#[async_trait]
impl Handler for Simulated {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, _: &str) -> Result<Vec<FieldProblem>, Fault> {
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let shared = spec.configuration.name() == "shared";
        let ids = if shared {
            let first = self.number * SHARED_OF_NODE;
            (first..first + SHARED_OF_NODE)
                .map(|number| format!("shared-{}", number % SHARED))
                .collect()
        } else {
            let of_node = |number| format!("local-{}-{number}", self.number);
            (0..LOCAL).map(of_node).collect::<Vec<_>>()
        };
        let devices = ids.into_iter().map(|id| {
            let mut device = Device::new(&id, shared);
            device.properties.insert("ID".to_owned(), id);
            device
        });
        Box::new(Once(Some(devices.collect())))
    }
}

/// Session that reports its devices once.
struct Once(Option<Vec<Device>>);

#[async_trait]
impl Session for Once {
    async fn next(&mut self) -> Report {
        let Some(devices) = self.0.take() else {
            return pending().await;
        };
        Report {
            outcome: Outcome::Discovered(Discovery {
                devices: Devices::Complete(devices),
                departed: Vec::new(),
                left_out: LeftOuts::default(),
            }),
            explained: Vec::new(),
            explained_dropped: 0,
            call: CallStats::default(),
        }
    }
}
