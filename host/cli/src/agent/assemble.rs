//! Assembles the agent: its home, the runtime of its handlers, and the agent's own tasks.
//!
//! No other module knows all of them.

use std::sync::Arc;

use anyhow::Result;
use leafhost_agent::{Agent, AgentConfig, Identity, KubeletConfig, Ports, SlotConfig};
use leafhost_core::ports::{HandlerSource, Loader};
use leafhost_core::problem::Problem;
use leafhost_external::External;
use leafhost_net::Network;
use leafhost_udev::Monitor;
use leafhost_uds::RemovedOnDrop;
use leafhost_wasm::{Runtime, RuntimeConfig};
use tokio::net::TcpListener;
use tokio::task::block_in_place;

use super::home::Home;
use super::prerequisites;
use super::settings::Settings;
use super::socket;

/// Assembles the agent, ready to run. The home must outlive it.
pub async fn agent(
    settings: &Settings,
    home: &mut Home,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
) -> Result<(Agent, Option<RemovedOnDrop>)> {
    let (runtime, network, mut problems) = block_in_place(|| start_runtime(settings))?;
    let found = home.problems.iter().chain(&home.state.dir.problem);
    problems.extend(found.cloned().map(Problem::InvalidSource));
    let socket = socket::bind(&settings.state_dir, settings.socket_group.as_ref()).await;
    let socket = socket.inspect_err(|error| {
        // The agent runs without the socket.
        let error = crate::failure::line(error);
        tracing::warn!(
            error,
            "cannot serve the socket for leafhost status; it uses the address of --listen"
        );
    });
    let (socket, bound) = socket.ok().unzip();
    let config = AgentConfig {
        identity: Identity {
            node: home.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: home.mode.to_owned(),
            cdi_dir: settings.cdi_dir.clone(),
            problems,
        },
        socket,
        cdi_readers: home.cdi_readers,
        kubelet: settings.kubelet_dir.clone().map(|root| KubeletConfig {
            root,
            slots: SlotConfig {
                grace: settings.args.slot_grace,
                instance_resources: settings.args.instance_resources,
            },
            tickets: settings.args.tickets.tickets,
            lock: home.lock.clone(),
        }),
        handler_eviction: settings.args.handler_eviction,
        listener: Some(listener),
        metrics_listener,
        lost_log_lines: super::log::lost_lines,
    };
    let (handlers, loader) = sources(settings, home, runtime, network);
    let ports = Ports {
        configurations: home.configurations.clone(),
        handlers,
        accepted: home.state.accepted.clone(),
        loader,
        instances: home.instances.clone(),
        ledger: home.state.ledger.clone(),
        claims: home.claims.clone(),
    };
    let mut agent = Agent::build(config, ports)?;
    if let Some(writer) = home.reports.take() {
        agent.report_to(|reports, problem| writer.keep(reports, problem));
    }
    Ok((agent, bound))
}

/// Returns the handler source and its loader: components, and external handlers if they may register.
fn sources(
    settings: &Settings,
    home: &mut Home,
    runtime: Arc<Runtime>,
    network: Result<Network, String>,
) -> (Arc<dyn HandlerSource>, Arc<dyn Loader>) {
    let components = home.handlers.clone();
    let Some(folder) = settings.external_dir.clone() else {
        return (components, runtime);
    };
    let config = leafhost_external::Config {
        folder,
        state_dir: settings.state_dir.clone(),
        own_folders: settings.own_folders(),
        network,
    };
    let external = External::start(config, components, runtime, &mut home.tasks);
    (Arc::clone(&external) as _, external)
}

/// Runtime, network for its handlers, and problems of this machine.
type Started = (Arc<Runtime>, Result<Network, String>, Vec<Problem>);

/// Starts the runtime; blocks.
fn start_runtime(settings: &Settings) -> Result<Started> {
    let line = |error: anyhow::Error| crate::failure::line(&error);
    let events = Monitor::start().map_err(|error| line(error.into()));
    let network = Network::start().map_err(|error| line(error.into()));
    let mut problems = prerequisites::missing(settings, &events, &network);
    let runtime = Runtime::new(RuntimeConfig {
        cache_dir: settings.state_dir.join("native"),
        compiler: settings.args.compiler.compiler.clone(),
        compile_timeout: settings.args.compiler.compile_timeout,
        own_folders: settings.own_folders(),
        events,
        network: network.clone(),
    })?;
    problems.extend(runtime.unkept().cloned().map(Problem::InvalidSource));
    Ok((runtime, network, problems))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::args::{self, Command};
    use crate::folders::User;
    use crate::status::client::Search;

    fn mk_settings(dir: &std::path::Path) -> Settings {
        let line = format!(
            "leafhost agent --node-name edge-1 --standalone {0}/etc --state-dir {0}/state --cdi-dir {0}/cdi --listen 127.0.0.1:0",
            dir.display()
        );
        let Ok(Command::Agent(args)) = args::parse(line.split(' ')) else {
            panic!("{line}");
        };
        Settings::new(*args, &User::default()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_agent_on_empty_folders_becomes_ready_reports_what_is_missing_and_stops() {
        let dir = tempfile::tempdir().unwrap();
        let settings = mk_settings(dir.path());
        let listener = TcpListener::bind(settings.args.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (waits, _told) = tokio::sync::watch::channel(None);
        let mut home = Home::open(&settings, &waits).await.unwrap();
        let (agent, _socket) = agent(&settings, &mut home, listener, None).await.unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(agent.run(shutdown.clone()));
        let search = Search::new(Some(&address.to_string()), None, &User::default());
        let ready = async {
            while search.ready().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, ready).await.unwrap();
        let reported = async {
            let words = [
                "\"node\":\"edge-1\"",
                "not root",
                "configurations: is missing",
            ];
            loop {
                let answer = search.status(None).await.unwrap().unwrap();
                let status = serde_json::to_string(&answer.status).unwrap();
                if words.iter().all(|words| status.contains(words)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(limit, reported).await.unwrap();
        let second = Home::open(&settings, &waits).await.err().unwrap();
        assert!(second.to_string().contains("in use"), "{second}");
        shutdown.cancel();
        let ended = tokio::time::timeout(limit, running).await.unwrap();
        ended.unwrap().unwrap();
    }
}
