//! `leafhost webhook`: answers the API server's question whether a Configuration may be stored, until it is told to stop.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_agent::loader::LoaderTask;
use leafhost_core::ports::HandlerSource;
use leafhost_files::{FileHandlers, FileLoaderStore};
use leafhost_k8s::KubeHandlers;
use leafhost_k8s::admission::NameCheck;
use leafhost_k8s::serving::{self, Names};
use leafhost_wasm::{Runtime, RuntimeConfig};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::WebhookArgs;
use crate::handler_sources::HandlerSources;
use crate::log;
use crate::signals::Signals;

mod server;

/// Runs the verb.
pub fn run(args: WebhookArgs) -> Result<()> {
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the webhook's threads")?;
    let result = runtime.block_on(serve(args));
    // A guest that still computes is abandoned.
    runtime.shutdown_background();
    result
}

async fn serve(args: WebhookArgs) -> Result<()> {
    let mut signals = Signals::new()?;
    let client = leafhost_k8s::connect().await?;
    let own = client.default_namespace().to_owned();
    let names = Names {
        namespace: args.namespace.unwrap_or_else(|| own.clone()),
        secret: args.secret,
        service: args.service,
        webhook: args.webhook_configuration,
    };
    let why = || "a webhook discovers nothing".to_owned();
    let loader = Runtime::new(RuntimeConfig {
        cache_dir: args.state_dir.join("native"),
        compiler: args.compiler.compiler,
        compile_timeout: args.compiler.compile_timeout,
        own_folders: Vec::new(),
        events: Err(why()),
        network: Err(why()),
    })
    .context("cannot start the runtime for handlers")?;
    let namespace = args.handlers_namespace.as_ref().unwrap_or(&own);
    let kept = args.state_dir.join("cluster/handlers");
    // In the order of an agent's.
    let mut sources: Vec<Arc<dyn HandlerSource>> =
        vec![Arc::new(KubeHandlers::watch(&client, namespace, kept))];
    for dir in args.folders.handlers_dir {
        sources.push(Arc::new(FileHandlers::open(vec![dir])));
    }
    let source = HandlerSources::without(sources, &args.without.without_handlers);
    let accepted = args.state_dir.join("accepted/handlers");
    let store = FileLoaderStore::open(accepted, args.state_dir.clone()).await;
    let store = store.with_context(|| {
        let folder = args.state_dir.display();
        format!(
            "cannot keep handlers in {folder}; choose a folder that can be written with --state-dir"
        )
    })?;
    let (loading, handlers) = LoaderTask::new(Arc::new(source), Arc::new(store), loader);
    let (sender, certificate) = watch::channel(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(loading.run(CancellationToken::new()));
    tracing::info!(namespace = names.namespace, service = names.service, address = %args.listen, "webhook starts");
    let check = NameCheck::new(client.clone());
    tasks.spawn(serving::keep(client, names, sender));
    let server = server::Server::bind(args.listen, certificate, handlers, check)?;
    server
        .run(async {
            let signal = signals.next().await;
            tracing::info!(signal, "webhook stops");
        })
        .await
}
