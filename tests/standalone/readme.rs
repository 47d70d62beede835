//! README's camera in 60 seconds, followed literally as far as this machine can: without a camera and without podman.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::program::{self, source_tree};
use leafhost_tests::wait::eventually;

use crate::five_minutes::{Reader, blocks};

/// Folder of the handlers in the text.
const INSTALLED: &str = "/usr/local/share/leafhost/handlers";

#[test]
fn the_commands_of_the_readmes_camera_work_as_written() -> Result<()> {
    let readme = fs::read_to_string(source_tree().join("README.md"))?;
    let (_, rest) = readme
        .split_once("\n## A camera in 60 seconds\n")
        .context("no section")?;
    let (section, _) = rest.split_once("\n### ").context("no end")?;
    let handler = program::handler("onvif")?;
    let handlers = handler.parent().context("no folder")?.to_string_lossy();
    let mut reader = Reader::new()?;
    let mut run = Vec::new();
    for block in blocks(section) {
        let text = block.text.replace(INSTALLED, &handlers);
        match block.language.as_str() {
            "yaml" => fs::write(reader.folder.join("site/configurations/cameras.yaml"), text)?,
            "sh" if text.trim_end().ends_with('&') => {
                reader.start(&text, "leafhost status --state-dir site/state")?;
                run.push(text);
            }
            "sh" => {
                let lines = text.lines().filter(|line| !line.starts_with("podman "));
                for line in lines {
                    eventually(line, || {
                        let shown = reader.run(line)?;
                        ensure!(!shown.contains("Not called yet"), "{shown}");
                        Ok(())
                    })?;
                    run.push(line.to_owned());
                }
            }
            other => bail!("no reader knows what to do with a block {other}"),
        }
    }
    assert_eq!(run.len(), 3, "{run:?}");
    assert!(section.contains("`leafhost check site`"), "{section}");
    reader.run("leafhost check site")?;
    Ok(())
}
