//! `leafhost scheduler`: serves a kube-scheduler as its extender until a signal ends it, or prints the configuration that
//! a kube-scheduler needs.

use std::sync::Arc;

use anyhow::{Context as _, Error, Result};
use leafhost_core::scheduling::Observer;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_endpoint::{Bounds, Listener, serve, serve_within};
use leafhost_k8s::KubeScheduling;
use leafhost_k8s::extender::{self, Names};
use leafhost_scheduler::{Metrics, Scheduler, public_routes, routes};
use tokio::sync::watch;

use crate::args::{ObjectName, SchedulerArgs, SchedulerCommand, SchedulerConfigArgs};
use crate::listen::{bind, bind_if};
use crate::log;
use crate::runtime::block_on;
use crate::signals::Signals;
use crate::terminal;

/// Maximum number of connections; a scheduler binds many pods at the same time.
const CONNECTIONS: usize = 1_000;

pub fn run(args: SchedulerArgs) -> Result<()> {
    if let Some(SchedulerCommand::Config(args)) = args.command {
        return config(args);
    }
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    block_on(answer(args))
}

fn config(args: SchedulerConfigArgs) -> Result<()> {
    let text = block_on(async {
        let client = leafhost_k8s::connect_as_user().await?;
        let names = names(client.default_namespace(), args.secret, args.service);
        let entry = extender::entry(&client, &names, args.valid_days).await;
        entry.map_err(Error::msg)
    })?;
    Ok(terminal::print(&text)?)
}

fn names(default: &str, secret: ObjectName, service: String) -> Names {
    Names {
        namespace: secret.namespace.unwrap_or_else(|| default.to_owned()),
        secret: secret.name,
        service,
    }
}

async fn answer(args: SchedulerArgs) -> Result<()> {
    let mut signals = Signals::new()?;
    let listener = bind(args.listen, "--listen").await?;
    let address = listener.local_addr();
    let address = address.context("cannot read the address of the listener")?;
    let public = bind_if(args.metrics_listen, "--metrics-listen").await?;
    let client = leafhost_k8s::connect().await?;
    let cluster = Arc::new(KubeScheduling::new(&client));
    let metrics = Arc::new(Metrics::default());
    let scheduler = Scheduler::new(Arc::clone(&cluster) as _, metrics, args.node_lock);
    let scheduler = Arc::new(scheduler);
    let mut tasks = Tasks::default();
    let stop = tasks.stop.clone();
    let observer: Arc<dyn Observer> = Arc::clone(&scheduler) as _;
    cluster.watch(&observer, &mut tasks);
    if args.node_lock {
        cluster.watch_nodes(&observer, &mut tasks);
    }
    tasks.add("scheduler", Arc::clone(&scheduler).run(stop.clone()));
    let own = routes(Arc::clone(&scheduler));
    let mut certificate = None;
    let (listener, own) = if let Some((secret, service)) = args.tls_secret.zip(args.tls_service) {
        let names = names(client.default_namespace(), secret, service);
        let (sender, tls) = watch::channel(None);
        let keeping = extender::keep(client, names, sender);
        tasks.add_loop("keeper of the certificate", keeping);
        certificate = Some(tls.clone());
        (Listener::Tls(listener, tls), own)
    } else {
        let public = public_routes(Arc::clone(&scheduler));
        (Listener::Tcp(listener), own.merge(public))
    };
    let bounds = Bounds {
        connections: CONNECTIONS,
        ..Bounds::DIAGNOSTICS
    };
    let endpoint = serve_within(bounds, listener, own, stop.clone());
    tasks.add("extender endpoint", endpoint);
    if let Some(public) = public {
        let endpoint = async move {
            // The extender is not ready without a certificate.
            if let Some(mut certificate) = certificate {
                let is_there = certificate.wait_for(Option::is_some);
                let is_there = stop.run_until_cancelled(is_there).await;
                drop(is_there);
            }
            serve(Listener::Tcp(public), public_routes(scheduler), stop).await;
        };
        tasks.add("metrics endpoint", endpoint);
    }
    tracing::info!(%address, "scheduler starts");
    tokio::select! {
        error = tasks.ended() => return Err(error.into()),
        signal = signals.next() => tracing::info!(signal, "scheduler stops"),
    }
    tasks.drain(timeouts::DRAIN).await?;
    Ok(())
}
