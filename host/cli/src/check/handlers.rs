//! Available handlers, loaded with their grants as the agent does; they validate `discoveryDetails`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_core::ports::{Handler, Loader as _, SourceProblem};
use leafhost_core::session::Explanation;
use leafhost_files::Document;

use super::problem;
use crate::args::CompilerArgs;
use crate::handler::open;

/// Field that handlers check.
const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";

/// Available handlers by name.
pub type Handlers = BTreeMap<String, Arc<dyn Handler>>;

/// Loads the named components and those in the folders. Problems of the latter are ignored, since they are loaded only
/// to validate details.
pub async fn load(
    named: BTreeSet<PathBuf>,
    folders: impl IntoIterator<Item = PathBuf>,
    compiler: &CompilerArgs,
    (problems, notes): (&mut Vec<SourceProblem>, &mut Vec<String>),
) -> Result<Handlers> {
    let mut all: Vec<(PathBuf, bool)> = named.into_iter().map(|path| (path, true)).collect();
    for folder in folders {
        all.extend(components(&folder)?.into_iter().map(|path| (path, false)));
    }
    let mut handlers = Handlers::new();
    if all.is_empty() {
        return Ok(handlers);
    }
    let runtime = open::runtime(compiler, false)?;
    for (path, counts) in all {
        let shown = path.display().to_string();
        let loaded = match open::read(&path, None) {
            Ok(file) => runtime.load(&file).await.map_err(|error| error.message),
            Err(error) => Err(format!("{error:#}")),
        };
        match loaded {
            Ok(handler) => {
                if counts {
                    let warnings = handler.facts().warnings.iter();
                    notes.extend(warnings.map(|warning| format!("{shown}: {warning}")));
                }
                let name = handler.facts().description.name.clone();
                handlers.entry(name).or_insert(handler);
            }
            Err(message) if counts => problems.push(problem(&shown, "", message)),
            Err(_) => {}
        }
    }
    Ok(handlers)
}

/// Returns the problems that a handler finds in the details of a Configuration.
pub async fn validate(handler: &dyn Handler, found: &Document) -> Vec<SourceProblem> {
    match handler.validate(&found.configuration.details).await {
        Ok(wrong) => wrong
            .into_iter()
            .map(|wrong| at_details(found, &wrong.path, wrong.to_string()))
            .collect(),
        Err(fault) => {
            let message = format!("the handler failed to check them: {fault}");
            vec![at_details(found, "", message)]
        }
    }
}

/// Returns the remarks of a handler on the details of a Configuration.
pub async fn remarks(handler: &dyn Handler, found: &Document) -> Vec<String> {
    let remarks = handler.remarks(&found.configuration.details).await;
    let located = |remark: Explanation| {
        let text = format!("{}: {}", remark.subject, remark.reason);
        at_details(found, &remark.subject, text).to_string()
    };
    remarks.into_iter().map(located).collect()
}

/// Creates a problem of a field in a Configuration's details.
fn at_details(found: &Document, field: &str, message: String) -> SourceProblem {
    SourceProblem {
        line: found.line_in_details(field),
        configuration: Some(found.configuration.key.clone()),
        ..problem(&found.file, DETAILS, message)
    }
}

/// Returns the components in a folder, sorted.
pub fn components(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files(folder)?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        is_component(&name.to_string_lossy())
    });
    Ok(files)
}

/// Returns true if a file of that name counts as a component.
pub fn is_component(name: &str) -> bool {
    let stem = name.strip_suffix(".gz").unwrap_or(name);
    !name.starts_with('.') && stem.strip_suffix(".wasm").is_some()
}

/// Returns the files in a folder, sorted.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    Ok(files)
}
