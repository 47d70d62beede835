//! Completions of names, which are requested from the agent.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;

use crate::folders::User;
use crate::runtime::block_on;
use crate::status::{client, tables};

/// Maximum time that a completion waits for the agent.
const COMPLETION: Duration = Duration::from_secs(1);

/// Returns the names of the agent's Configurations that begin with `begun`, or of its Instances after `instance`.
pub fn names(begun: &OsStr) -> Vec<CompletionCandidate> {
    let agent = std::env::var("LEAFHOST_AGENT").ok();
    let state_dir = std::env::var_os("LEAFHOST_STATE_DIR").map(PathBuf::from);
    let search = client::Search::new(agent.as_deref(), state_dir.as_deref(), &User::current());
    let Ok(Some(answer)) = block_on(search.status_within(None, COMPLETION)) else {
        return Vec::new();
    };
    let status = answer.status;
    let names: Vec<String> = if std::env::args_os().any(|word| word == "instance") {
        let instances = status.instances.iter().map(|one| &one.metadata);
        let names = instances.map(|one| tables::qualified(&one.namespace, &one.name));
        names.collect()
    } else {
        let views = status.configurations.iter();
        let names = views.map(|view| tables::qualified(&view.namespace, &view.name));
        names.collect()
    };
    names
        .into_iter()
        .filter(|name| begun.to_str().is_some_and(|begun| name.starts_with(begun)))
        .map(CompletionCandidate::new)
        .collect()
}
