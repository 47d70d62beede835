//! `leafhost webhook`: tells the API server whether a Configuration may be stored, until a signal ends it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use leafhost_core::tasks::Tasks;
use leafhost_discovery::loader::LoaderTask;
use leafhost_endpoint::serve_within;
use leafhost_files::FileLoaderStore;
use leafhost_k8s::serving::{self, Names};
use leafhost_k8s::{KubeHandlers, Origins};
use leafhost_wasm::{Runtime, RuntimeConfig};
use tokio::sync::watch;

use crate::args::WebhookArgs;
use crate::handler_sources::HandlerSources;
use crate::listen::bind;
use crate::log;
use crate::runtime::block_on;
use crate::signals::Signals;

mod server;

/// Maximum time that the webhook waits for its tasks when it stops.
const LAST: Duration = Duration::from_secs(6);

pub fn run(args: WebhookArgs) -> Result<()> {
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    block_on(serve(args))
}

async fn serve(args: WebhookArgs) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut tasks = Tasks::default();
    let stop = tasks.stop.clone();
    let client = leafhost_k8s::connect().await?;
    let own = client.default_namespace().to_owned();
    let names = Names {
        namespace: args.namespace.unwrap_or_else(|| own.clone()),
        secret: args.secret,
        service: args.service,
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
    let maps = KubeHandlers::watch(&client, namespace, kept, &mut tasks);
    let folders = args.folders.handlers_dir;
    let without = &args.without.without_handlers;
    let source = HandlerSources::open(Some(maps), folders, without, &mut tasks);
    let accepted = args.state_dir.join("accepted/handlers");
    let store = FileLoaderStore::open(accepted, args.state_dir.clone()).await;
    let store = store.with_context(|| {
        let folder = args.state_dir.display();
        format!(
            "cannot store handlers in {folder}; choose a folder that can be written with --state-dir"
        )
    })?;
    let (loading, handlers) = LoaderTask::new(Arc::new(source), Arc::new(store), loader);
    let client_ca = args.client_ca.as_deref().map(|path| {
        let shown = path.display();
        std::fs::read(path).with_context(|| {
            format!("cannot read {shown}; --client-ca names a file with the certificates of a CA")
        })
    });
    let socket = bind(args.listen, "--listen").await?;
    let (sender, certificate) = watch::channel(None);
    let (listener, routes) = server::open(
        socket,
        client_ca.transpose()?.as_deref(),
        certificate,
        handlers,
        Origins::new(client.clone()),
    )?;
    tracing::info!(namespace = names.namespace, service = names.service, address = %args.listen, "webhook starts");
    tasks.add("loader of handlers", loading.run(stop.clone()));
    let certificate = serving::keep(client, names, args.webhook_configuration, sender);
    tasks.add_loop("keeper of the certificate", certificate);
    let serving = serve_within(server::BOUNDS, listener, routes, stop);
    tasks.add("server", serving);
    let ended = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "webhook stops");
            Ok(())
        }
        error = tasks.ended() => Err(error.into()),
    };
    // Before it ends, the loader records that no handler that is still being loaded caused the end.
    let _ = tasks.drain(LAST).await;
    ended
}
