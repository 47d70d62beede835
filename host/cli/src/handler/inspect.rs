//! `leafhost handler inspect`: prints a component's description, imports and required grants.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use leafhost_core::ports::{Loader as _, SourceFile};
use leafhost_grants::Grants;
use leafhost_wasm::{Inspection, suggest};

use super::config_map::packed;
use super::open;
use crate::age::bytes;
use crate::args::InspectArgs;
use crate::runtime::block_on;
use crate::terminal::{self, Paint, Tone};

pub fn run(args: &InspectArgs) -> Result<()> {
    let file = open::read(&args.file, None)?;
    let inspection = leafhost_wasm::inspect(&file.bytes)
        .with_context(|| format!("cannot use {}", args.file.display()))?;
    if args.grants {
        return Ok(terminal::print(&suggest(&inspection))?);
    }
    let mut text = String::new();
    surface(&mut text, &file, &inspection)?;
    terminal::print(&text)?;
    // `describe` needs no grants, but loading does, so the trial gets the grants that the component asks for.
    let runtime = open::runtime(&args.compiler, false)?;
    let trial = SourceFile {
        grants: Some(suggest(&inspection).into()),
        ..file.clone()
    };
    let handler = block_on(async { Ok(runtime.load(&trial).await?) })?;
    let description = &handler.facts().description;
    let mut text = String::new();
    let paint = Paint::stdout();
    field(&mut text, "Name", &description.name);
    field(&mut text, "Version", &description.version);
    field(&mut text, "Finds", &description.summary);
    let shared = if description.shared {
        "shared: visible from many nodes"
    } else {
        "local: visible from this node only"
    };
    field(&mut text, "Devices", shared);
    for warning in &handler.facts().warnings {
        field(&mut text, "Warning", &paint.apply(Tone::Warning, warning));
    }
    if description.example.is_empty() {
        field(&mut text, "Example", "none");
    } else {
        text.push_str("Example details:\n");
        for line in description.example.lines() {
            writeln!(text, "  {}", terminal::escape(line))?;
        }
    }
    Ok(terminal::print(&text)?)
}

fn surface(text: &mut String, file: &SourceFile, inspection: &Inspection) -> Result<()> {
    field(text, "Digest", &format!("sha256:{}", inspection.digest.0));
    let packed = match inspection.packed_size {
        Some(packed) => size(packed),
        None => size(packed(&file.bytes)?.len()),
    };
    field(
        text,
        "Size",
        &format!("{}, {packed} gzipped", size(inspection.size)),
    );
    field(text, "Contract", &inspection.handler);
    let (wasi, ours): (Vec<&str>, Vec<&str>) = inspection
        .imports
        .iter()
        .map(String::as_str)
        .partition(|import| import.starts_with("wasi:"));
    // Every component imports these interfaces; the packages are enough.
    let wasi: BTreeSet<&str> = wasi
        .iter()
        .filter_map(|import| import.split('/').next())
        .collect();
    let wasi: Vec<&str> = wasi.into_iter().collect();
    field(text, "Imports", &or_none(&ours.join(", ")));
    field(text, "WASI", &or_none(&wasi.join(", ")));
    let given = match (inspection.grants.as_slice(), &file.grants) {
        ([], _) => "none".to_owned(),
        (needed, Some(_)) => needed.join(", "),
        (needed, None) => format!(
            "{} (no grants file next to it; --grants prints one)",
            needed.join(", ")
        ),
    };
    field(text, "Needs grants", &given);
    for problem in grants_problems(file.grants.as_deref().unwrap_or_default()) {
        let problem = Paint::stdout().apply(Tone::Warning, &problem);
        field(text, "Problem", &problem);
    }
    Ok(())
}

/// Lists the problems of the grants file next to the component.
fn grants_problems(text: &str) -> Vec<String> {
    let problems = Grants::parse(text).err().unwrap_or_default().into_iter();
    problems
        .map(|problem| format!("its grants file: {problem}"))
        .collect()
}

fn field(text: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:<14}{value}", format!("{name}:"));
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none" } else { text }.to_owned()
}

fn size(size: usize) -> String {
    bytes(u64::try_from(size).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_grants_is_shown() {
        let wrong = grants_problems("devices: {env: ['?D_PRELOAD'], mounts: ['/etc/*:ro']}");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("devices.mounts[0]"), "{wrong:?}");
        assert!(wrong[1].contains("devices.env[0]"), "{wrong:?}");
        assert_eq!(grants_problems(""), Vec::<String>::new());
    }
}
