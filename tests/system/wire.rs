//! Another gRPC implementation, C-core in Python's grpcio, as the kubelet: its HTTP/2 frames differ from our
//! library's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::records::{ListedHolder, PodResources};
use leafhost_kubelet::{
    Allocation, Allocator, Device, DevicePluginsTask, DeviceSpec, Health, Offers, PluginConfig,
    Refusal, ResourceName,
};
use leafhost_tests::kubelet::Blocking;
use leafhost_tests::{peer, program, requirement};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const CAMERAS: &str = "akri.sh/cameras";

fn python() -> Result<Option<PathBuf>> {
    let python = peer::python_folder()?.join("bin/python");
    let name = python.to_str().context("the path is no text")?;
    let lacks = requirement::lacks(requirement::files(&[name], "make setup-test"))?;
    Ok((!lacks).then_some(python))
}

fn script() -> PathBuf {
    program::source_tree().join("tests/system/wire.py")
}

struct Giver;

#[async_trait::async_trait]
impl Allocator for Giver {
    async fn allocate(
        &self,
        _: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal> {
        let node = |path: &str| DeviceSpec {
            container_path: path.to_owned(),
            host_path: path.to_owned(),
            permissions: "rw".to_owned(),
        };
        Ok(Allocation {
            envs: ids.into_iter().map(|id| ("ID".to_owned(), id)).collect(),
            devices: vec![node("/dev/full")],
            ..Allocation::default()
        })
    }

    fn prefer(&self, _: &ResourceName, available: &BTreeSet<String>) -> Vec<String> {
        available.iter().rev().cloned().collect()
    }
}

fn offers() -> Offers {
    let device = |health| Device { health, numa: None };
    let devices = BTreeMap::from([
        ("c-0".to_owned(), device(Health::Healthy)),
        ("c-1".to_owned(), device(Health::Unhealthy)),
        ("c-2".to_owned(), device(Health::Healthy)),
    ]);
    let name = ResourceName::new(CAMERAS).ok();
    name.into_iter()
        .map(|name| (name, Arc::new(devices.clone())))
        .collect()
}

/// Device plugins of one resource.
struct Plugins {
    stop: CancellationToken,
    task: JoinHandle<leafhost_kubelet::plugins::Result<()>>,
    _offers: watch::Sender<Arc<Offers>>,
}

impl Plugins {
    /// Starts the device plugins. Must be called within a runtime.
    fn start(folder: &Path) -> Self {
        let offers = watch::Sender::new(Arc::new(offers()));
        let config = PluginConfig::new(folder, "wire");
        let (task, _) = DevicePluginsTask::new(config, offers.subscribe(), Arc::new(Giver));
        let stop = CancellationToken::new();
        let task = tokio::spawn(task.run(stop.clone()));
        Self {
            stop,
            task,
            _offers: offers,
        }
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await??)
    }
}

fn ask(python: &Path, socket: &Path, authority: &str) -> Result<Value> {
    let script = script();
    let arguments = [
        script.as_os_str(),
        "client".as_ref(),
        socket.as_os_str(),
        authority.as_ref(),
    ];
    let out = program::run(python, arguments)?.good()?;
    serde_json::from_str(&out).with_context(|| format!("{out:?} is no answer"))
}

#[test]
fn a_c_core_client_is_served_if_it_sends_the_kubelets_authority() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let kubelet = Blocking::start(folder.path())?;
    let plugins = kubelet.wait(async { Plugins::start(&kubelet.device_plugins()) });
    kubelet.wait(kubelet.until_capacity(CAMERAS, 3, 2))?;
    let registrations = kubelet.record().registrations;
    let socket = registrations.first().context("no registration")?;
    let socket = kubelet.device_plugins().join(&socket.endpoint);

    // Authority of the kubelet's calls.
    let answer = ask(&python, &socket, "localhost")?;
    let refused = answer.pointer("/refused/0");
    ensure!(refused.is_some_and(Value::is_string), "{answer}");
    for (what, expected) in [
        ("preferred_available", json!(1)),
        (
            "devices",
            json!({"c-0": "Healthy", "c-1": "Unhealthy", "c-2": "Healthy"}),
        ),
        ("preferred", json!(["c-2"])),
        ("envs", json!({"ID": "c-0"})),
        ("nodes", json!([["/dev/full", "/dev/full", "rw"]])),
    ] {
        assert_eq!(answer.get(what), Some(&expected), "{answer}");
    }

    // By default C-core uses the escaped path as authority, which is invalid, and the HTTP/2 library refuses the
    // stream. The kubelet does that only in its plugin watcher, which is not used.
    assert_eq!(ask(&python, &socket, "")?, json!({"error": "INTERNAL"}));
    // Only the stream is refused: the plugin keeps serving.
    ask(&python, &socket, "localhost")?;
    assert_eq!(kubelet.capacity(CAMERAS), Some((3, 2)));
    kubelet.wait(plugins.end())
}

/// Registration service of a kubelet on C-core.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(python: &Path, folder: &Path) -> Result<Self> {
        let mut child = Command::new(python)
            .arg(script())
            .arg("server")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("no output")?;
        let mut server = Self {
            child,
            lines: BufReader::new(out).lines(),
        };
        ensure!(server.line()? == "ready");
        Ok(server)
    }

    /// Returns the next line of output; fails when the process has ended.
    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("it ended")??)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_agent_registers_with_a_c_core_kubelet() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let mut server = Server::start(&python, folder.path())?;
    let runtime = tokio::runtime::Runtime::new()?;

    let records = PodResources::new(folder.path().join("pod-resources/kubelet.sock"));
    let listed = runtime.block_on(records.list())?;
    let holder = ListedHolder {
        namespace: "default".to_owned(),
        pod: "pod".to_owned(),
        container: "main".to_owned(),
    };
    let id = ("akri.sh/c".to_owned(), "c-0".to_owned());
    assert_eq!(listed.holders, [(id, BTreeSet::from([holder]))].into());

    let plugins = folder.path().join("device-plugins");
    let running = runtime.block_on(async { Plugins::start(&plugins) });
    let registered: Vec<String> = serde_json::from_str(&server.line()?)?;
    let [version, endpoint, resource] = registered.as_slice() else {
        anyhow::bail!("{registered:?}");
    };
    assert_eq!((version.as_str(), resource.as_str()), ("v1beta1", CAMERAS));
    ensure!(plugins.join(endpoint).exists(), "serve before register");
    runtime.block_on(running.end())
}
