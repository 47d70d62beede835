//! The API server's audit log: who asked for what, and how often.
//!
//! It has the requests for Configurations, Instances, the reports of nodes, Events, `ConfigMap`s and Secrets, the changes of pods,
//! jobs and services, and the Bindings of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What the API server is to write down.
pub(super) fn policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "resources": [
                {"group": "akri.sh"},
                {"group": "leafhost.dev"},
                {"group": "events.k8s.io"},
                {"group": "", "resources": ["configmaps", "secrets"]},
            ]},
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"], "resources": [
                {"group": "", "resources": ["pods", "pods/binding", "services"]},
                {"group": "batch", "resources": ["jobs"]},
            ]},
            {"level": "None"},
        ],
    })
    .to_string()
}

/// A kind of request. Equal ones are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// Such as `instances`; a subresource follows a `/`.
    pub resource: String,
    /// The object's namespace; empty without one.
    pub namespace: String,
    /// The object's name; empty for a collection.
    pub name: String,
    /// The user.
    pub user: String,
    /// The node to which the user's token is bound; empty without one.
    pub node: String,
    /// The answer's HTTP status.
    pub code: u64,
}

impl Request {
    /// Whether it asks for a change of an object.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&&*self.verb)
    }
}

/// A request with its times, as RFC 3339 has them, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// The request.
    pub request: Request,
    /// When the API server received it.
    pub received: String,
    /// When it had answered; of a watch when it began to.
    pub answered: String,
}

/// The log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
}

impl Audit {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path }
    }

    /// A moment, for [`Self::since`].
    pub fn now(&self) -> Result<u64> {
        let metadata = std::fs::metadata(&self.path);
        Ok(metadata
            .with_context(|| format!("cannot read {}", self.path.display()))?
            .len())
    }

    /// The requests that were answered since a moment, each with how often. A watch is one from when it begins.
    pub fn since(&self, moment: u64) -> Result<BTreeMap<Request, usize>> {
        let mut counts = BTreeMap::new();
        self.read(moment, |event| {
            *counts.entry(request(event)).or_default() += 1;
        })?;
        Ok(counts)
    }

    /// The same one by one with their times, in the order of the log.
    pub fn timed(&self, moment: u64) -> Result<Vec<Timed>> {
        let mut timed = Vec::new();
        self.read(moment, |event| {
            timed.push(Timed {
                request: request(event),
                received: text(event, "/requestReceivedTimestamp"),
                answered: text(event, "/stageTimestamp"),
            });
        })?;
        Ok(timed)
    }

    /// Reads what was written since a moment, each request once.
    fn read(&self, moment: u64, mut look: impl FnMut(&Value)) -> Result<()> {
        let mut log = File::open(&self.path)
            .with_context(|| format!("cannot open {}", self.path.display()))?;
        log.seek(SeekFrom::Start(moment.saturating_sub(1)))?;
        let mut seen = BTreeSet::new();
        let mut log = BufReader::new(log);
        let mut line = String::new();
        if moment > 0 {
            // A line that was half written at that moment belongs to the time before.
            log.skip_until(b'\n')?;
        }
        // The last line may be half written.
        while log.read_line(&mut line)? > 0 && line.ends_with('\n') {
            let event: Value = serde_json::from_str(&line).context("a line is no JSON")?;
            if seen.insert(text(&event, "/auditID")) {
                look(&event);
            }
            line.clear();
        }
        Ok(())
    }
}

fn request(event: &Value) -> Request {
    let (resource, subresource) = (
        text(event, "/objectRef/resource"),
        text(event, "/objectRef/subresource"),
    );
    Request {
        verb: text(event, "/verb"),
        resource: match &*subresource {
            "" => resource,
            subresource => format!("{resource}/{subresource}"),
        },
        namespace: text(event, "/objectRef/namespace"),
        name: text(event, "/objectRef/name"),
        user: text(event, "/user/username"),
        node: text(
            event,
            "/user/extra/authentication.kubernetes.io~1node-name/0",
        ),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
    }
}

fn text(event: &Value, pointer: &str) -> String {
    let found = event.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}
