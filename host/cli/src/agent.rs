//! `leafhost agent`: chooses the folders, starts the log, assembles the agent, and stops it when it is told to.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use leafhost_agent::Agent;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::agent_file::AgentFile;
use crate::args::AgentArgs;
use crate::folders::User;

mod assemble;
mod log;
mod missing;
mod settings;
mod systemd;

use settings::Settings;

/// Runs the verb.
pub fn run(args: AgentArgs) -> Result<()> {
    let settings = Settings::new(args, &User::current())?;
    log::start(settings.log_format, &settings.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the agent's threads")?;
    let result = runtime.block_on(serve(settings));
    // What still runs after the drain, or after a second signal, is not waited for.
    runtime.shutdown_background();
    result
}

async fn serve(settings: Settings) -> Result<()> {
    let mut signals = Signals::new()?;
    let listener = bind(settings.listen, "--listen").await?;
    let address = listener
        .local_addr()
        .context("cannot read the address that is listened on")?;
    let metrics = match settings.metrics_listen {
        Some(address) => Some(bind(address, "--metrics-listen").await?),
        None => None,
    };
    let agent = assemble::agent(&settings, listener, metrics).await?;
    let file = AgentFile::of_this_process(address);
    let published = file.publish(&settings.state_dir).map_err(|error| {
        // What there is is served all the same.
        tracing::warn!(
            error = format!("{error:#}"),
            "leafhost status needs --agent {address} to find this agent"
        );
    });
    tracing::info!(node = settings.node, %address, folder = %settings.dir.display(),
        state = %settings.state_dir.display(), "agent starts");
    let result = run_until_signal(agent, &mut signals, file.address).await;
    drop(published);
    result
}

/// Runs the agent until the first signal, lets it drain, and gives up at the second.
async fn run_until_signal(agent: Agent, signals: &mut Signals, address: SocketAddr) -> Result<()> {
    let shutdown = CancellationToken::new();
    let ready = systemd::ready(agent.board(), address, shutdown.clone());
    let running = agent.run(shutdown.clone());
    let both = async {
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => return ended,
            () = ready => {}
        }
        running.await
    };
    tokio::pin!(both);
    tokio::select! {
        ended = &mut both => {
            shutdown.cancel();
            return Ok(ended?);
        }
        name = signals.next() => tracing::info!(signal = name, "agent stops; a second signal ends it at once"),
    }
    systemd::stopping();
    shutdown.cancel();
    tokio::select! {
        ended = &mut both => {
            ended?;
            tracing::info!("agent has stopped");
            Ok(())
        }
        name = signals.next() => bail!("ended by a second signal ({name}) before everything had stopped"),
    }
}

async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program has it, perhaps another agent: stop that one, or choose another port (0 takes any free one)"
        }
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address: choose another",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 are for root: choose another",
        _ => "choose another address",
    };
    Err(error).with_context(|| format!("cannot listen on {address} ({flag}): {remedy}"))
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_told_with_the_flag_and_the_remedy() {
        let taken = bind("127.0.0.1:0".parse().unwrap(), "--listen")
            .await
            .unwrap();
        let address = taken.local_addr().unwrap();
        let error = format!("{:#}", bind(address, "--listen").await.unwrap_err());
        for words in [
            &address.to_string(),
            "--listen",
            "another agent",
            "0 takes any",
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}
