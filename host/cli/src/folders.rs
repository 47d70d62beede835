//! Default folders: `/etc` and `/var/lib` for root, the XDG folders for other users.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// State folder of an agent that runs as root.
pub const SYSTEM_STATE: &str = "/var/lib/leafhost";
/// Folder with Configurations and handlers of an agent that runs as root.
const SYSTEM_CONFIG: &str = "/etc/leafhost";
/// Folder in which container runtimes look for CDI specs by default.
pub const SYSTEM_CDI: &str = "/etc/cdi";
/// Default folder of a kubelet. The folder for device plugins is in it even if the kubelet has another root folder.
pub const SYSTEM_KUBELET: &str = "/var/lib/kubelet";
/// Default folder in which handlers built for Akri register with an agent of a cluster.
pub const SYSTEM_EXTERNAL: &str = "/var/lib/akri";

/// Properties of the user on which the folders depend.
#[derive(Debug, Clone, Default)]
pub struct User {
    pub is_root: bool,
    /// Folder in `$XDG_CONFIG_HOME`, or in `.config` of the home folder; `None` without a home folder.
    pub config: Option<PathBuf>,
    /// Folder in `$XDG_STATE_HOME`, or in `.local/state` of the home folder.
    pub state: Option<PathBuf>,
    /// Folder in `$XDG_CACHE_HOME`, or in `.cache` of the home folder.
    pub cache: Option<PathBuf>,
}

/// Reason why a user without a home folder has no folders.
const NO_HOME: &str = "HOME is not set";

impl User {
    pub fn current() -> Self {
        // The XDG specification requires relative paths to be ignored.
        Self::new(nix::unistd::geteuid().is_root(), |name| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        })
    }

    /// Creates a user from the paths in environment variables.
    pub fn new(is_root: bool, path: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let own = |name: &str, below_home: &str| {
            let folder = path(name).or_else(|| Some(path("HOME")?.join(below_home)));
            Some(folder?.join("leafhost"))
        };
        Self {
            is_root,
            config: own("XDG_CONFIG_HOME", ".config"),
            state: own("XDG_STATE_HOME", ".local/state"),
            cache: own("XDG_CACHE_HOME", ".cache"),
        }
    }

    /// Returns the folder with Configurations and handlers.
    pub fn standalone_dir(&self) -> Result<PathBuf> {
        if self.is_root {
            return Ok(SYSTEM_CONFIG.into());
        }
        let folder = self.config.clone().context(NO_HOME);
        folder.context("cannot determine the standalone folder; give it with --standalone DIR")
    }

    /// Returns the folder for Instances and accepted versions.
    pub fn state_dir(&self) -> Result<PathBuf> {
        if self.is_root {
            return Ok(SYSTEM_STATE.into());
        }
        let folder = self.state.clone().context(NO_HOME);
        folder.context("cannot determine the state folder; give it with --state-dir DIR")
    }

    /// Returns the folder for caches, such as compiled components of `handler run`.
    pub fn cache_dir(&self) -> PathBuf {
        let temporary =
            || std::env::temp_dir().join(format!("leafhost-{}", nix::unistd::geteuid()));
        self.cache.clone().unwrap_or_else(temporary)
    }

    /// Returns the default folders of this user's agent and of a kubelet.
    pub fn own_folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![SYSTEM_KUBELET.into(), SYSTEM_CDI.into()];
        folders.extend(self.standalone_dir());
        folders.extend(self.state_dir());
        folders
    }
}

/// Returns the path of the agent's socket in its state folder.
pub fn socket_in(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.sock")
}

/// Returns the node name: the given one, else the host name in lower case.
pub fn node_name(given: Option<&str>) -> Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => nix::unistd::gethostname()
            .context("cannot read the host name; give a name with --node-name NAME")?
            .to_string_lossy()
            .to_lowercase(),
    };
    anyhow::ensure!(
        leafhost_core::names::is_node_name(&name),
        "the node name {name:?} is not 1 to 253 lower-case letters, digits, '-' and '.'; give another with --node-name NAME"
    );
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_system_folders_and_others_their_own() {
        let root = User::new(true, |name| (name == "HOME").then(|| "/root".into()));
        assert_eq!(root.standalone_dir().unwrap(), Path::new("/etc/leafhost"));
        assert_eq!(root.state_dir().unwrap(), Path::new("/var/lib/leafhost"));
        let user = User::new(false, |name| match name {
            "HOME" => Some("/home/a".into()),
            "XDG_CONFIG_HOME" => Some("/conf".into()),
            _ => None,
        });
        assert_eq!(user.standalone_dir().unwrap(), Path::new("/conf/leafhost"));
        let state = user.state_dir().unwrap();
        assert_eq!(state, Path::new("/home/a/.local/state/leafhost"));
    }

    #[test]
    fn without_a_home_the_error_names_the_flag() {
        let nobody = User::default();
        let error = format!("{:#}", nobody.state_dir().unwrap_err());
        assert!(error.contains("--state-dir"), "{error}");
        let error = format!("{:#}", nobody.standalone_dir().unwrap_err());
        assert!(error.contains("--standalone DIR"), "{error}");
    }

    #[test]
    fn a_wrong_node_name_names_the_flag() {
        assert!(node_name(Some("edge-1.site")).is_ok());
        let error = node_name(Some("Edge_1")).unwrap_err().to_string();
        assert!(error.contains("--node-name"), "{error}");
    }
}
