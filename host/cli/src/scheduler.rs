//! `leafhost scheduler`: answers a kube-scheduler as its extender, until it is told to stop.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_core::scheduling::Observer;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_endpoint::{Listener, serve, serve_up_to};
use leafhost_k8s::KubeScheduling;
use leafhost_scheduler::{Metrics, Scheduler, public_routes, routes};

use crate::agent::bind;
use crate::args::SchedulerArgs;
use crate::log;
use crate::signals::Signals;

/// A scheduler binds many pods at the same time.
const CONNECTIONS: usize = 1_000;

/// Runs the verb.
pub fn run(args: &SchedulerArgs) -> Result<()> {
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the scheduler's threads")?;
    runtime.block_on(answer(args))
}

async fn answer(args: &SchedulerArgs) -> Result<()> {
    let mut signals = Signals::new()?;
    let listener = bind(args.listen, "--listen").await?;
    let address = listener.local_addr();
    let address = address.context("cannot read the address of the listener")?;
    let public = match args.metrics_listen {
        Some(address) => Some(bind(address, "--metrics-listen").await?),
        None => None,
    };
    let client = leafhost_k8s::connect().await?;
    let cluster = Arc::new(KubeScheduling::new(&client));
    let mut scheduler = Scheduler::new(Arc::clone(&cluster) as _, Arc::new(Metrics::default()));
    if args.node_lock {
        scheduler = scheduler.locking_nodes();
    }
    let scheduler = Arc::new(scheduler);
    let mut tasks = Tasks::default();
    let stop = tasks.stop.clone();
    let observer: Arc<dyn Observer> = Arc::clone(&scheduler) as _;
    cluster.watch(&args.scheduler_name, &observer, &mut tasks);
    if args.node_lock {
        cluster.watch_nodes(&observer, &mut tasks);
    }
    tasks.add("scheduler", Arc::clone(&scheduler).run(stop.clone()));
    let endpoint = serve_up_to(
        CONNECTIONS,
        Listener::Tcp(listener),
        routes(Arc::clone(&scheduler)),
        stop.clone(),
    );
    tasks.add("extender endpoint", endpoint);
    if let Some(public) = public {
        let endpoint = serve(Listener::Tcp(public), public_routes(scheduler), stop);
        tasks.add("metrics endpoint", endpoint);
    }
    tracing::info!(%address, scheduler = args.scheduler_name, "scheduler starts");
    tokio::select! {
        error = tasks.ended() => return Err(error.into()),
        signal = signals.next() => tracing::info!(signal, "scheduler stops"),
    }
    tasks.drain(timeouts::DRAIN).await?;
    Ok(())
}
