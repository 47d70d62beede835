//! Turns a file into a handler: unpack, inspect, check the grants, compile or load from the cache, link, call `describe`.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::MAX_DETAILS;
use leafhost_core::fault::FaultReason;
use leafhost_core::grants_file;
use leafhost_core::handler::{Description, Digest, HandlerFacts};
use leafhost_core::names::is_handler_name;
use leafhost_core::ports::{Handler, LoadError, Loader, SourceFile};
use leafhost_core::text::{clean, escape};
use leafhost_grants::Grants;
use wasmtime::component::Component;

use crate::Runtime;
use crate::bindings::DiscoveryHandlerPre;
use crate::bindings::leafhost::discovery::types;
use crate::component::{self, Inspection};
use crate::handler::{Guest, LoadedHandler};
use crate::refusal::Refusal;

/// Maximum length of a handler's version, in bytes.
const MAX_VERSION: usize = 64;
/// Maximum length of a handler's summary, in bytes.
const MAX_SUMMARY: usize = 200;

#[async_trait]
impl Loader for Runtime {
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        match self.load_file(file).await {
            Ok(handler) => Ok(Arc::new(handler)),
            Err(refusal) => Err(LoadError {
                source_name: file.name.clone(),
                message: clean(&refusal.message, 8192),
                missing_grants: refusal.missing_grants,
                transient: refusal.is_transient,
            }),
        }
    }
}

impl Runtime {
    async fn load_file(&self, file: &SourceFile) -> Result<LoadedHandler, Refusal> {
        let (source, never) = (file.clone(), self.own_folders.clone());
        let (wasm, inspection, grants) = tokio::task::spawn_blocking(move || {
            let (wasm, inspection) = component::check(&source.bytes)
                .map_err(|error| Refusal::of_file(error.to_string()))?;
            let mut grants = read_grants(&source)?;
            grants.devices.never = never;
            check_grants(&source, &inspection, &grants)?;
            Ok::<_, Refusal>((wasm.into_owned(), inspection, grants))
        })
        .await??;
        let component = self.native(wasm, inspection.digest.clone()).await?;
        let contract = |error: wasmtime::Error| {
            let why = clean(&format!("{error:#}"), 2048);
            Refusal::of_file(format!("the component does not fit the contract: {why}"))
        };
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
        let described = guest.describe(&file.name).await.map_err(|fault| {
            let message = format!("`describe` failed: {fault}");
            match fault.reason {
                // The machine may have been too busy.
                FaultReason::Host | FaultReason::WallTimeout => Refusal::for_now(message),
                _ => Refusal::of_file(message),
            }
        })?;
        let description = check_description(described)
            .map_err(|why| Refusal::of_file(format!("its description is wrong: {why}")))?;
        if let Some(named) = named.filter(|named| *named != description.name) {
            return Err(Refusal::of_file(format!(
                "the component is the handler {:?}, and {} has `name: {named}`; correct that, or remove the component if it is the wrong one",
                description.name,
                grants_file::names(&file.name)
            )));
        }
        let (name, example) = (&description.name, &description.example);
        match guest.look_at(name, example, Some("validate")).await {
            Ok((problems, _)) => {
                if let Some(problem) = problems.first() {
                    warnings.push(format!("the handler refuses its own example: {problem}"));
                }
            }
            Err(fault) => warnings.push(format!("`validate` failed for its own example: {fault}")),
        }
        let facts = HandlerFacts {
            description,
            digest: inspection.digest,
            endpoint: None,
            warnings,
            is_named: guest.grants.name.is_some(),
            most_devices: usize::try_from(guest.grants.limits.devices).unwrap_or(usize::MAX),
            uses_udev: guest.grants.udev.is_some(),
        };
        Ok(LoadedHandler {
            guest: Arc::new(guest),
            facts,
            events: self.events.clone(),
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
        tokio::task::spawn_blocking(move || cache.keep(&engine, &digest, &code)).await?
    }
}

fn read_grants(file: &SourceFile) -> Result<Grants, Refusal> {
    Grants::read(file.grants.as_deref()).map_err(|why| {
        Refusal::of_file(format!(
            "its grants file {}: {why}",
            grants_file::names(&file.name)
        ))
    })
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
    let message = format!(
        "the handler needs the grant{} {}, which {} does not give; `leafhost handler inspect {} --grants` prints a file to start from",
        if missing.len() == 1 { "" } else { "s" },
        missing.join(", "),
        grants_file::names(&file.name),
        file.name
    );
    Err(Refusal {
        missing_grants: missing,
        ..Refusal::of_file(message)
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
