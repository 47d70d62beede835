//! Settings of the agent: flags with the defaults of this user filled in.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::unistd::Group;

use super::socket;
use crate::args::AgentArgs;
use crate::folders::{self, SYSTEM_CDI, SYSTEM_EXTERNAL, SYSTEM_KUBELET, User};

/// Settings of the agent: the flags, and values that depend on this user and machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Standalone folder; `None` in a cluster.
    pub dir: Option<PathBuf>,
    /// Node name; `None` if the cluster determines it.
    pub node: Option<String>,
    pub state_dir: PathBuf,
    /// Folder to which CDI specs are written; `None` writes none.
    pub cdi_dir: Option<PathBuf>,
    /// Folder of the kubelet; `None` offers no devices to it.
    pub kubelet_dir: Option<PathBuf>,
    /// Folder where external handlers register; `None` lets none register.
    pub external_dir: Option<PathBuf>,
    /// Further folders with handlers.
    pub handlers_dirs: Vec<PathBuf>,
    /// Group whose members may use the socket.
    pub socket_group: Option<Group>,
    pub is_root: bool,
    pub args: AgentArgs,
}

impl Settings {
    /// Creates the settings from the flags, for this user.
    pub fn new(args: AgentArgs, user: &User) -> Result<Self> {
        let dir = match args.standalone.as_deref() {
            // An empty environment variable disables standalone mode.
            None | Some("") => None,
            // The flag without a value, or an environment variable that only enables it.
            Some("1" | "true") => Some(user.standalone_dir()?),
            Some(dir) => Some(absolute(Path::new(dir))?),
        };
        let state_dir = match &args.state_dir {
            Some(dir) => absolute(dir)?,
            None => user.state_dir()?,
        };
        let chosen = |is_off: bool, given: &Option<PathBuf>, default: Option<PathBuf>| match given {
            _ if is_off => Ok(None),
            Some(dir) => absolute(dir).map(Some),
            None => Ok(default),
        };
        // Other users than root cannot use the folders of the system.
        let of_root = |folder: &str| user.is_root.then(|| PathBuf::from(folder));
        let default = of_root(SYSTEM_CDI).unwrap_or_else(|| state_dir.join("cdi"));
        let cdi_dir = chosen(args.no_cdi, &args.cdi_dir, Some(default))?;
        let default = of_root(SYSTEM_KUBELET);
        let kubelet_dir = chosen(args.no_kubelet, &args.kubelet_dir, default)?;
        let default = of_root(SYSTEM_EXTERNAL).filter(|_| dir.is_none());
        let given = &args.external_handlers_dir;
        let external_dir = chosen(args.no_external_handlers, given, default)?;
        let node = match (args.node_name.as_deref(), &dir) {
            (None, None) => None,
            (given, _) => Some(folders::node_name(given)?),
        };
        let handlers_dirs = args
            .folders
            .handlers_dir
            .iter()
            .map(|dir| absolute(dir))
            .collect::<Result<Vec<PathBuf>>>()?;
        Ok(Self {
            dir,
            node,
            state_dir,
            cdi_dir,
            kubelet_dir,
            external_dir,
            handlers_dirs,
            socket_group: args
                .socket_group
                .as_deref()
                .map(socket::group)
                .transpose()?,
            is_root: user.is_root,
            args,
        })
    }

    /// Returns the folders that no device may mount into a container: the agent's own and the kubelet's.
    pub fn own_folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.state_dir.clone(), SYSTEM_KUBELET.into()];
        folders.extend(self.dir.clone());
        folders.extend(self.cdi_dir.iter().chain(&self.kubelet_dir).cloned());
        folders.extend(self.handlers_dirs.iter().cloned());
        folders.extend(self.external_dir.clone());
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
    use super::*;
    use crate::args::{self, Command};

    fn settings(line: &str, user: &User) -> Result<Settings> {
        let Ok(Command::Agent(args)) = args::parse(line.split_whitespace()) else {
            panic!("{line}");
        };
        Settings::new(*args, user)
    }

    fn mk_user() -> User {
        User::new(false, |name| (name == "HOME").then(|| "/home/a".into()))
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
    fn without_the_flag_the_cluster_says_where_everything_is() {
        let settings = settings("leafhost agent", &mk_user()).unwrap();
        assert_eq!((settings.dir, settings.node), (None, None));
    }

    #[test]
    fn folders_are_the_given_ones_or_the_users_defaults() {
        let given = "leafhost agent --node-name n --standalone /d --state-dir /s --cdi-dir /c --handlers-dir /h";
        let settings_given = settings(given, &mk_user()).unwrap();
        assert_eq!(settings_given.dir.as_deref(), Some(Path::new("/d")));
        assert_eq!(settings_given.state_dir, Path::new("/s"));
        assert_eq!(settings_given.cdi_dir.as_deref(), Some(Path::new("/c")));
        assert_eq!(settings_given.handlers_dirs, [Path::new("/h")]);
        let own = settings("leafhost agent --node-name n --standalone", &mk_user()).unwrap();
        assert_eq!(own.dir, Some("/home/a/.config/leafhost".into()));
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
    fn external_handlers_register_in_a_cluster_or_where_the_flag_says() {
        let root = User {
            is_root: true,
            ..mk_user()
        };
        for (line, user, expected) in [
            ("", &root, Some("/var/lib/akri")),
            ("--standalone /d", &root, None),
            ("--no-external-handlers", &root, None),
            ("", &mk_user(), None),
            (
                "--standalone /d --external-handlers-dir /e",
                &mk_user(),
                Some("/e"),
            ),
        ] {
            let settings = settings(&format!("leafhost agent --node-name n {line}"), user).unwrap();
            assert_eq!(
                settings.external_dir.as_deref(),
                expected.map(Path::new),
                "{line}"
            );
            let own = settings.own_folders();
            assert_eq!(
                own.contains(&"/var/lib/akri".into()),
                expected == Some("/var/lib/akri")
            );
        }
    }

    #[test]
    fn relative_folders_become_absolute() {
        let settings =
            settings("leafhost agent --node-name n --standalone site", &mk_user()).unwrap();
        let dir = settings.dir.unwrap();
        assert!(dir.is_absolute() && dir.ends_with("site"));
    }

    #[test]
    fn a_wrong_node_name_is_refused() {
        let error =
            settings("leafhost agent --standalone --node-name A_b", &mk_user()).unwrap_err();
        assert!(error.to_string().contains("--node-name"), "{error}");
    }
}
