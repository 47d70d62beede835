//! `agent.json` and `agent.sock` in the state folder, by which `leafhost status` finds the agent that uses that folder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Default of `--listen`.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9478";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentFile {
    /// Address of `/status`, reachable from this machine.
    pub address: SocketAddr,
    pub pid: u32,
}

impl AgentFile {
    /// Creates the content of the file for this process, which listens on `bound`.
    pub fn of_this_process(bound: SocketAddr) -> Self {
        let ip = match bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Self {
            address: SocketAddr::new(ip, bound.port()),
            pid: std::process::id(),
        }
    }

    /// Returns the path of `agent.json`.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("agent.json")
    }

    /// Returns the path of the agent's socket.
    pub fn socket(state_dir: &Path) -> PathBuf {
        state_dir.join("agent.sock")
    }

    /// Writes the file atomically; it is removed when the guard is dropped.
    pub fn publish(&self, state_dir: &Path) -> Result<Published> {
        let path = Self::path(state_dir);
        let text = serde_json::to_string(self).context("cannot write agent.json")?;
        let new = path.with_extension("json.new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| {
                format!(
                    "cannot write {}: is the state folder full or read-only?",
                    path.display()
                )
            })?;
        Ok(Published {
            state_dir: state_dir.to_owned(),
            file: self.clone(),
        })
    }

    pub fn read(state_dir: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(Self::path(state_dir))?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Guard that removes the file when the agent ends, unless another agent has written its own since.
#[derive(Debug)]
pub struct Published {
    state_dir: PathBuf,
    file: AgentFile,
}

impl Drop for Published {
    fn drop(&mut self) {
        let path = AgentFile::path(&self.state_dir);
        let is_ours = AgentFile::read(&self.state_dir).is_ok_and(|file| file == self.file);
        if is_ours && let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove agent.json");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_exists_while_the_agent_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = AgentFile::of_this_process("0.0.0.0:1234".parse().unwrap());
        assert_eq!(file.address.to_string(), "127.0.0.1:1234");
        let published = file.publish(dir.path()).unwrap();
        assert_eq!(AgentFile::read(dir.path()).unwrap(), file);
        drop(published);
        assert!(AgentFile::read(dir.path()).is_err());
    }

    #[test]
    fn the_file_of_another_agent_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let first = AgentFile::of_this_process("127.0.0.1:1".parse().unwrap());
        let second = AgentFile::of_this_process("127.0.0.1:2".parse().unwrap());
        let guard = first.publish(dir.path()).unwrap();
        let _other = second.publish(dir.path()).unwrap();
        drop(guard);
        assert_eq!(AgentFile::read(dir.path()).unwrap(), second);
    }
}
