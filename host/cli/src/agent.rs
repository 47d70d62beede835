//! `leafhost agent`: chooses the folders, starts the log, assembles the agent, and stops it on a signal.

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leafhost_agent::Agent;
use leafhost_agent::admin::serve_waiting;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::AgentArgs;
use crate::folders::User;
use crate::listen::{bind, bind_if};
use crate::log;
use crate::signals::Signals;

mod assemble;
mod home;
mod prerequisites;
mod settings;
mod socket;
mod systemd;

use home::Home;
use settings::Settings;

/// Time for which an idle thread of the blocking pool is kept. It is longer than the time between two scans of the folders,
/// so that one thread always stays: tokio panics if the pool is empty and no thread can be started.
const KEPT: Duration = Duration::from_mins(1);
/// Maximum number of threads in the blocking pool: tokio rotates idle threads, so after a burst none would ever time out.
const FILES: usize = 16;

pub fn run(args: AgentArgs) -> Result<()> {
    let settings = Settings::new(args, &User::current())?;
    let _log = log::start(settings.args.log.log_format, &settings.args.log.log_level)?;
    // Each resource takes a socket and a connection, in sum more than a shell's usual limit.
    if let Err(error) = leafhost_endpoint::fd_reserve::keep() {
        tracing::warn!(%error, "cannot raise the limit of open files: some resources may not be offered; raise it with ulimit -n");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_keep_alive(KEPT)
        .max_blocking_threads(FILES)
        .enable_all()
        .build()
        .context("cannot start the agent's threads")?;
    let result = runtime.block_on(serve(settings));
    // Tasks that still run after the drain, or after a second signal, are abandoned.
    runtime.shutdown_background();
    result
}

async fn serve(settings: Settings) -> Result<()> {
    let mut signals = Signals::new()?;
    let listener = bind(settings.args.listen, "--listen").await?;
    let address = listener
        .local_addr()
        .context("cannot read the address of the listener")?;
    let metrics = bind_if(settings.args.metrics_listen, "--metrics-listen").await?;
    let mut home = tokio::select! {
        home = open(&settings, &listener) => home?,
        name = signals.next() => {
            tracing::info!(signal = name, "agent stops");
            return Ok(());
        }
    };
    let (agent, socket) = assemble::agent(&settings, &mut home, listener, metrics).await?;
    let shown =
        |dir: Option<&Path>| dir.map(|dir| tracing::field::display(dir.display().to_string()));
    tracing::info!(node = home.node, mode = home.mode, %address, folder = shown(settings.dir.as_deref()),
        state = %settings.state_dir.display(), cdi = shown(settings.cdi_dir.as_deref()),
        kubelet = shown(settings.kubelet_dir.as_deref()), "agent starts");
    let result = tokio::select! {
        result = run_until_signal(agent, &mut signals, address) => result,
        error = home.tasks.ended() => Err(error.into()),
    };
    drop((socket, home));
    result
}

/// Opens the [`Home`]. While opening has to wait, `leafhost status` shows the reason.
async fn open(settings: &Settings, listener: &TcpListener) -> Result<Home> {
    let (waits, mut told) = watch::channel(None);
    let opening = Home::open(settings, &waits);
    tokio::pin!(opening);
    tokio::select! {
        home = &mut opening => return home,
        _ = told.wait_for(Option::is_some) => {}
    }
    let second = listener
        .as_fd()
        .try_clone_to_owned()
        .and_then(|fd| TcpListener::from_std(std::net::TcpListener::from(fd)));
    let second = second.context("cannot serve the status while the agent waits")?;
    let mut folder = DirBuilder::new();
    let folder = folder
        .recursive(true)
        .mode(0o700)
        .create(&settings.state_dir);
    folder.with_context(|| format!("cannot create {}", settings.state_dir.display()))?;
    let socket = socket::bind(&settings.state_dir, settings.socket_group.as_ref()).await;
    let (socket, _bound) = socket.ok().unzip();
    tokio::select! {
        home = &mut opening => home,
        () = serve_waiting(second, socket, told) => bail!("the admin endpoint has ended; this is a bug"),
    }
}

/// Runs the agent until a signal comes, and lets it drain.
async fn run_until_signal(agent: Agent, signals: &mut Signals, address: SocketAddr) -> Result<()> {
    let shutdown = CancellationToken::new();
    let ready = systemd::ready(agent.board.clone(), address, shutdown.clone());
    let both = Box::pin(async {
        let running = async {
            let ended = agent.run(shutdown.clone()).await;
            shutdown.cancel();
            ended
        };
        Ok(tokio::join!(running, ready).0?)
    });
    let stop = || {
        systemd::stopping();
        shutdown.cancel();
    };
    until_signal(both, async || signals.next().await, stop).await
}

/// Runs a future until it ends; the first signal stops it, the second abandons it.
async fn until_signal(
    running: impl Future<Output = Result<()>>,
    mut signal: impl AsyncFnMut() -> &'static str,
    stop: impl FnOnce(),
) -> Result<()> {
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return ended,
        name = signal() => tracing::info!(signal = name, "agent stops; a second signal ends it at once"),
    }
    stop();
    tokio::select! {
        ended = &mut running => {
            ended?;
            tracing::info!("agent has stopped");
            Ok(())
        }
        name = signal() => bail!("ended by a second signal ({name}) before everything had stopped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `left` signals, then waits forever.
    async fn next(left: &mut usize) -> &'static str {
        if *left == 0 {
            std::future::pending::<()>().await;
        }
        *left -= 1;
        "SIGTERM"
    }

    #[tokio::test]
    async fn the_first_signal_starts_a_graceful_stop() {
        let (mut left, shutdown) = (1, CancellationToken::new());
        let running = async {
            shutdown.cancelled().await;
            Ok(())
        };
        until_signal(
            running,
            async || next(&mut left).await,
            || shutdown.cancel(),
        )
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn the_second_signal_stops_at_once() {
        let (mut left, shutdown) = (2, CancellationToken::new());
        let signal = async || next(&mut left).await;
        let error = until_signal(std::future::pending(), signal, || shutdown.cancel())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("second signal (SIGTERM)"));
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test]
    async fn a_failing_agent_reports_the_cause() {
        let mut left = 0;
        let running = async { bail!("broke down") };
        let error = until_signal(running, async || next(&mut left).await, || ())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "broke down");
    }
}
