//! Flags of `leafhost migrate`.

use clap::{Args, Subcommand};

use super::{CompilerArgs, HandlersDirArgs, examples};

/// Verbs for clusters that ran or will run Akri.
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Stop Akri in a cluster, so that Leafhost can take over its Configurations, Instances and brokers
    ///
    /// It stops Akri's agents, its controller and the handlers that Leafhost includes, keeps the API server from calling Akri's webhook,
    /// removes the finalizers and field managers of Akri's agents, and replaces the definitions with those of Leafhost. It deletes nothing:
    /// Configurations, Instances, slots and pods stay. Until Leafhost's agents run, no new pod gets a device. The command uses the kubeconfig
    /// that kubectl would use, shows its steps, and asks for confirmation. If it was interrupted, run it again.
    #[command(after_long_help = examples::FROM_AKRI)]
    FromAkri(FromAkriArgs),
    /// Start Akri again, which from-akri has stopped
    ///
    /// Uninstall Leafhost first. The command changes the Instances so that Akri's agents can write them, removes what Akri refuses, and
    /// starts the programs that from-akri has stopped. When Akri's agents start, they delete the Instances of their nodes and create new ones,
    /// so brokers end and are created again. It shows its steps, and asks for confirmation. If it was interrupted, run it again.
    #[command(after_long_help = examples::TO_AKRI)]
    ToAkri(MigrateArgs),
}

/// Flags of `leafhost migrate from-akri`.
#[derive(Debug, Args)]
pub struct FromAkriArgs {
    #[command(flatten)]
    pub common: MigrateArgs,

    #[command(flatten)]
    pub folders: HandlersDirArgs,

    #[command(flatten)]
    pub compiler: CompilerArgs,
}

/// Flags of `leafhost migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Only show the steps
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}
