//! Fake implementations of the ports for tests: plain data, controlled by the test. No program links this crate.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::must_use_candidate,
    reason = "for tests alone"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::configuration::{Configuration, FieldProblem, Manifest};
use leafhost_core::device::Device;
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest, HandlerFacts, Registration};
use leafhost_core::left_out::LeftOuts;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{
    AcceptedVersion, ConfigurationSet, ConfiguredDiscovery, Handler, HandlerSource, LoadError,
    Loader, LoaderStore, Owner, ResourceLedger, SourceFile, SourceProblem, SourceSet,
    SourceVersion,
};
use leafhost_core::session::{
    CallStats, Devices, Discovery, Outcome, Report, Session, SessionSpec,
};
use tokio::sync::{mpsc, watch};

mod store;
pub use store::{HANGS, Store, Trouble};

pub fn key(name: &str) -> ConfigurationKey {
    ConfigurationKey::new("default", name).unwrap()
}

/// Returns a Configuration in the namespace `default`.
pub fn configured(name: &str, handler: &str, details: &str) -> ConfiguredDiscovery {
    configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "uid": format!("uid-of-{name}")},
        "spec": {"discoveryHandler": {"name": handler, "discoveryDetails": details}, "capacity": 2},
    }))
}

pub fn configured_as(manifest: serde_json::Value) -> ConfiguredDiscovery {
    let manifest: Manifest = serde_json::from_value(manifest).unwrap();
    ConfiguredDiscovery {
        configuration: Configuration::try_from(manifest).unwrap(),
        properties: Ok(Vec::new()),
    }
}

pub fn configuration_set(
    accepted: impl IntoIterator<Item = ConfiguredDiscovery>,
) -> Arc<ConfigurationSet> {
    Arc::new(ConfigurationSet {
        complete: true,
        accepted: accepted
            .into_iter()
            .map(|configured| (configured.configuration.key.clone(), Arc::new(configured)))
            .collect(),
        ..ConfigurationSet::default()
    })
}

pub fn report(outcome: Outcome) -> Report {
    let call = CallStats {
        wall: Duration::from_millis(300),
        ..CallStats::default()
    };
    Report::new(outcome, call)
}

pub fn found(devices: Devices) -> Report {
    report(Outcome::Discovered(Discovery {
        devices,
        departed: Vec::new(),
        left_out: LeftOuts::default(),
    }))
}

pub fn complete(devices: &[Device]) -> Report {
    found(Devices::Complete(devices.to_vec()))
}

/// Handler files, set by the test.
#[derive(Debug, Default)]
pub struct Files {
    pub set: watch::Sender<Arc<SourceSet>>,
    /// Files that exist; reading any other fails.
    pub there: Mutex<Vec<SourceFile>>,
    pub accepted: Mutex<BTreeMap<String, (SourceFile, Registration)>>,
    /// Owner of each handler name.
    pub owners: Mutex<BTreeMap<String, Owner>>,
    /// Number of files stored as accepted.
    pub accepts: Mutex<usize>,
    /// True if nothing can be stored.
    pub full: Mutex<bool>,
    /// Number of times the agent died while loading a version, by digest.
    pub deaths: Mutex<BTreeMap<String, u32>>,
    /// Digests passed to each call of `set_loading`.
    pub loading: Mutex<Vec<Vec<String>>>,
}

impl Files {
    pub fn new(files: &[SourceFile]) -> Self {
        let new = Self::default();
        new.put(files);
        new
    }

    pub fn put(&self, files: &[SourceFile]) {
        *self.there.lock().unwrap() = files.to_vec();
        self.set.send_replace(Arc::new(SourceSet {
            complete: true,
            files: files
                .iter()
                .map(|file| (file.name.clone(), Some(version(file))))
                .collect(),
            ..SourceSet::default()
        }));
    }

    /// Stores a file as the last accepted version of an earlier run.
    pub fn accept(&self, file: &SourceFile, handler: &str) {
        let registration = Registration {
            handler: handler.to_owned(),
            number: 0,
        };
        let mut accepted = self.accepted.lock().unwrap();
        accepted.insert(file.name.clone(), (file.clone(), registration));
    }
}

/// Returns the file `name` with the bytes of `text`.
pub fn file(name: &str, text: &str) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        bytes: text.as_bytes().into(),
        grants: None,
    }
}

/// Returns the version of a file; its text serves as the digest.
pub fn version(file: &SourceFile) -> SourceVersion {
    SourceVersion {
        digest: Digest(String::from_utf8(file.bytes.to_vec()).unwrap()),
        grants: file.grants.clone(),
    }
}

impl HandlerSource for Files {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.subscribe()
    }

    fn read(&self, name: &str, wanted: &SourceVersion) -> Result<SourceFile, LoadError> {
        let there = self.there.lock().unwrap();
        let mut files = there.iter();
        let found = files.find(|file| file.name == name && version(file) == *wanted);
        let error = || LoadError::new(name, "is missing", true);
        found.cloned().ok_or_else(error)
    }
}

impl LoaderStore for Files {
    fn accepted(&self) -> BTreeMap<String, AcceptedVersion> {
        let accepted = self.accepted.lock().unwrap().clone().into_iter();
        let of = |(name, (file, registration))| {
            let version = version(&file);
            let accepted = AcceptedVersion {
                version,
                registration,
            };
            (name, accepted)
        };
        accepted.map(of).collect()
    }

    fn read(&self, name: &str, wanted: &SourceVersion) -> Option<SourceFile> {
        let accepted = self.accepted.lock().unwrap();
        let (file, _) = accepted.get(name)?;
        (version(file) == *wanted).then(|| file.clone())
    }

    fn set_accepted(
        &self,
        accepted: &BTreeMap<String, AcceptedVersion>,
        files: &BTreeMap<String, SourceFile>,
    ) -> Result<(), Box<SourceProblem>> {
        if *self.full.lock().unwrap() {
            return Err(Box::new(SourceProblem::new("accepted", "the disk is full")));
        }
        let mut kept = self.accepted.lock().unwrap();
        kept.retain(|name, _| accepted.contains_key(name));
        for (name, file) in files {
            *self.accepts.lock().unwrap() += 1;
            let registration = accepted[name].registration.clone();
            kept.insert(name.clone(), (file.clone(), registration));
        }
        Ok(())
    }

    fn owners(&self) -> BTreeMap<String, Owner> {
        self.owners.lock().unwrap().clone()
    }

    fn set_owners(&self, owners: &BTreeMap<String, Owner>) -> Result<(), Box<SourceProblem>> {
        self.owners.lock().unwrap().clone_from(owners);
        Ok(())
    }

    fn deaths(&self, version: &SourceVersion) -> u32 {
        let deaths = self.deaths.lock().unwrap();
        deaths.get(&version.digest.0).copied().unwrap_or(0)
    }

    fn set_loading(&self, versions: &[SourceVersion]) {
        let digests = versions.iter().map(|version| version.digest.0.clone());
        self.loading.lock().unwrap().push(digests.collect());
    }
}

/// Load time of files whose text begins with `slow`.
const SLOW_LOAD: Duration = Duration::from_secs(5);

/// Loader of files with the text `<handler>@<version>`. The text `broken` does not load, `panic` panics; `busy` is the
/// number of next loads that fail transiently.
#[derive(Debug, Default)]
pub struct FakeLoader {
    pub loads: Mutex<Vec<String>>,
    pub handlers: Mutex<BTreeMap<String, Arc<FakeHandler>>>,
    pub running: Mutex<(usize, usize)>,
    pub busy: Mutex<usize>,
}

#[async_trait]
impl Loader for FakeLoader {
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        let text = String::from_utf8(file.bytes.to_vec()).unwrap();
        self.loads
            .lock()
            .unwrap()
            .push(format!("{}={text}", file.name));
        {
            let mut running = self.running.lock().unwrap();
            running.0 += 1;
            running.1 = running.1.max(running.0);
        }
        let is_slow = text.starts_with("slow");
        let duration = if is_slow {
            SLOW_LOAD
        } else {
            Duration::from_millis(10)
        };
        tokio::time::sleep(duration).await;
        self.running.lock().unwrap().0 -= 1;
        let error = |message: &str, transient| LoadError::new(&file.name, message, transient);
        if text == "broken" {
            return Err(error("is not a component", false));
        }
        assert_ne!(text, "panic", "as asked");
        if takes(&self.busy) {
            return Err(error("the compiler cannot be started", true));
        }
        let handler = FakeHandler::new(&text);
        let mut handlers = self.handlers.lock().unwrap();
        handlers.insert(file.name.clone(), Arc::clone(&handler));
        Ok(handler)
    }
}

/// Handler whose sessions report what the test passes to [`FakeHandler::say`].
#[derive(Debug)]
pub struct FakeHandler {
    facts: HandlerFacts,
    /// Results of the next validations; later ones find no problem.
    pub validations: Mutex<VecDeque<Result<Vec<FieldProblem>, Fault>>>,
    pub opened: Mutex<Vec<Opened>>,
    /// Number of next sessions that panic at their first call.
    pub panics: Mutex<usize>,
}

#[derive(Debug)]
pub struct Opened {
    pub spec: SessionSpec,
    say: mpsc::UnboundedSender<Report>,
}

impl FakeHandler {
    /// Creates a handler from `<name>@<version>`; the text is the digest.
    pub fn new(text: &str) -> Arc<Self> {
        Arc::new(Self::unnamed(text))
    }

    /// Creates a handler that its grants name.
    pub fn named(text: &str) -> Arc<Self> {
        let mut handler = Self::unnamed(text);
        handler.facts.is_named = true;
        Arc::new(handler)
    }

    /// Creates an external handler that serves at `endpoint`.
    pub fn external(text: &str, endpoint: &str) -> Arc<Self> {
        let mut handler = Self::unnamed(text);
        handler.facts.endpoint = Some(endpoint.to_owned());
        Arc::new(handler)
    }

    fn unnamed(text: &str) -> Self {
        let (name, version) = text.split_once('@').unwrap_or((text, "1"));
        let facts = HandlerFacts {
            description: Description {
                name: name.to_owned(),
                version: version.to_owned(),
                summary: String::new(),
                example: String::new(),
                shared: true,
            },
            digest: Digest(text.to_owned()),
            endpoint: None,
            warnings: Vec::new(),
            is_named: false,
            most_devices: 4096,
            uses_udev: name == "udev",
        };
        Self {
            facts,
            validations: Mutex::default(),
            opened: Mutex::default(),
            panics: Mutex::default(),
        }
    }

    /// Sends a report to the newest session of a Configuration. Returns false if none is listening.
    pub fn say(&self, configuration: &str, report: Report) -> bool {
        let opened = self.opened.lock().unwrap();
        let mut newest = opened.iter().rev();
        let session = newest.find(|opened| opened.spec.configuration.name() == configuration);
        session.is_some_and(|opened| opened.say.send(report).is_ok())
    }

    pub fn opened(&self) -> Vec<String> {
        let opened = self.opened.lock().unwrap();
        let shown = |opened: &Opened| {
            let SessionSpec {
                configuration,
                details,
                opening,
                ..
            } = &opened.spec;
            format!("{} {details:?} {opening:?}", configuration.name())
        };
        opened.iter().map(shown).collect()
    }
}

#[async_trait]
impl Handler for FakeHandler {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, _details: &str) -> Result<Vec<FieldProblem>, Fault> {
        let next = self.validations.lock().unwrap().pop_front();
        next.unwrap_or(Ok(Vec::new()))
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let (say, reports) = mpsc::unbounded_channel();
        self.opened.lock().unwrap().push(Opened { spec, say });
        let shaky = takes(&self.panics);
        Box::new(FakeSession { reports, shaky })
    }
}

struct FakeSession {
    reports: mpsc::UnboundedReceiver<Report>,
    shaky: bool,
}

#[async_trait]
impl Session for FakeSession {
    async fn next(&mut self) -> Report {
        assert!(!self.shaky, "as asked");
        match self.reports.recv().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }
}

#[derive(Debug, Default)]
pub struct Ledger {
    names: Mutex<BTreeSet<String>>,
    pub kubelet: Mutex<Option<String>>,
}

#[async_trait]
impl ResourceLedger for Ledger {
    fn names(&self) -> BTreeSet<String> {
        self.names.lock().unwrap().clone()
    }

    async fn add(&self, names: BTreeSet<String>) -> Result<(), String> {
        self.names.lock().unwrap().extend(names);
        Ok(())
    }

    fn kubelet(&self) -> Option<String> {
        self.kubelet.lock().unwrap().clone()
    }

    async fn set_kubelet(&self, kubelet: String) -> Result<(), String> {
        *self.kubelet.lock().unwrap() = Some(kubelet);
        Ok(())
    }
}

/// Takes one of the errors that are due; returns false if there is none.
fn takes(due: &Mutex<usize>) -> bool {
    let mut due = due.lock().unwrap();
    let is_due = *due > 0;
    *due = due.saturating_sub(1);
    is_due
}

/// Waits until the published value satisfies `wish`. Panics after a minute of paused time.
pub async fn wait_for<T: Clone + Sync + Send>(
    receiver: &watch::Receiver<T>,
    mut wish: impl FnMut(&T) -> bool,
) -> T {
    let mut receiver = receiver.clone();
    let seen = tokio::time::timeout(Duration::from_mins(1), receiver.wait_for(|held| wish(held)));
    let held = seen.await.expect("what was waited for did not happen");
    held.expect("the publisher has ended").clone()
}

/// Runs all tasks until none can proceed, without advancing the time.
pub async fn idle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}
