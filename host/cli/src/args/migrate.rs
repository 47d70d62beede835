//! Flags of `leafhost migrate`.

use clap::{Args, Subcommand};

use super::{CompilerArgs, HandlersDirArgs, examples};

/// Verbs for clusters that ran or will run Akri.
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Stop Akri in a cluster, so that Leafhost can take over its Configurations, Instances and brokers
    ///
    /// It stops Akri's agents, its controller and the handlers that Leafhost has, too, keeps the API server from asking Akri's webhook,
    /// removes the finalizers and field managers of Akri's agents, and replaces the definitions by those of Leafhost. Nothing is deleted:
    /// Configurations, Instances, slots and pods stay. Until Leafhost's agents run no new pod gets a device. It uses the kubeconfig
    /// that kubectl would use, shows what it will do, and asks. If it was interrupted, run it again.
    #[command(after_long_help = examples::FROM_AKRI)]
    FromAkri(FromAkriArgs),
    /// Give a cluster back to Akri, which from-akri has stopped
    ///
    /// Leafhost must have been uninstalled. It makes the Instances such that Akri's agents can write them, removes what Akri refuses, and
    /// starts what from-akri has stopped. Akri's agents delete the Instances of their nodes when they start, and make new ones: brokers
    /// end and are made again. It shows what it will do, and asks. If it was interrupted, run it again.
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
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}
