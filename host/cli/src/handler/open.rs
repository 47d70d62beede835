//! Components on the command line: reads the file with its grants and loads it as the agent does, with a cache of this
//! user's own.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_core::grants_file;
use leafhost_core::ports::SourceFile;
use leafhost_net::Network;
use leafhost_udev::Monitor;
use leafhost_wasm::{Runtime, RuntimeConfig};

use crate::args::CompilerArgs;
use crate::folders::User;

/// Creates the runtime of a single command. Only sessions need events and the network: if there will be sessions, set
/// `discovers`, and call this inside a tokio runtime.
pub fn runtime(compiler: &CompilerArgs, discovers: bool) -> Result<Arc<Runtime>> {
    let line = |error: anyhow::Error| format!("{error:#}");
    let (events, network) = if discovers {
        (
            Monitor::start().map_err(|error| line(error.into())),
            Network::start().map_err(|error| line(error.into())),
        )
    } else {
        let why = || "nothing is discovered".to_owned();
        (Err(why()), Err(why()))
    };
    let user = User::current();
    Runtime::new(RuntimeConfig {
        own_folders: user.own_folders(),
        cache_dir: user.cache_dir().join("native"),
        compiler: compiler.compiler.clone(),
        compile_timeout: compiler.compile_timeout,
        events,
        network,
    })
    .context("cannot start the runtime for handlers, which keeps compiled handlers in $XDG_CACHE_HOME/leafhost (~/.cache/leafhost)")
}

/// Reads a component and its grants file, by default the one next to it.
pub fn read(file: &Path, grants: Option<&Path>) -> Result<SourceFile> {
    let name = file
        .file_name()
        .with_context(|| format!("{} is not a file", file.display()))?
        .to_string_lossy()
        .into_owned();
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let beside = file.with_file_name(grants_file::among(&name, |other| {
        file.with_file_name(other).exists()
    }));
    let grants = grants.or_else(|| beside.is_file().then_some(&beside));
    let grants = grants.map(|path| {
        std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the grants {}", path.display()))
    });
    Ok(SourceFile {
        name,
        bytes: bytes.into(),
        grants: grants.transpose()?.map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_next_to_the_component_unless_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.wasm.gz");
        std::fs::write(&file, b"x").unwrap();
        assert_eq!(read(&file, None).unwrap().grants, None);
        std::fs::write(dir.path().join("a.grants.yaml"), "udev:").unwrap();
        assert_eq!(read(&file, None).unwrap().grants.as_deref(), Some("udev:"));
        let built = dir.path().join("serial_by_id.wasm");
        std::fs::write(&built, b"x").unwrap();
        std::fs::write(dir.path().join("serial-by-id.grants.yaml"), "net:").unwrap();
        assert_eq!(read(&built, None).unwrap().grants.as_deref(), Some("net:"));
        let other = dir.path().join("other.yaml");
        let error = format!("{:#}", read(&file, Some(&other)).unwrap_err());
        assert!(error.contains("other.yaml"), "{error}");
    }
}
