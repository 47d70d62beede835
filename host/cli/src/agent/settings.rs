//! The agent's settings: flags with the defaults of this user filled in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use leafhost_agent::SlotConfig;
use nix::unistd::Group;

use super::socket;
use crate::args::{AgentArgs, CompilerArgs, LogFormat};
use crate::failure::Usage;
use crate::folders::{self, User};

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The standalone folder.
    pub dir: PathBuf,
    /// The node's name.
    pub node: String,
    /// The state folder.
    pub state_dir: PathBuf,
    /// Where CDI specs are written; nothing for none.
    pub cdi_dir: Option<PathBuf>,
    /// The kubelet's folder; nothing to offer it nothing.
    pub kubelet_dir: Option<PathBuf>,
    /// How slots are offered and come back.
    pub slots: SlotConfig,
    /// Further folders with handlers.
    pub handlers_dirs: Vec<PathBuf>,
    /// Where the admin endpoint listens.
    pub listen: SocketAddr,
    /// Whose members may use the socket.
    pub socket_group: Option<Group>,
    /// Where `/metrics` is served alone.
    pub metrics_listen: Option<SocketAddr>,
    /// How long a handler stays Offline before it is removed.
    pub handler_eviction: Duration,
    /// How handlers are compiled.
    pub compiler: CompilerArgs,
    /// The log's form.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: String,
    /// Runs as root.
    pub is_root: bool,
}

impl Settings {
    /// From the flags, for this user.
    pub fn new(args: AgentArgs, user: &User) -> Result<Self> {
        let AgentArgs {
            standalone,
            node_name,
            state_dir,
            cdi_dir,
            no_cdi,
            kubelet_dir,
            no_kubelet,
            slot_grace,
            instance_resources,
            handlers_dir,
            listen,
            socket_group,
            metrics_listen,
            handler_eviction,
            compiler,
            log_format,
            log_level,
        } = args;
        let dir = match standalone.as_deref() {
            // An empty environment variable says no.
            None | Some("") => {
                return Err(Usage(
                    "no source of Configurations: this version reads them from files and cannot join a cluster; start with --standalone [DIR]"
                        .to_owned(),
                )
                .into());
            }
            // The flag alone, or an environment variable that only says yes.
            Some("1" | "true") => user.standalone_dir()?,
            Some(dir) => absolute(Path::new(dir))?,
        };
        let state_dir = match state_dir {
            Some(dir) => absolute(&dir)?,
            None => user.state_dir()?,
        };
        let cdi_dir = match (no_cdi, cdi_dir) {
            (true, _) => None,
            (false, Some(dir)) => Some(absolute(&dir)?),
            (false, None) => Some(user.cdi_dir(&state_dir)),
        };
        let kubelet_dir = match (no_kubelet, kubelet_dir) {
            (true, _) => None,
            (false, Some(dir)) => Some(absolute(&dir)?),
            (false, None) => user.kubelet_dir(),
        };
        let node = match node_name {
            Some(name) => name,
            None => folders::node_name()?,
        };
        folders::check_node_name(&node)?;
        let handlers_dirs = handlers_dir
            .iter()
            .map(|dir| absolute(dir))
            .collect::<Result<Vec<PathBuf>>>()?;
        Ok(Self {
            dir,
            node,
            state_dir,
            cdi_dir,
            kubelet_dir,
            slots: SlotConfig {
                grace: slot_grace,
                instance_resources,
            },
            handlers_dirs,
            listen,
            socket_group: socket_group.as_deref().map(socket::group).transpose()?,
            metrics_listen,
            handler_eviction,
            compiler,
            log_format,
            log_level,
            is_root: user.is_root,
        })
    }

    /// The folders that no device may mount into a container: the agent's own and the kubelet's.
    pub fn own_folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![
            self.dir.clone(),
            self.state_dir.clone(),
            folders::SYSTEM_KUBELET.into(),
        ];
        folders.extend(self.cdi_dir.iter().chain(&self.kubelet_dir).cloned());
        folders.extend(self.handlers_dirs.iter().cloned());
        folders
    }
}

/// Makes a path absolute, because it is shown in other contexts.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .with_context(|| format!("cannot make the path {} absolute", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn settings(line: &str, user: &User) -> Result<Settings> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Agent(args) = cli.command else {
            panic!("{line}");
        };
        Settings::new(*args, user)
    }

    fn mk_user() -> User {
        User {
            home: Some("/home/a".into()),
            ..User::default()
        }
    }

    #[test]
    fn the_folders_of_the_agent_and_of_a_kubelet_are_its_own() {
        let line = "leafhost agent --node-name n --standalone /a --state-dir /b --cdi-dir /c --handlers-dir /d";
        for (more, kubelets) in [
            ("", &["/var/lib/kubelet"][..]),
            ("--no-kubelet", &["/var/lib/kubelet"]),
            ("--kubelet-dir /e", &["/var/lib/kubelet", "/e"]),
        ] {
            let settings = settings(&format!("{line} {more}"), &mk_user()).unwrap();
            let own = settings.own_folders();
            for folder in ["/a", "/b", "/c", "/d"].iter().chain(kubelets) {
                assert!(
                    own.contains(&PathBuf::from(folder)),
                    "{more} {folder} {own:?}"
                );
            }
        }
    }

    #[test]
    fn without_the_flag_there_is_a_usage_error_that_names_it() {
        let error = settings("leafhost agent --node-name n", &mk_user()).unwrap_err();
        assert!(error.is::<Usage>());
        assert!(error.to_string().contains("--standalone"), "{error}");
    }

    #[test]
    fn folders_are_the_given_ones_or_the_users_defaults() {
        let given = "leafhost agent --node-name n --standalone /d --state-dir /s --cdi-dir /c --handlers-dir /h";
        let settings_given = settings(given, &mk_user()).unwrap();
        assert_eq!(settings_given.dir, Path::new("/d"));
        assert_eq!(settings_given.state_dir, Path::new("/s"));
        assert_eq!(settings_given.cdi_dir.as_deref(), Some(Path::new("/c")));
        assert_eq!(settings_given.handlers_dirs, [Path::new("/h")]);
        let own = settings("leafhost agent --node-name n --standalone", &mk_user()).unwrap();
        assert_eq!(own.dir, Path::new("/home/a/.config/leafhost"));
        let state = Path::new("/home/a/.local/state/leafhost");
        assert_eq!(own.state_dir, state);
        assert_eq!(own.cdi_dir, Some(state.join("cdi")));
        let none = settings(
            "leafhost agent --node-name n --standalone --no-cdi",
            &mk_user(),
        );
        assert_eq!(none.unwrap().cdi_dir, None);
    }

    #[test]
    fn relative_folders_become_absolute() {
        let settings =
            settings("leafhost agent --node-name n --standalone site", &mk_user()).unwrap();
        assert!(settings.dir.is_absolute());
        assert!(settings.dir.ends_with("site"));
    }

    #[test]
    fn a_wrong_node_name_is_refused() {
        let error =
            settings("leafhost agent --standalone --node-name A_b", &mk_user()).unwrap_err();
        assert!(error.to_string().contains("--node-name"), "{error}");
    }
}
