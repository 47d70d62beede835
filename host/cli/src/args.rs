//! Command line as parsed by `clap`: flags, their environment variables, defaults, units and examples.
//!
//! This module makes no decision and touches no file; each command takes its part and does the rest.

#![allow(
    clippy::doc_markdown,
    reason = "the documentation of flags is their help text, where backticks would be seen"
)]

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCompleter;
use leafhost_agent::MAX_TICKETS;

mod controller;
mod examples;
mod migrate;
mod property;
mod scheduler;
mod variables;
mod webhook;

pub use controller::ControllerArgs;
pub use migrate::MigrateCommand;
pub use scheduler::{ObjectName, SchedulerArgs, SchedulerCommand, SchedulerConfigArgs, SelectArgs};
pub use webhook::WebhookArgs;

use crate::completion;
use crate::listen::DEFAULT_LISTEN;
use crate::terminal::Output;

/// Shells with a completion script.
pub const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// Finds devices and makes them usable by containers. Discovery handlers are sandboxed WebAssembly components; for each device
/// that they find there is an Instance, a CDI device and a resource of the kubelet.
#[derive(Debug, Parser)]
#[command(name = "leafhost", version, long_version = crate::version::long(), after_long_help = examples::TOP,
    propagate_version = false, arg_required_else_help = true, subcommand_required = true)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the definition of the command line.
pub fn definition() -> clap::Command {
    variables::with_variables(Cli::command(), variables::PREFIX)
}

/// Parses a command line; environment variables give flags that it lacks.
pub fn parse<T>(line: impl IntoIterator<Item = T>) -> Result<Command, clap::Error>
where
    T: Into<OsString> + Clone,
{
    let matches = definition().try_get_matches_from(line)?;
    Ok(Cli::from_arg_matches(&matches)?.command)
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent
    ///
    /// The agent calls the discovery handlers that Configurations name. It keeps one Instance and one CDI device for each
    /// device that they find. As root it also offers the devices to this machine's kubelet. On the first SIGTERM or SIGINT
    /// the agent stops within 5 s, on a second one at once. When it stops, Instances and CDI specs stay, and pods keep their
    /// devices.
    #[command(after_long_help = examples::AGENT)]
    Agent(Box<AgentArgs>),
    /// Run the controller of a cluster
    ///
    /// It releases the slots of gone nodes: nodes that were deleted, have the taint node.kubernetes.io/out-of-service, or have not been Ready
    /// for 6 minutes. A node that is not Ready keeps the slots of a device while one of its pods that requests the device has not ended. If
    /// there are several controllers, one leads and the others wait. Agents continue without a controller.
    #[command(after_long_help = examples::CONTROLLER)]
    Controller(ControllerArgs),
    /// Run the webhook that checks Configurations before the API server of a cluster stores them
    ///
    /// It refuses fields of broker pods, jobs and services that Kubernetes does not have, and discoveryDetails that their handler refuses. It
    /// creates and renews its certificate, stores it in a Secret, and configures the API server to trust it. Without the webhook, agents and
    /// the controller check Configurations when they use them.
    #[command(after_long_help = examples::WEBHOOK)]
    Webhook(Box<WebhookArgs>),
    /// Run the extender of a scheduler: pods get devices that they describe
    ///
    /// A kube-scheduler asks it which nodes have the devices that a pod describes in the annotation leafhost.dev/devices. It chooses devices,
    /// reserves them in their Instances and binds the pod, and the agent of the node gives each container exactly these devices. Any number of
    /// extenders may run, each for its own scheduler. With --tls-secret it serves the cluster's own kube-scheduler over the network.
    #[command(after_long_help = examples::SCHEDULER)]
    Scheduler(Box<SchedulerArgs>),
    /// Show which devices a scheduler would choose for a pod
    ///
    /// It reads the Instances of the cluster with the kubeconfig that kubectl would use, chooses as leafhost scheduler does, and changes nothing.
    /// For each node it names the devices that each container would get, or the reason why the node does not fit; for each other device it names the first
    /// condition that the device does not meet.
    #[command(after_long_help = examples::SELECT)]
    Select(SelectArgs),
    /// Show the status of a running agent
    ///
    /// Without VIEW it shows the kubelet, handlers, Configurations and Instances. It finds the agent through the agent's
    /// state folder or --agent.
    #[command(after_long_help = examples::STATUS)]
    Status(StatusArgs),
    /// Check Configurations, handlers and grants without an agent
    ///
    /// It reads the files as the agent would, and prints every problem with file, line and field. If the handler's file is
    /// there too, or installed with this program, the handler checks the discoveryDetails. Lines that begin with "note:" are warnings, such as unknown fields;
    /// those with "skipped:" name details that could not be checked. It exits with 1 if there is a problem, and with 0 if there are only such lines.
    #[command(after_long_help = examples::CHECK)]
    Check(CheckArgs),
    /// Create, inspect and run discovery handlers
    #[command(subcommand)]
    Handler(HandlerCommand),
    /// Migrate a cluster from Akri to Leafhost, or back
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Print the custom resource definitions that the API server of a cluster needs
    ///
    /// The Helm chart has the same definitions. Helm installs definitions but never replaces them, so apply them before an upgrade.
    #[command(after_long_help = examples::CRDS)]
    Crds,
    /// Print a completion script for a shell
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        #[arg(value_parser = SHELLS)]
        shell: String,
    },
    /// Print the version, the contracts with handlers and the engine that runs them
    Version,
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// The folder to write one page for each command to
        dir: PathBuf,
    },
}

/// Verbs for handlers.
#[derive(Debug, Subcommand)]
pub enum HandlerCommand {
    /// Create the crate of a new handler: source, native test, grants, size profile
    #[command(after_long_help = examples::NEW)]
    New(NewArgs),
    /// Show the description of a component and the grants that it needs
    #[command(after_long_help = examples::INSPECT)]
    Inspect(InspectArgs),
    /// Call a handler once with production limits and show the answer
    ///
    /// It writes no file and needs no agent. Devices go to stdout; the handler's log and the cost of the call go to stderr.
    /// An answer without devices is a success. Refused details and faults exit with 1.
    #[command(after_long_help = examples::RUN)]
    Run(Box<RunArgs>),
    /// Print components with their grants as a ConfigMap
    ///
    /// Agents in a cluster load the handlers of the ConfigMaps in their namespace that have the label leafhost.dev/handlers: "true".
    /// The components are gzipped and may have 1 MiB in all. Apply the output with kubectl. Without --server-side kubectl
    /// keeps a copy of the object in an annotation, for which most components are too big.
    #[command(after_long_help = examples::CONFIGMAP)]
    Configmap(ConfigMapArgs),
    /// Serve a component as a handler that was built for Akri
    ///
    /// It registers with the agent of its node, Leafhost's or Akri's, by a socket in a folder, and registers again when the agent restarts.
    /// The grants here limit what its devices add to a container; an agent of Leafhost also applies its own grants. Leafhost's agents do not
    /// need this command, because they run components themselves.
    #[command(after_long_help = examples::SERVE)]
    Serve(ServeArgs),
}

/// Flags of the log.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// The log format; auto: text on a terminal and under journald, else json
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub log_format: LogFormat,

    /// The level of the log on stderr: error, warn, info, debug or trace; also for one part: info,leafhost_wasm=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

/// Flags of `leafhost agent`.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Read Configurations, handlers and secrets from files in DIR: configurations/*.yaml, handlers/*.wasm, secrets/NAME/KEY
    /// [default DIR: /etc/leafhost as root, else $XDG_CONFIG_HOME/leafhost; without this flag the agent runs in cluster mode, in the cluster of
    /// its service account, else that of KUBECONFIG]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "1")]
    pub standalone: Option<String>,

    /// Namespaces whose Secrets and ConfigMaps every Configuration of the cluster may name, besides those of its own
    #[arg(
        long,
        value_name = "NAMESPACE",
        value_delimiter = ',',
        conflicts_with = "standalone"
    )]
    pub properties_namespaces: Vec<String>,

    /// The node's name in Instances; the state folder keeps it [default: the host name; in a cluster that of the agent's token]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// The folder for Instances and the last accepted files [default: /var/lib/leafhost as root, else
    /// $XDG_STATE_HOME/leafhost]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// The folder for CDI specs [default: /etc/cdi as root, else cdi in the state folder]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cdi")]
    pub cdi_dir: Option<PathBuf>,

    /// Write no CDI specs
    #[arg(long)]
    pub no_cdi: bool,

    /// The kubelet's folder, which contains device-plugins and pod-resources; the agent waits for it [default:
    /// /var/lib/kubelet as root, else none]
    #[arg(long, value_name = "DIR", conflicts_with = "no_kubelet")]
    pub kubelet_dir: Option<PathBuf>,

    /// Offer nothing to a kubelet
    #[arg(long)]
    pub no_kubelet: bool,

    /// Time after which the agent releases a claimed slot that it has seen no pod have, such as 30s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub slot_grace: Duration,

    /// Maximum number of Instances with a resource of their own; pods reach the others through their Configuration's
    /// resource
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = RangedU64ValueParser::<usize>::new().range(0..=10_000))]
    pub instance_resources: usize,

    #[command(flatten)]
    pub tickets: TicketArgs,

    /// The namespace whose ConfigMaps with the label leafhost.dev/handlers: "true" have handlers [default: that of the service account]
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "standalone")]
    pub handlers_namespace: Option<String>,

    #[command(flatten)]
    pub folders: HandlersDirArgs,

    #[command(flatten)]
    pub without: WithoutHandlersArgs,

    /// The folder where handlers built for Akri register: their sockets and agent-registration.sock are in it [default:
    /// /var/lib/akri in a cluster as root, else none]
    #[arg(long, value_name = "DIR", conflicts_with = "no_external_handlers")]
    pub external_handlers_dir: Option<PathBuf>,

    /// Accept no registrations of handlers
    #[arg(long)]
    pub no_external_handlers: bool,

    /// The address for /status, /healthz, /readyz and /metrics; port 0 takes any free port
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN, value_parser = socket_address)]
    pub listen: SocketAddr,

    /// A group whose members may also read the status from the socket in the state folder [default: only the agent's user]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// Another address that serves only /metrics, for scrapers on the network
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub metrics_listen: Option<SocketAddr>,

    /// Time after which the agent deletes the Instances of a handler that is Offline, such as 30s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub handler_eviction: Duration,

    #[command(flatten)]
    pub compiler: CompilerArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags for devices that leafhost scheduler gives.
#[derive(Debug, Clone, Args)]
pub struct TicketArgs {
    /// The number of tickets, the resource leafhost.dev/devices, to offer to the kubelet: a container with a ticket gets the devices that leafhost
    /// scheduler has reserved for it; 220 are enough for a kubelet with the usual limit of 110 pods
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "standalone",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_TICKETS)))]
    pub tickets: u32,

    /// Unlock the node once the pod for which leafhost scheduler --node-lock has locked it has its devices
    #[arg(long, conflicts_with = "standalone")]
    pub node_lock: bool,
}

/// Folders with handlers.
#[derive(Debug, Clone, Args)]
pub struct HandlersDirArgs {
    /// Another folder with handlers, searched after DIR/handlers or the ConfigMaps; may be repeated
    #[arg(long, value_name = "DIR", value_delimiter = ':')]
    pub handlers_dir: Vec<PathBuf>,
}

/// Handlers that are left out.
#[derive(Debug, Clone, Args)]
pub struct WithoutHandlersArgs {
    /// Files of handlers that are not loaded from any folder or ConfigMap, such as debug-echo.wasm; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub without_handlers: Vec<String>,
}

/// Flags for compiling handlers.
#[derive(Debug, Clone, Args)]
pub struct CompilerArgs {
    /// The program that compiles components in its own sandbox [default: leafhost-compile in the folder of this executable
    /// or in ../libexec/leafhost]
    #[arg(long, value_name = "FILE")]
    pub compiler: Option<PathBuf>,

    /// Time limit for compiling one component, such as 60s
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub compile_timeout: Duration,
}

/// The log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal and under journald, else json.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Flags of `leafhost status`.
#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct StatusArgs {
    /// Part of the status to show [default: an overview]
    pub view: Option<View>,

    /// The Configuration, NAME or NAMESPACE/NAME, with `configuration` and `instances`; the Instance with `instance`
    #[arg(add = ArgValueCompleter::new(completion::names))]
    pub name: Option<String>,

    /// Show only devices that are unhealthy or missing; with `instances`
    #[arg(long)]
    pub unhealthy: bool,

    /// Show each skipped item in a line of its own, even if the reason is the same; with `configuration`
    #[arg(long)]
    pub all: bool,

    /// Show nothing; fail with the reason if the agent is not ready, like /readyz
    #[arg(long, conflicts_with_all = ["view", "watch"])]
    pub ready: bool,

    /// Show nothing; fail only if an agent runs and does not answer
    #[arg(long, conflicts_with_all = ["view", "watch", "ready"])]
    pub live: bool,

    /// Show every change until interrupted; waits for an agent to start
    #[arg(long, short)]
    pub watch: bool,

    /// The output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// The agent's address, ADDR:PORT; state folders are not searched then
    #[arg(long, value_name = "ADDR:PORT")]
    pub agent: Option<String>,

    /// The agent's state folder [default: $XDG_STATE_HOME/leafhost, then /var/lib/leafhost]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// View of `leafhost status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// Handlers and where they come from
    Handlers,
    /// Instances with their CDI devices; with NAME those of one Configuration
    Instances,
    /// One Instance in full: nodes, slots, properties, attributes
    Instance,
    /// Slots, with the pod that has each slot and the resource through which it has it
    Slots,
    /// The resources that the agent offers to the kubelet, and the state of each
    Resources,
    /// One Configuration in full; without NAME all of them, one line each
    Configuration,
}

/// Flags of `leafhost check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Folders as for `agent --standalone`, Configuration files, grants files or components
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,

    /// Exit with 1 for notes and skipped checks as well
    #[arg(long)]
    pub strict: bool,

    /// The namespaces whose Secrets and ConfigMaps the agents of the cluster may read in addition; may be repeated
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    pub properties_namespaces: Vec<String>,

    #[command(flatten)]
    pub folders: HandlersDirArgs,

    #[command(flatten)]
    pub compiler: CompilerArgs,
}

/// Flags of `leafhost handler new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The name of the handler and of its crate: lower-case letters, digits and '-'
    pub name: String,

    /// The folder to create [default: NAME]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,

    /// The leafhost-sdk that the crate depends on: a folder or a version [default: the installed one, else a copy in the crate]
    #[arg(long, value_name = "PATH|VERSION")]
    pub sdk: Option<String>,
}

/// Flags of `leafhost handler inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The component: .wasm or .wasm.gz
    pub file: PathBuf,

    /// Print only a grants file to start from
    #[arg(long)]
    pub grants: bool,

    #[command(flatten)]
    pub compiler: CompilerArgs,
}

/// Flags of `leafhost handler configmap`.
#[derive(Debug, Args)]
pub struct ConfigMapArgs {
    /// The components: .wasm or .wasm.gz; the grants file of each is the one next to it
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// The name of the ConfigMap [default: that of the file; handlers for several]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// The namespace of the agents [default: none is written, and kubectl applies its own]
    #[arg(long, short, value_name = "NS")]
    pub namespace: Option<String>,
}

/// Flags of `leafhost handler run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The component: .wasm or .wasm.gz
    pub file: PathBuf,

    /// A Configuration file with the details and properties to use [default: the handler's own example]
    #[arg(long, value_name = "FILE", conflicts_with = "details")]
    pub configuration: Option<PathBuf>,

    /// A file with only the discoveryDetails; - reads stdin
    #[arg(long, value_name = "FILE")]
    pub details: Option<PathBuf>,

    /// A discovery property: NAME=VALUE, or NAME=@FILE, which counts as a Secret; may be repeated; replaces the
    /// Configuration's
    #[arg(long, value_name = "K=V|K=@FILE", hide_env_values = true, value_parser = property::parse)]
    pub property: Vec<(String, String)>,

    /// The grants file [default: the one next to FILE]
    #[arg(long, value_name = "FILE")]
    pub grants: Option<PathBuf>,

    /// Also show what the handler skipped, with the reasons
    #[arg(long)]
    pub explain: bool,

    /// Keep calling the handler as the agent would, and print every answer, until interrupted
    #[arg(long, short)]
    pub watch: bool,

    /// The output format on stdout
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// The node's name that the handler gets [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// The level of the handler's log that is shown: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "debug")]
    pub log_level: tracing::Level,

    #[command(flatten)]
    pub compiler: CompilerArgs,
}

/// Flags of `leafhost handler serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The component: .wasm or .wasm.gz
    pub file: PathBuf,

    /// The grants file [default: the one next to FILE]
    #[arg(long, value_name = "FILE")]
    pub grants: Option<PathBuf>,

    /// The folder with the agent's agent-registration.sock, in which the handler creates its own socket
    #[arg(long, value_name = "DIR", default_value = "/var/lib/akri")]
    pub external_handlers_dir: PathBuf,

    /// A file; while its content is OFFLINE, the handler reports no devices
    #[arg(long, value_name = "FILE")]
    pub availability_file: Option<PathBuf>,

    /// The node's name that the handler gets [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    #[command(flatten)]
    pub compiler: CompilerArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

/// Parses an address with a port. An IPv6 address of a pod comes without brackets.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let bare = || {
        let (address, port) = text.rsplit_once(':')?;
        let address: IpAddr = address.parse().ok()?;
        Some(SocketAddr::new(address, port.parse().ok()?))
    };
    let address = text.parse().ok().or_else(bare);
    address.ok_or_else(|| format!("must be ADDR:PORT, such as {DEFAULT_LISTEN}"))
}

/// Parses a duration such as `30s`, `5m` or `1h 30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let remedy = "must be a number with a unit, such as 30s, 5m or 1h";
    let signed: jiff::SignedDuration = text.parse().map_err(|_| remedy.to_owned())?;
    let duration = Duration::try_from(signed).map_err(|_| remedy.to_owned())?;
    if duration.is_zero() {
        return Err("must be more than 0".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests;
