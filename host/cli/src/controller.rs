//! `leafhost controller`: acts for all nodes of a cluster, until a signal ends it.

use std::sync::Arc;

use anyhow::{Context as _, Error, Result};
use axum::Router;
use axum::http::header;
use axum::routing::get;
use leafhost_controller::Metrics;
use leafhost_core::brokers::Brokers;
use leafhost_core::cluster::Cluster as _;
use leafhost_core::tasks::Tasks;
use leafhost_core::timeouts;
use leafhost_endpoint::{Listener, serve as serve_routes};
use leafhost_k8s::{KubeBrokers, KubeCluster};
use leafhost_metrics::CONTENT_TYPE;

use crate::args::ControllerArgs;
use crate::listen::bind_if;
use crate::log;
use crate::signals::Signals;

pub fn run(args: &ControllerArgs) -> Result<()> {
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the controller's thread")?;
    runtime.block_on(async {
        if args.clear {
            return clear().await;
        }
        serve(args).await
    })
}

async fn clear() -> Result<()> {
    let client = leafhost_k8s::connect().await?;
    let cleared = leafhost_k8s::cluster::clear(&client).await;
    let configurations = cleared.map_err(Error::msg)?;
    tracing::info!(
        configurations,
        "deleted all reports and removed the statuses of Configurations"
    );
    Ok(())
}

async fn serve(args: &ControllerArgs) -> Result<()> {
    let mut signals = Signals::new()?;
    let listener = bind_if(args.metrics_listen, "--metrics-listen").await?;
    let health = bind_if(args.health_listen, "--health-listen").await?;
    let served = listener.as_ref().and_then(|one| one.local_addr().ok());
    let client = leafhost_k8s::connect().await?;
    let namespace = args.lease_namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace());
    // A pod's hostname is its name; two processes on one machine differ in their process id.
    let host = nix::unistd::gethostname().context("cannot read the hostname")?;
    let holder = format!("{}-{}", host.to_string_lossy(), std::process::id());
    tracing::info!(
        holder,
        namespace,
        metrics = served.map(tracing::field::display),
        "controller starts"
    );
    let mut tasks = Tasks::default();
    let agents = args.agent_pods.as_deref();
    let cluster = KubeCluster::watch(&client, namespace, holder, agents, &mut tasks);
    let brokers = (!args.no_brokers).then(|| -> Arc<dyn Brokers> {
        let manifests = cluster.views().manifests;
        Arc::new(KubeBrokers::watch(&client, manifests, &mut tasks))
    });
    let objects = brokers.as_ref().map(|brokers| brokers.objects());
    let metrics = Metrics::new(cluster.views().leads, objects);
    for (listener, name, routes) in [
        (listener, "metrics endpoint", routes(&metrics)),
        (
            health,
            "health endpoint",
            Router::new().route("/healthz", get(async || "ok\n")),
        ),
    ] {
        if let Some(listener) = listener {
            let stop = tasks.stop.clone();
            tasks.add(name, serve_routes(Listener::Tcp(listener), routes, stop));
        }
    }
    let running = leafhost_controller::run(
        &cluster,
        brokers,
        args.name_grace,
        (args.restart_pods, args.node_labels),
        &metrics,
    );
    tokio::select! {
        () = running => {}
        error = tasks.ended() => return Err(error.into()),
        signal = signals.next() => tracing::info!(signal, "controller stops"),
    }
    // No write is made any more, so the Lease can be released.
    tasks.drain(timeouts::DRAIN).await?;
    Ok(())
}

fn routes(metrics: &Arc<Metrics>) -> Router {
    let metrics = Arc::clone(metrics);
    let answer = async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render());
    Router::new().route("/metrics", get(answer))
}
