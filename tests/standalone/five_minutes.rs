//! The SDK's README, followed literally: each block is written or run, in order.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::program::{self, source_tree};
use leafhost_tests::wait::{eventually, within};
use tempfile::TempDir;

/// Fenced block: its info string and text.
#[derive(Debug, Default)]
pub struct Block {
    pub language: String,
    pub mark: String,
    pub text: String,
}

/// Returns the fenced blocks that begin at the margin.
pub fn blocks(markdown: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(info), None) => {
                let (language, mark) = info.split_once(',').unwrap_or((info, ""));
                open = Some(Block {
                    language: language.to_owned(),
                    mark: mark.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Shell of a reader.
pub struct Reader {
    home: TempDir,
    pub folder: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    agent: Option<Child>,
}

impl Reader {
    pub fn new() -> Result<Self> {
        let home = tempfile::tempdir()?;
        let bin = program::build_folder()?;
        let search = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(
            std::iter::once(bin.clone()).chain(std::env::split_paths(&search)),
        )?;
        let real_home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
        let tool_home = |name, folder: &str| {
            std::env::var_os(name).unwrap_or_else(|| real_home.join(folder).into())
        };
        let target = bin.parent().context("no target folder")?.join("authors");
        let environment = vec![
            ("PATH", path),
            ("HOME", home.path().into()),
            ("CARGO_HOME", tool_home("CARGO_HOME", ".cargo")),
            ("RUSTUP_HOME", tool_home("RUSTUP_HOME", ".rustup")),
            ("RUSTUP_TOOLCHAIN", toolchain()?.into()),
            // The text refers to the published crate; the test uses this tree's, built into a cached folder.
            (
                "LEAFHOST_SDK",
                source_tree().join("sdk").canonicalize()?.into(),
            ),
            ("CARGO_BUILD_TARGET_DIR", target.clone().into()),
            // As root the defaults would be folders of the machine.
            ("LEAFHOST_STATE_DIR", home.path().join("state").into()),
            ("LEAFHOST_CDI_DIR", home.path().join("cdi").into()),
            ("LEAFHOST_LISTEN", "127.0.0.1:0".into()),
        ];
        Ok(Self {
            folder: home.path().to_owned(),
            home,
            environment,
            agent: None,
        })
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-euc", script])
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env_remove("CARGO_TARGET_DIR");
        command
    }

    /// Runs a script of a block. A `cd` applies to the next blocks, as for a reader.
    pub fn run(&mut self, script: &str) -> Result<String> {
        let place = self.home.path().join("pwd");
        // The target folder is elsewhere; a reader finds it in the crate.
        let script = format!("{script}\npwd > '{}'\n", place.display());
        let output = self.shell(&script).output()?;
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(output.status.success(), "{script}\n{text}");
        self.folder = fs::read_to_string(&place)?.trim().into();
        let target = self.folder.join("target");
        if self.folder.join("Cargo.toml").exists() && !target.exists() {
            let kept = self
                .environment
                .iter()
                .find(|(name, _)| *name == "CARGO_BUILD_TARGET_DIR")
                .context("no target")?;
            std::os::unix::fs::symlink(&kept.1, &target)?;
        }
        Ok(text)
    }

    /// Starts the agent of a block that ends with `&`, and waits until the command `status` succeeds.
    pub fn start(&mut self, block: &str, status: &str) -> Result<()> {
        let script = block.trim().trim_end_matches('&');
        let script = script.replace("leafhost agent", "exec leafhost agent");
        let log = fs::File::create(self.home.path().join("log"))?;
        let mut command = self.shell(&script);
        self.agent = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        within(Duration::from_secs(30), "the agent answers", || {
            self.run(status)
        })?;
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Returns the toolchain of this tree, which an author's folder does not name.
fn toolchain() -> Result<String> {
    let text = fs::read_to_string(source_tree().join("rust-toolchain.toml"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .context("no channel")?;
    Ok(line.trim_matches('"').to_owned())
}

#[test]
fn the_sdks_five_minute_guide_works_as_written() -> Result<()> {
    let readme = fs::read_to_string(source_tree().join("sdk/README.md"))?;
    let mut reader = Reader::new()?;
    let mut shown = String::new();
    for block in blocks(&readme) {
        match (block.language.as_str(), block.mark.as_str()) {
            (_, mark) if mark.starts_with("file:") => {
                let file = reader.folder.join(mark.trim_start_matches("file:"));
                fs::write(&file, &block.text)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            ("sh", "once") | (_, "shown") => {}
            ("sh", "") => drop(reader.run(&block.text)?),
            ("sh", "agent") => reader.start(&block.text, "leafhost status")?,
            ("sh", "eventually") => {
                shown = eventually("the device is in the table", || {
                    let text = reader.run(&block.text)?;
                    ensure!(text.contains("akri.sh/entropy="), "{text}");
                    Ok(text)
                })?;
            }
            (language, mark) => bail!("no reader knows what to do with a block {language},{mark}"),
        }
    }
    assert!(shown.contains("entropy-"), "{shown}");
    let detail = reader.run("leafhost status configuration entropy")?;
    assert!(
        detail.contains("/dev/random") && detail.contains("--device akri.sh/entropy="),
        "{detail}"
    );
    Ok(())
}
