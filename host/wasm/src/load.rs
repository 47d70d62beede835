//! Turns a file into a handler: unpack, inspect, check the grants, compile or load from the cache, link, call `describe`.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::MAX_DETAILS;
use leafhost_core::fault::FaultReason;
use leafhost_core::grants_file;
use leafhost_core::handler::{Description, Digest};
use leafhost_core::names::is_handler_name;
use leafhost_core::ports::{Handler, LoadError, Loader, SourceFile};
use leafhost_core::text::{clean, escape};
use leafhost_grants::Grants;
use wasmtime::component::Component;

use crate::Runtime;
use crate::bindings::DiscoveryHandlerPre;
use crate::bindings::leafhost::discovery::types;
use crate::cache::CacheError;
use crate::compiler::CompileError;
use crate::component::{self, ComponentError, Inspection};
use crate::handler::{Guest, LoadedHandler};

/// Maximum length of a handler's version, in bytes.
const MAX_VERSION: usize = 64;
/// Maximum length of a handler's summary, in bytes.
const MAX_SUMMARY: usize = 200;

/// Reason why a file does not become a handler.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Component(#[from] ComponentError),
    #[error("its grants file {0}")]
    Grants(String),
    #[error("the handler needs the grant{} {}, which {file} does not give; `leafhost handler inspect {source_name} --grants` prints a file to start from",
        if missing.len() == 1 { "" } else { "s" }, missing.join(", "))]
    MissingGrants {
        missing: Vec<String>,
        file: String,
        source_name: String,
    },
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(
        "the compiler's output is not for this agent ({0}); install leafhost and leafhost-compile of one version together"
    )]
    Foreign(String),
    #[error(
        "the component has more instances, memories or tables than a handler may have: {0}; build it as one component"
    )]
    Large(String),
    #[error("the component does not fit the contract: {0}")]
    Contract(String),
    #[error("`describe` failed: {0}")]
    Describe(leafhost_core::fault::Fault),
    #[error("its description is wrong: {0}")]
    Description(String),
    #[error(
        "the component is the handler {is:?}, and {file} has `name: {named}`; correct that, or remove the component if it is not the one you meant"
    )]
    OtherName {
        is: String,
        named: String,
        file: String,
    },
    #[error("the task that loaded it panicked: {0}; this is a bug, see the log")]
    Task(#[from] tokio::task::JoinError),
}

impl Refusal {
    fn into_error(self, source_name: &str) -> LoadError {
        let transient = match &self {
            Self::Compile(error) => error.is_transient(),
            // The machine may have been too busy.
            Self::Describe(fault) => {
                matches!(fault.reason, FaultReason::Host | FaultReason::WallTimeout)
            }
            Self::Cache(_) | Self::Foreign(_) | Self::Task(_) => true,
            _ => false,
        };
        LoadError {
            source_name: source_name.to_owned(),
            message: clean(&self.to_string(), 8192),
            missing_grants: match self {
                Self::MissingGrants { missing, .. } => missing,
                _ => Vec::new(),
            },
            transient,
        }
    }
}

#[async_trait]
impl Loader for Runtime {
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        let handler = self
            .load_file(file)
            .await
            .map_err(|refusal| refusal.into_error(&file.name))?;
        Ok(Arc::new(handler))
    }
}

impl Runtime {
    async fn load_file(&self, file: &SourceFile) -> Result<LoadedHandler, Refusal> {
        let (source, never) = (file.clone(), self.own_folders.clone());
        let (wasm, inspection, grants) = tokio::task::spawn_blocking(move || {
            let checked = component::check(&source.bytes)?;
            let mut grants = read_grants(&source)?;
            grants.devices.never = never;
            check_grants(&source, &checked.inspection, &grants)?;
            Ok::<_, Refusal>((checked.bytes.into_owned(), checked.inspection, grants))
        })
        .await??;
        let component = self.native(wasm, inspection.digest.clone()).await?;
        let contract =
            |error: wasmtime::Error| Refusal::Contract(clean(&format!("{error:#}"), 2048));
        let pre = self.linker.instantiate_pre(&component).map_err(contract)?;
        let pre = DiscoveryHandlerPre::new(pre).map_err(contract)?;
        let mut warnings = grants.warnings();
        let named = grants.name.clone();
        let guest = Guest::new(
            self.host.clone(),
            pre,
            grants,
            &self.network,
            self.names.of_another(),
            file.name.clone(),
        );
        let described = guest
            .describe(&file.name)
            .await
            .map_err(Refusal::Describe)?;
        let description = check_description(described).map_err(Refusal::Description)?;
        if let Some(named) = named.filter(|named| *named != description.name) {
            return Err(Refusal::OtherName {
                is: description.name,
                named,
                file: grants_file::names(&file.name),
            });
        }
        match guest.check_example(&description).await {
            Ok(problems) => {
                if let Some(problem) = problems.first() {
                    warnings.push(format!(
                        "the handler refuses its own example: {}{}{}",
                        problem.path,
                        if problem.path.is_empty() { "" } else { ": " },
                        problem.message
                    ));
                }
            }
            Err(fault) => warnings.push(format!("`validate` failed for its own example: {fault}")),
        }
        Ok(LoadedHandler {
            guest: Arc::new(guest),
            description,
            digest: inspection.digest,
            warnings,
            events: self.events.clone(),
            network: self.network.clone(),
        })
    }

    /// Returns native code from the cache, or compiles it.
    async fn native(&self, wasm: Vec<u8>, digest: Digest) -> Result<Component, Refusal> {
        let (cache, engine) = (self.cache.clone(), self.host.engine.clone());
        let wanted = digest.clone();
        let hit = tokio::task::spawn_blocking(move || cache.load(&engine, &wanted)).await?;
        if let Some(component) = hit {
            return Ok(component);
        }
        let begin = tokio::time::Instant::now();
        let code = self.compiler.compile(&wasm).await?;
        tracing::debug!(digest = digest.short(), took = ?begin.elapsed(), "compiled");
        let (cache, engine) = (self.cache.clone(), self.host.engine.clone());
        tokio::task::spawn_blocking(move || cache.keep(&engine, &digest, &code))
            .await??
            .map_err(|error| {
                let why = format!("{error:#}");
                // wasmtime has no error type for this case.
                let is_large = why.contains("pooling allocator");
                let why = clean(&why, 1024);
                if is_large {
                    Refusal::Large(why)
                } else {
                    Refusal::Foreign(why)
                }
            })
    }
}

fn read_grants(file: &SourceFile) -> Result<Grants, Refusal> {
    Grants::read(file.grants.as_deref())
        .map_err(|why| Refusal::Grants(format!("{}: {why}", grants_file::names(&file.name))))
}

fn check_grants(
    file: &SourceFile,
    inspection: &Inspection,
    grants: &Grants,
) -> Result<(), Refusal> {
    let missing: Vec<String> = inspection
        .grants
        .iter()
        .filter(|grant| !grants.gives(grant))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Refusal::MissingGrants {
        missing,
        file: grants_file::names(&file.name),
        source_name: file.name.clone(),
    })
}

fn check_description(described: types::Description) -> Result<Description, String> {
    let types::Description {
        name,
        version,
        summary,
        example,
        shared,
    } = described;
    if !is_handler_name(&name) {
        return Err(format!(
            "the name {:?} is not 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit",
            clean(&name, 128)
        ));
    }
    let one_line =
        |text: &str, most: usize| text.len() <= most && !text.chars().any(char::is_control);
    if !one_line(&version, MAX_VERSION) {
        return Err(format!(
            "the version is not one line of at most {MAX_VERSION} bytes"
        ));
    }
    if !one_line(&summary, MAX_SUMMARY) {
        return Err(format!(
            "the summary is not one line of at most {MAX_SUMMARY} bytes"
        ));
    }
    if example.len() > MAX_DETAILS {
        return Err(format!(
            "the example has more than {} KiB",
            MAX_DETAILS >> 10
        ));
    }
    Ok(Description {
        name,
        version: escape(&version).into_owned(),
        summary: escape(&summary).into_owned(),
        example,
        shared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str, summary: &str) -> types::Description {
        types::Description {
            name: name.into(),
            version: "1".into(),
            summary: summary.into(),
            example: String::new(),
            shared: true,
        }
    }

    #[test]
    fn a_description_is_checked() {
        assert!(check_description(described("debugEcho", "Finds")).is_ok());
        for (name, summary, words) in [
            ("", "", "name"),
            ("a b", "", "name"),
            ("a", "two\nlines", "summary"),
            ("a", &"x".repeat(201), "summary"),
        ] {
            let error = check_description(described(name, summary)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut odd = described("a", "Finds\u{202e}sdniF");
        odd.version = "1\u{200b}".into();
        let shown = check_description(odd).unwrap();
        assert_eq!(
            (shown.version.as_str(), shown.summary.as_str()),
            ("1\\u{200b}", "Finds\\u{202e}sdniF")
        );
    }
}
