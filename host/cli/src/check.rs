//! `leafhost check`: reads Configurations, handlers and grants as the agent does and reports every problem.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use leafhost_cdi::class_problem;
use leafhost_core::grants_file;
use leafhost_core::ports::SourceProblem;
use leafhost_core::problem::Problem;
use leafhost_core::text;
use leafhost_core::yaml;
use leafhost_files::{Document, Reading, check_file, check_folder};
use leafhost_grants::Grants;

use crate::args::{CheckArgs, CompilerArgs};
use crate::failure::AlreadyReported;
use crate::runtime::block_on;
use crate::terminal::{self, Paint, Tone, count};

mod handlers;

use handlers::{remarks, validate};

pub fn run(args: &CheckArgs) -> Result<()> {
    let findings = block_on(check(args))?;
    let paint = Paint::stdout();
    let mut text = String::new();
    for (tone, label, found) in [
        (Tone::Bad, "", &findings.problems),
        (Tone::Warning, "note: ", &findings.notes),
        (Tone::Faint, "skipped: ", &findings.skipped),
    ] {
        for line in found {
            text.push_str(&paint.apply(tone, &format!("{label}{line}")));
            text.push('\n');
        }
    }
    let found = match findings.problems.len() {
        0 => "no problem".to_owned(),
        number => count(number, "problem"),
    };
    let configurations = count(findings.configurations, "Configuration");
    let handlers = count(findings.handlers, "handler");
    terminal::print(&text)?;
    let skipped = findings.skipped.len();
    let notes = findings.notes.len() + skipped;
    let is_refused = args.strict && notes > 0;
    let rest = if is_refused {
        format!(", and {}, which --strict refuses", count(notes, "note"))
    } else if skipped > 0 {
        format!("; {} skipped", count(skipped, "check"))
    } else {
        String::new()
    };
    terminal::print(&format!(
        "{configurations} and {handlers} checked: {found}{rest}\n"
    ))?;
    if findings.problems.is_empty() && !is_refused {
        Ok(())
    } else {
        Err(AlreadyReported.into())
    }
}

/// Result of a check.
#[derive(Debug, Default)]
struct Findings {
    /// Number of usable Configurations.
    configurations: usize,
    /// Number of handlers that load.
    handlers: usize,
    /// Problems, one line each.
    problems: Vec<String>,
    /// Warnings and remarks.
    notes: Vec<String>,
    /// Details that could not be checked.
    skipped: Vec<String>,
}

/// Items to check.
#[derive(Debug, Default)]
struct Plan {
    /// Configurations, each with `true` if all handlers of its agent are available.
    configurations: Vec<(Document, bool)>,
    /// Components that must load: those that were named, and those in a named standalone folder.
    components: BTreeSet<PathBuf>,
    /// Folders with further handlers for validating details; these may fail to load.
    folders: BTreeSet<PathBuf>,
    problems: Vec<SourceProblem>,
    warnings: Vec<SourceProblem>,
}

async fn check(args: &CheckArgs) -> Result<Findings> {
    let namespaces = args.properties_namespaces.iter().cloned().collect();
    let mut plan = Plan::default();
    for path in &args.paths {
        plan.add(path, &namespaces)?;
    }
    plan.folders
        .extend(args.folders.handlers_dir.iter().cloned());
    let is_file = |(_, complete): &(Document, bool)| !complete;
    let installed = installed_handlers().filter(|_| plan.configurations.iter().any(is_file));
    let mut problems = plan.problems;
    let mut notes: Vec<String> = plan.warnings.iter().map(ToString::to_string).collect();
    let mut skipped = Vec::new();
    let output = (&mut problems, &mut notes);
    let folders = plan.folders.into_iter().chain(installed);
    let handlers = handlers::load(plan.components, folders, &args.compiler, output).await?;
    for (found, complete) in &plan.configurations {
        notes.extend(not_for_cdi(found));
        let name = &found.configuration.handler;
        if let Some(handler) = handlers.get(name) {
            problems.extend(validate(handler.as_ref(), found).await);
            notes.extend(remarks(handler.as_ref(), found).await);
            continue;
        }
        let known: Vec<&str> = handlers.keys().map(String::as_str).collect();
        let message = match (text::nearest(name, known.iter().copied()), complete) {
            (Some(suggestion), true) => {
                format!("no handler is named {name:?}; did you mean {suggestion}?")
            }
            (Some(suggestion), false) => format!(
                "no handler is named {name:?}; did you mean {suggestion}? If it is another one, name its folder with --handlers-dir DIR"
            ),
            (None, true) if known.is_empty() => {
                format!("no handler is named {name:?}; there is none that can be loaded")
            }
            (None, true) => format!(
                "no handler is named {name:?}; there is {}",
                known.join(", ")
            ),
            (None, false) => {
                skipped.push(format!(
                    "{}: discoveryDetails of {} not checked: no handler {name:?} found; name its folder with --handlers-dir DIR",
                    found.file,
                    found.configuration.key
                ));
                continue;
            }
        };
        let field = "spec.discoveryHandler.name";
        problems.push(SourceProblem {
            line: found.line_of(field),
            ..problem(&found.file, field, message)
        });
    }
    problems.sort();
    problems.dedup();
    Ok(Findings {
        configurations: plan.configurations.len(),
        handlers: handlers.len(),
        problems: problems.iter().map(ToString::to_string).collect(),
        notes,
        skipped,
    })
}

/// Returns the note on a Configuration whose devices no container runtime can name.
fn not_for_cdi(found: &Document) -> Option<String> {
    let configuration = &found.configuration.key;
    class_problem(configuration.name())?;
    let configuration = configuration.clone();
    let message = Problem::InvalidCdiClass { configuration }.to_string();
    let note = SourceProblem {
        line: found.line_of("metadata.name"),
        ..problem(&found.file, "", message)
    };
    Some(note.to_string())
}

/// Validates the details of a cluster's Configurations with the available handlers and returns the problems. Each
/// Configuration is given by name and as YAML.
pub async fn details(
    configurations: Vec<(String, String)>,
    handlers_dirs: &[PathBuf],
    compiler: &CompilerArgs,
) -> Result<Vec<String>> {
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let folders = handlers_dirs.iter().cloned().chain(installed_handlers());
    let output = (&mut problems, &mut notes);
    let handlers = handlers::load(BTreeSet::new(), folders, compiler, output).await?;
    for (name, text) in configurations {
        let checked = check_file(&name, &text);
        problems.extend(checked.problems);
        for found in &checked.documents {
            if let Some(handler) = handlers.get(&found.configuration.handler) {
                problems.extend(validate(handler.as_ref(), found).await);
            }
        }
    }
    Ok(problems.iter().map(ToString::to_string).collect())
}

/// Returns the folder of the handlers that were installed with this program, or built with it.
fn installed_handlers() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let installed = program.parent()?.parent()?.join("share/leafhost/handlers");
    if installed.is_dir() {
        return Some(installed);
    }
    // Cargo marks its build folder with this file.
    let mut above = program.ancestors().skip(1);
    let target = above.find(|folder| folder.join("CACHEDIR.TAG").is_file())?;
    Some(target.join("handlers")).filter(|folder| folder.is_dir())
}

/// Returns the folder of the handlers that were built in the source tree of `file`.
fn built_handlers(file: &Path) -> Option<PathBuf> {
    let mut above = file.ancestors().skip(1);
    let tree = above.find(|folder| folder.join("Cargo.lock").is_file())?;
    Some(tree.join("target/handlers")).filter(|folder| folder.is_dir())
}

impl Plan {
    fn add(&mut self, path: &Path, namespaces: &BTreeSet<String>) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let metadata = path
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?;
        if metadata.is_dir() {
            return self.add_folder(path);
        }
        if handlers::is_component(&name) {
            self.components.insert(path.to_owned());
            return Ok(());
        }
        let text = match read(path)? {
            Ok(text) => text,
            Err(problem) => {
                self.problems.push(problem);
                return Ok(());
            }
        };
        let file = path.display().to_string();
        if name.ends_with(grants_file::SUFFIX) {
            self.problems.extend(grants_problems(&file, &text));
            return Ok(());
        }
        let checked = check_file(&file, &text);
        let wrong = checked.invalid_references(namespaces);
        self.problems.extend(wrong);
        self.extend(checked, false);
        if let Ok(path) = path.canonicalize() {
            // Use the handlers next to the file if it is in a standalone folder.
            let above = path.parent().and_then(Path::parent);
            let beside = above.map(|folder| folder.join("handlers"));
            self.folders.extend(beside.filter(|folder| folder.is_dir()));
            self.folders.extend(built_handlers(&path));
        }
        Ok(())
    }

    /// Adds the Configurations and problems of `checked`. `complete` is true if all handlers of their agent are available.
    fn extend(&mut self, checked: Reading, complete: bool) {
        self.problems.extend(checked.problems);
        self.warnings.extend(checked.warnings);
        let documents = checked.documents.into_iter();
        self.configurations
            .extend(documents.map(|one| (one, complete)));
    }

    fn add_folder(&mut self, path: &Path) -> Result<()> {
        let handlers = path.join("handlers");
        let complete = handlers.is_dir();
        if !complete && !path.join("configurations").exists() && has_sources(path)? {
            let message = "is not a folder for `agent --standalone`; check the folder above it, or name the files in it";
            let file = path.display().to_string();
            self.problems.push(problem(&file, "", message.to_owned()));
            return Ok(());
        }
        self.extend(check_folder(path), complete);
        if complete {
            let components = handlers::components(&handlers)?;
            self.problems.extend(lone_grants(&handlers, &components)?);
            self.components.extend(components);
        }
        Ok(())
    }
}

/// Returns true if Configurations, components or grants files lie in the folder itself.
fn has_sources(folder: &Path) -> Result<bool> {
    let is_source = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_yaml = [".yaml", ".yml"].iter().any(|end| name.ends_with(*end));
        is_yaml || handlers::is_component(&name)
    };
    Ok(handlers::files(folder)?.into_iter().any(is_source))
}

/// Returns the problems of grants files without a component; those of a component are reported when it is loaded.
fn lone_grants(folder: &Path, components: &[PathBuf]) -> Result<Vec<SourceProblem>> {
    let mut problems = Vec::new();
    for path in handlers::files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with(grants_file::SUFFIX) {
            continue;
        }
        let has_component = components.iter().any(|component| {
            let component = component.file_name().unwrap_or_default().to_string_lossy();
            let among = grants_file::among(&component, |file| folder.join(file).exists());
            among == name || grants_file::own(&component) == name
        });
        if !has_component {
            match read(&path)? {
                Ok(text) => problems.extend(grants_problems(&path.display().to_string(), &text)),
                Err(problem) => problems.push(problem),
            }
        }
    }
    Ok(problems)
}

/// Reads a file; returns its text, or the problem of one that is not text.
fn read(path: &Path) -> Result<Result<String, SourceProblem>> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {file}"))?;
    let text = yaml::decode(&bytes).map(str::to_owned);
    Ok(text.map_err(|mistake| SourceProblem {
        line: mistake.line,
        ..SourceProblem::new(file, mistake.message)
    }))
}

fn grants_problems(file: &str, text: &str) -> Vec<SourceProblem> {
    let wrong = Grants::parse(text).err().unwrap_or_default();
    wrong
        .into_iter()
        .map(|wrong| problem(file, &wrong.path, wrong.message))
        .collect()
}

fn problem(source: &str, path: &str, message: String) -> SourceProblem {
    SourceProblem {
        path: path.to_owned(),
        ..SourceProblem::new(source, message)
    }
}

#[cfg(test)]
mod tests;
