//! Audit log of the API server: who sent which request, and how often.
//!
//! It has the requests for Configurations, Instances, the reports of nodes, Events, `ConfigMap`s and Secrets, the changes of pods, jobs and services,
//! and the Bindings of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Returns the audit policy of the API server.
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

/// Kind of request. Equal ones are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Verb: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// Resource, such as `instances`; a subresource follows a `/`.
    pub resource: String,
    /// Namespace of the object; empty for a cluster-scoped one.
    pub namespace: String,
    /// Name of the object; empty for a collection.
    pub name: String,
    /// Name of the user.
    pub user: String,
    /// Node to which the user's token is bound; empty if it is bound to none.
    pub node: String,
    /// HTTP status of the response.
    pub code: u64,
}

impl Request {
    /// Returns true if the request changes an object.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&&*self.verb)
    }
}

/// Request with its times in RFC 3339, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// Kind of the request.
    pub request: Request,
    /// Time at which the API server received the request.
    pub received: String,
    /// Time of the response; for a watch, the time at which the response began.
    pub answered: String,
}

/// Audit log of an API server.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
}

impl Audit {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the current end of the log, for [`Self::since`].
    pub fn now(&self) -> Result<u64> {
        let metadata = std::fs::metadata(&self.path);
        Ok(metadata
            .with_context(|| format!("cannot read {}", self.path.display()))?
            .len())
    }

    /// Counts the requests that were answered since `moment`. A watch counts once, when its response begins.
    pub fn since(&self, moment: u64) -> Result<BTreeMap<Request, usize>> {
        let mut counts = BTreeMap::new();
        self.read(moment, |event| {
            *counts.entry(request(event)).or_default() += 1;
        })?;
        Ok(counts)
    }

    /// Returns the requests since `moment` with their times, in the order of the log.
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

    /// Calls `look` once for each request that was logged since `moment`.
    fn read(&self, moment: u64, mut look: impl FnMut(&Value)) -> Result<()> {
        let mut log = File::open(&self.path)
            .with_context(|| format!("cannot open {}", self.path.display()))?;
        log.seek(SeekFrom::Start(moment.saturating_sub(1)))?;
        let mut seen = BTreeSet::new();
        let mut log = BufReader::new(log);
        let mut line = String::new();
        if moment > 0 {
            // A line that was half written at `moment` belongs to the time before.
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
