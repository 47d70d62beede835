//! Kubernetes API as JSON, for objects and conditions, with all rights.
//!
//! Uses `kubectl proxy`, which adds the credentials. Knows no kind of object.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Upper bound for a condition in the cluster to become true on a busy machine.
pub const TIMEOUT: Duration = Duration::from_mins(2);

/// Client of the API server.
#[derive(Debug, Clone)]
pub struct Api {
    root: String,
    agent: Agent,
}

impl Api {
    pub(super) fn new(address: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT.saturating_mul(2)))
            .build();
        Self {
            root: format!("http://{address}"),
            agent: config.into(),
        }
    }

    /// Returns the host and port where the API server needs no credentials.
    pub fn address(&self) -> &str {
        self.root.trim_start_matches("http://")
    }

    /// Returns the object or list at `path`, such as `/api/v1/namespaces/x/pods`.
    pub fn get(&self, path: &str) -> Result<Value> {
        let sent = self.agent.get(self.url(path)).call();
        answer(sent).with_context(|| format!("cannot GET {path}"))
    }

    /// Returns the text at `path`, such as a log.
    pub fn text(&self, path: &str) -> Result<String> {
        let sent = self.agent.get(self.url(path)).call();
        good(sent)
            .and_then(|mut response| Ok(response.body_mut().read_to_string()?))
            .with_context(|| format!("cannot GET {path}"))
    }

    /// Creates an object in a collection and returns it as the API server stored it.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        let sent = self.agent.post(self.url(collection)).send_json(object);
        answer(sent).with_context(|| format!("cannot create in {collection}: {object}"))
    }

    /// Replaces an object.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        let sent = self.agent.put(self.url(path)).send_json(object);
        answer(sent).with_context(|| format!("cannot replace {path}"))
    }

    /// Changes some fields of an object by a JSON merge patch.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Value> {
        let sent = self
            .agent
            .patch(self.url(path))
            .header("content-type", "application/merge-patch+json")
            .send(fields.to_string());
        answer(sent).with_context(|| format!("cannot patch {path}"))
    }

    /// Deletes an object. `path` may have a query such as `?gracePeriodSeconds=0`.
    pub fn delete(&self, path: &str) -> Result<Value> {
        let sent = self.agent.delete(self.url(path)).call();
        answer(sent).with_context(|| format!("cannot delete {path}"))
    }

    /// Calls `look` at every change of one object of a collection until it returns `Ok`.
    ///
    /// `look` gets `ADDED`, `MODIFIED` or `DELETED` and the object. Fails with the last error of `look` after [`TIMEOUT`].
    pub fn watch<T>(
        &self,
        collection: &str,
        name: &str,
        mut look: impl FnMut(&str, &Value) -> Result<T>,
    ) -> Result<T> {
        let start = Instant::now();
        let selected = format!("{collection}?fieldSelector=metadata.name%3D{name}");
        loop {
            let now = self.get(&selected)?;
            let mut last = match items(&now).next().map(|object| look("ADDED", object)) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => error,
                None => anyhow!("there is no {name} in {collection}"),
            };
            let left = TIMEOUT.saturating_sub(start.elapsed()).as_secs().max(1);
            // A watch without a version waits for a progress notification, which etcd before 3.4.25 never sends.
            let version = now
                .pointer("/metadata/resourceVersion")
                .and_then(Value::as_str)
                .context("a list has no version")?;
            let query =
                format!("{selected}&watch=true&resourceVersion={version}&timeoutSeconds={left}");
            let stream = good(self.agent.get(self.url(&query)).call())
                .with_context(|| format!("cannot watch {collection}"))?;
            for line in BufReader::new(stream.into_body().into_reader()).lines() {
                let event: Value = serde_json::from_str(&line?).context("an event is no JSON")?;
                let kind = event.get("type").and_then(Value::as_str);
                let object = event.get("object").context("an event has no object")?;
                match kind {
                    // The API server no longer has the history from this version.
                    Some("ERROR") => break,
                    Some(kind) => match look(kind, object) {
                        Ok(found) => return Ok(found),
                        Err(error) => last = error,
                    },
                    None => bail!("an event has no type"),
                }
            }
            if start.elapsed() >= TIMEOUT.saturating_sub(Duration::from_secs(1)) {
                return Err(last).with_context(|| format!("not within {TIMEOUT:?}"));
            }
        }
    }

    /// Returns each version of an object after `version`, up to the current one.
    pub fn versions(&self, collection: &str, name: &str, version: &str) -> Result<Vec<Value>> {
        let now = self.get(&format!("{collection}/{name}"))?;
        let is_last = |object: &Value| {
            object.pointer("/metadata/resourceVersion") == now.pointer("/metadata/resourceVersion")
        };
        let mut versions = Vec::new();
        if now.pointer("/metadata/resourceVersion") == Some(&version.into()) {
            return Ok(versions);
        }
        let query = format!(
            "{collection}?fieldSelector=metadata.name%3D{name}&watch=true&resourceVersion={version}&timeoutSeconds=60"
        );
        let stream = good(self.agent.get(self.url(&query)).call())
            .with_context(|| format!("cannot watch {collection}"))?;
        for line in BufReader::new(stream.into_body().into_reader()).lines() {
            let mut event: Value = serde_json::from_str(&line?).context("an event is no JSON")?;
            let object = event
                .get_mut("object")
                .context("an event has no object")?
                .take();
            versions.push(object);
            if versions.last().is_some_and(is_last) {
                return Ok(versions);
            }
        }
        bail!("the versions of {name} since {version} are not all there")
    }

    /// Calls `look` for each change in a collection after `version`, for this many seconds; advances `version`.
    ///
    /// `look` gets `ADDED`, `MODIFIED` or `DELETED` and the object, for each version of each object.
    pub fn changes(
        &self,
        collection: &str,
        version: &mut String,
        seconds: u32,
        mut look: impl FnMut(&str, &Value),
    ) -> Result<()> {
        let query =
            format!("{collection}?watch=true&resourceVersion={version}&timeoutSeconds={seconds}");
        let stream = good(self.agent.get(self.url(&query)).call())
            .with_context(|| format!("cannot watch {collection}"))?;
        for line in BufReader::new(stream.into_body().into_reader()).lines() {
            let event: Value = serde_json::from_str(&line?).context("an event is no JSON")?;
            let kind = event.get("type").and_then(Value::as_str);
            let object = event.get("object").context("an event has no object")?;
            let (Some(kind @ ("ADDED" | "MODIFIED" | "DELETED")), Some(now)) =
                (kind, object.pointer("/metadata/resourceVersion"))
            else {
                bail!("versions of {collection} after {version} are lost: {event}");
            };
            look(kind, object);
            now.as_str().unwrap_or_default().clone_into(version);
        }
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }
}

type Sent = Result<Response<Body>, ureq::Error>;

fn good(sent: Sent) -> Result<Response<Body>> {
    let mut response = sent?;
    if !response.status().is_success() {
        let text = response.body_mut().read_to_string().unwrap_or_default();
        bail!("{}: {text}", response.status());
    }
    Ok(response)
}

fn answer(sent: Sent) -> Result<Value> {
    let text = good(sent)?.body_mut().read_to_string()?;
    ensure!(!text.is_empty(), "the answer is empty");
    serde_json::from_str(&text).context("the answer is no JSON")
}

/// Returns the objects of a list.
pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}
