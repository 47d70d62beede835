//! Watches the kubelet's folder for the socket of a kubelet, for replacements of its checkpoint, and for problems. inotify reports changes;
//! the folder is also read at intervals, for changes that inotify lost.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use nix::unistd::AccessFlags;
use tokio::sync::watch;

use crate::offered::publish;
use crate::records::Stamp;
use crate::{KubeletRun, sockets};

/// Socket of the kubelet in the folder.
pub(crate) const KUBELET: &str = "kubelet.sock";
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// Interval at which the folder is read if inotify does not work.
const UNWATCHED_POLL: Duration = Duration::from_secs(5);

/// State of the folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FolderState {
    pub kubelet: Option<KubeletRun>,
    pub problems: Vec<String>,
}

pub(crate) struct Folder {
    pub path: PathBuf,
    pub prefix: String,
    pub backstop: Duration,
    pub state: watch::Sender<Arc<FolderState>>,
    pub checkpoints: watch::Sender<u64>,
}

impl Folder {
    /// Watches until it is dropped.
    pub async fn run(self) {
        let mut watcher = Watcher::open();
        let mut checkpoint = None;
        let mut is_swept = false;
        loop {
            watcher.watch(&self.path);
            let mut state = self.read();
            state.problems.extend(watcher.problem.clone());
            // Sweeps before this process serves sockets here: a socket that is bound but does not listen yet would look stale.
            if !is_swept && self.path.is_dir() {
                sockets::sweep(&self.path, &self.prefix).await;
                is_swept = true;
            }
            let stamp = Stamp::of(&self.path.join(CHECKPOINT)).ok().flatten();
            if checkpoint
                .replace(stamp)
                .is_some_and(|before| before != stamp)
            {
                self.checkpoints
                    .send_modify(|count| *count = count.saturating_add(1));
            }
            publish(&self.state, Arc::new(state));
            let pause = if watcher.problem.is_some() {
                UNWATCHED_POLL.min(self.backstop)
            } else {
                self.backstop
            };
            tokio::select! {
                () = watcher.changed() => {}
                () = tokio::time::sleep(pause) => watcher.forget(),
            }
        }
    }

    fn read(&self) -> FolderState {
        let path = self.path.display();
        let mut state = FolderState::default();
        let problem = match std::fs::metadata(&self.path) {
            Ok(found) if found.is_dir() => None,
            Ok(_) => Some(format!(
                "{path} is not a folder; name the kubelet's folder of device plugins"
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
                "no kubelet here: {path} is missing; the agent uses it as soon as a kubelet creates it; if the kubelet has another folder, name that"
            )),
            Err(error) => Some(format!(
                "cannot read {path} ({error}); run as root, or mount the folder"
            )),
        };
        if let Some(problem) = problem {
            state.problems.push(problem);
            return state;
        }
        let access = AccessFlags::W_OK | AccessFlags::X_OK;
        if let Err(error) = nix::unistd::access(&self.path, access) {
            state.problems.push(format!(
                "cannot create sockets in {path} ({}); run as root, and mount the folder writable",
                error.desc()
            ));
        }
        let socket = self.path.join(KUBELET);
        match std::fs::metadata(&socket) {
            Ok(found) if found.file_type().is_socket() => {
                state.kubelet = Some(KubeletRun::of(&found));
            }
            Ok(_) => state.problems.push(format!(
                "{} is not a socket; remove it and restart the kubelet",
                socket.display()
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => state.problems.push(format!(
                "cannot read the state of {} ({error}); run as root",
                socket.display()
            )),
        }
        state
    }
}

/// Watches the folder, or the nearest existing folder above it.
struct Watcher {
    stream: Option<(EventStream<[u8; 4096]>, Watches)>,
    watched: Option<(PathBuf, WatchDescriptor)>,
    /// Names of relevant files in the watched folder.
    names: Vec<std::ffi::OsString>,
    /// Reason why inotify does not work.
    problem: Option<String>,
}

impl Watcher {
    fn open() -> Self {
        let opened = Inotify::init().and_then(|inotify| {
            let handle = inotify.watches();
            Ok((inotify.into_event_stream([0; 4096])?, handle))
        });
        Self {
            problem: opened.as_ref().err().map(problem),
            stream: opened.ok(),
            watched: None,
            names: Vec::new(),
        }
    }

    /// Watches the deepest existing folder on the path to `wanted`. Tries again if a folder is created while it searches.
    fn watch(&mut self, wanted: &Path) {
        loop {
            let mut names = vec![KUBELET.into(), CHECKPOINT.into()];
            let mut nearest = wanted;
            while !nearest.is_dir() {
                let (Some(parent), Some(name)) = (nearest.parent(), nearest.file_name()) else {
                    break;
                };
                names = vec![name.to_owned()];
                nearest = parent;
            }
            if nearest.as_os_str().is_empty() {
                nearest = Path::new(".");
            }
            if self
                .watched
                .as_ref()
                .is_some_and(|(path, _)| path == nearest)
            {
                return;
            }
            let Some((_, watches)) = &mut self.stream else {
                return;
            };
            let mask = WatchMask::ONLYDIR
                | WatchMask::CREATE
                | WatchMask::CLOSE_WRITE
                | WatchMask::MOVED_FROM
                | WatchMask::MOVED_TO
                | WatchMask::DELETE
                | WatchMask::DELETE_SELF
                | WatchMask::MOVE_SELF;
            match watches.add(nearest, mask) {
                Ok(descriptor) => {
                    let before = self
                        .watched
                        .replace((nearest.to_owned(), descriptor.clone()));
                    if let Some((_, before)) = before.filter(|(_, before)| *before != descriptor) {
                        drop(watches.remove(before));
                    }
                    self.names = names;
                    self.problem = None;
                }
                // The folder has just been removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.problem = Some(problem(&error));
                    return;
                }
            }
        }
    }

    /// Makes [`Watcher::watch`] start again: another folder may have the same name now.
    fn forget(&mut self) {
        if let Some((path, _)) = &mut self.watched {
            path.clear();
        }
    }

    /// Waits for a change of a relevant file.
    async fn changed(&mut self) {
        loop {
            let Some((stream, _)) = &mut self.stream else {
                return std::future::pending().await;
            };
            let Some(Ok(event)) = stream.next().await else {
                self.stream = None;
                self.problem = Some(problem(&io::Error::other("its events have ended")));
                return;
            };
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return self.forget();
            }
            if self.watched.as_ref().is_none_or(|(_, of)| *of != event.wd) {
                continue;
            }
            match event.name {
                Some(name) if self.names.contains(&name) => return,
                Some(_) => {}
                None => return self.forget(),
            }
        }
    }
}

fn problem(error: &io::Error) -> String {
    format!(
        "the kernel does not report changes in the kubelet's folder ({error}), so the agent looks every {} s; raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
        UNWATCHED_POLL.as_secs()
    )
}
