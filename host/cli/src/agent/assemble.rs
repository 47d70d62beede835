//! Puts the agent together for one machine: its files, the runtime of its handlers, and the agent's own tasks.
//!
//! The only place that knows all of them.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_agent::{Agent, AgentConfig, Ports};
use leafhost_core::ports::{
    Change, ConfigurationSet, ConfigurationSource, HandlerSource, InstanceSet, InstanceStore,
    SourceFile, SourceSet, StoreError,
};
use leafhost_files::{Places, Standalone};
use leafhost_udev::Monitor;
use leafhost_wasm::{Runtime, RuntimeConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::missing::Machine;
use super::settings::Settings;

/// The agent, ready to run. The state folder is held until it is dropped.
pub async fn agent(
    settings: &Settings,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
) -> Result<Agent> {
    let places = Places {
        folder: settings.dir.clone(),
        state_dir: settings.state_dir.clone(),
        handlers: settings.handlers_dirs.clone(),
    };
    let home = Arc::new(Standalone::open(places, &settings.node).await?);
    let (runtime, mut problems) = start_runtime(settings).await?;
    problems.extend(home.problems().iter().map(ToString::to_string));
    for problem in &problems {
        tracing::warn!("{problem}");
    }
    let config = AgentConfig {
        cdi_dir: settings.cdi_dir.clone(),
        handler_eviction: settings.handler_eviction,
        problems,
        listener: Some(listener),
        metrics_listener,
        ..AgentConfig::new(&settings.node, env!("CARGO_PKG_VERSION"))
    };
    let ports = Ports {
        configurations: Arc::new(Configurations(Arc::clone(&home))),
        handlers: Arc::new(Handlers(Arc::clone(&home))),
        loader: runtime,
        instances: Arc::new(Instances(home)),
    };
    Ok(Agent::build(config, ports)?)
}

/// The runtime, and what this machine lacks.
async fn start_runtime(settings: &Settings) -> Result<(Arc<Runtime>, Vec<String>)> {
    let settings = settings.clone();
    let started = tokio::task::spawn_blocking(move || {
        let events =
            Monitor::start().map_err(|error| crate::failure::line(&anyhow::Error::from(error)));
        let problems = Machine::look(&settings, &events).problems();
        let runtime = Runtime::new(RuntimeConfig {
            cache_dir: settings.state_dir.join("native"),
            compiler: settings.compiler.compiler,
            compile_timeout: settings.compiler.compile_timeout,
            events,
        })?;
        anyhow::Ok((runtime, problems))
    });
    started
        .await
        .context("starting the runtime broke down, which is a bug")?
}

// Each port holds the whole home: so the state folder's lock lasts as long as anything may write there.

struct Configurations(Arc<Standalone>);

impl ConfigurationSource for Configurations {
    fn configurations(&self) -> watch::Receiver<Arc<ConfigurationSet>> {
        self.0.configurations.configurations()
    }
}

struct Handlers(Arc<Standalone>);

impl HandlerSource for Handlers {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.0.handlers.handlers()
    }

    fn accept(&self, file: &SourceFile) {
        self.0.handlers.accept(file);
    }

    fn accepted(&self, name: &str) -> Option<SourceFile> {
        self.0.handlers.accepted(name)
    }
}

struct Instances(Arc<Standalone>);

#[async_trait::async_trait]
impl InstanceStore for Instances {
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.0.instances.instances()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<Result<(), StoreError>> {
        self.0.instances.apply(changes).await
    }
}
