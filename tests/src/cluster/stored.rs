//! Each version of each object, from etcd. The API server loses the versions from before its own start.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

/// Client of etcd's watch API.
#[derive(Debug, Clone)]
pub struct Stored {
    watch: String,
}

impl Stored {
    pub(super) fn new(address: &str) -> Self {
        Self {
            watch: format!("http://{address}/v3/watch"),
        }
    }

    /// Calls `look` for each change of a resource, such as `akri.sh/instances`, after `version`, during `lasting`; advances `version`.
    ///
    /// `look` gets `MODIFIED` or `DELETED` and the object, for each version of each object, which has no `resourceVersion`.
    pub fn changes(
        &self,
        resource: &str,
        version: &mut String,
        lasting: Duration,
        mut look: impl FnMut(&str, &Value),
    ) -> Result<()> {
        let start = version.parse::<u64>().context("a version is no number")? + 1;
        // The next character after the slash ends the range.
        let [from, to] =
            ['/', '0'].map(|end| STANDARD.encode(format!("/registry/{resource}{end}")));
        let request = json!({"create_request":
            {"key": from, "range_end": to, "start_revision": start.to_string(), "prev_kv": true}});
        let agent: Agent = Agent::config_builder()
            .timeout_global(Some(lasting))
            .build()
            .into();
        let stream = agent.post(&self.watch).send_json(&request);
        let stream = stream.context("cannot watch etcd")?.into_body();
        for line in BufReader::new(stream.into_reader()).lines() {
            // The time is over, or etcd has ended.
            let Ok(line) = line else {
                break;
            };
            let Ok(answer) = serde_json::from_str::<Value>(&line) else {
                break;
            };
            if answer.pointer("/result/canceled") == Some(&true.into()) {
                bail!("versions of {resource} after {version} are lost: {line}");
            }
            let events = answer.pointer("/result/events").and_then(Value::as_array);
            for event in events.into_iter().flatten() {
                let is_deleted = event.get("type").is_some_and(|kind| kind == "DELETE");
                let (kind, place) = if is_deleted {
                    ("DELETED", "/prev_kv/value")
                } else {
                    ("MODIFIED", "/kv/value")
                };
                let value = event.pointer(place).and_then(Value::as_str);
                let value = STANDARD.decode(value.context("an event has no value")?)?;
                look(kind, &serde_json::from_slice(&value)?);
                let now = event.pointer("/kv/mod_revision").and_then(Value::as_str);
                now.context("an event has no version")?.clone_into(version);
            }
        }
        Ok(())
    }
}
