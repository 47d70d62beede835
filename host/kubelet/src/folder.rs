//! Watches the kubelet's folder: which kubelet is there, whether its checkpoint was replaced, and what is wrong with the
//! folder. The kernel tells; a look now and then covers what it lost.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use nix::unistd::AccessFlags;
use tokio::sync::watch;

use crate::books::Stamp;
use crate::{Incarnation, sockets};

/// The kubelet's socket in the folder.
pub(crate) const KUBELET: &str = "kubelet.sock";
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// Where the kernel does not tell, the folder is looked at so often.
const DEAF: Duration = Duration::from_secs(5);

/// What is in the folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    pub kubelet: Option<Incarnation>,
    pub problems: Vec<String>,
}

pub(crate) struct Folder {
    pub path: PathBuf,
    pub prefix: String,
    pub backstop: Duration,
    pub sight: watch::Sender<Arc<Sight>>,
    pub checkpoints: watch::Sender<u64>,
}

impl Folder {
    /// Watches until it is dropped.
    pub async fn run(self) {
        let mut ear = Ear::open();
        let mut checkpoint = None;
        let mut is_swept = false;
        loop {
            ear.turn_to(&self.path);
            let mut sight = self.look();
            sight.problems.extend(ear.deaf.clone());
            // Before anything of ours is served there, so that nobody is taken for dead who is about to listen.
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
            self.sight.send_if_modified(|published| {
                let differs = **published != sight;
                if differs {
                    *published = Arc::new(sight);
                }
                differs
            });
            let pause = if ear.deaf.is_some() {
                DEAF.min(self.backstop)
            } else {
                self.backstop
            };
            tokio::select! {
                () = ear.hear() => {}
                () = tokio::time::sleep(pause) => ear.forget(),
            }
        }
    }

    fn look(&self) -> Sight {
        let path = self.path.display();
        let mut sight = Sight::default();
        match std::fs::metadata(&self.path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                sight.problems.push(format!(
                    "{path} is no folder: name the kubelet's folder of device plugins"
                ));
                return sight;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sight.problems.push(format!(
                    "no kubelet here: {path} is missing; it is used as soon as a kubelet makes it, or name the kubelet's folder of device plugins"
                ));
                return sight;
            }
            Err(error) => {
                sight.problems.push(format!(
                    "cannot look at {path} ({error}): run as root, or mount the folder"
                ));
                return sight;
            }
        }
        let access = AccessFlags::W_OK | AccessFlags::X_OK;
        if let Err(error) = nix::unistd::access(&self.path, access) {
            sight.problems.push(format!(
                "cannot make sockets in {path} ({}): run as root, and mount the folder writable",
                error.desc()
            ));
        }
        let socket = self.path.join(KUBELET);
        match std::fs::metadata(&socket) {
            Ok(found) if found.file_type().is_socket() => {
                sight.kubelet = Some(Incarnation::of(&found));
            }
            Ok(_) => sight.problems.push(format!(
                "{} is no socket: remove it and restart the kubelet",
                socket.display()
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => sight.problems.push(format!(
                "cannot look at {} ({error}): run as root",
                socket.display()
            )),
        }
        sight
    }
}

/// Listens to the folder, or while it is missing to the nearest one above it.
struct Ear {
    stream: Option<(EventStream<[u8; 4096]>, Watches)>,
    turned_to: Option<(PathBuf, WatchDescriptor)>,
    /// The names that matter there.
    names: Vec<std::ffi::OsString>,
    /// Why nothing is heard.
    deaf: Option<String>,
}

impl Ear {
    fn open() -> Self {
        let mut ear = Self {
            stream: None,
            turned_to: None,
            names: Vec::new(),
            deaf: None,
        };
        let opened = Inotify::init().and_then(|inotify| {
            let watches = inotify.watches();
            Ok((inotify.into_event_stream([0; 4096])?, watches))
        });
        match opened {
            Ok(stream) => ear.stream = Some(stream),
            Err(error) => ear.fail(&error),
        }
        ear
    }

    /// Listens to the deepest folder that there is on the way to `wanted`. What is made while it turns is not missed.
    fn turn_to(&mut self, wanted: &Path) {
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
                .turned_to
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
                        .turned_to
                        .replace((nearest.to_owned(), descriptor.clone()));
                    if let Some((_, before)) = before.filter(|(_, before)| *before != descriptor) {
                        drop(watches.remove(before));
                    }
                    self.names = names;
                    self.deaf = None;
                }
                // It went in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.fail(&error);
                    return;
                }
            }
        }
    }

    /// The folder may be another one of the same name by now: [`Ear::turn_to`] listens anew.
    fn forget(&mut self) {
        if let Some((path, _)) = &mut self.turned_to {
            path.clear();
        }
    }

    /// Waits for something that is worth a look.
    async fn hear(&mut self) {
        loop {
            let Some((stream, _)) = &mut self.stream else {
                return std::future::pending().await;
            };
            let Some(Ok(event)) = stream.next().await else {
                self.stream = None;
                self.fail(&io::Error::other("its events have ended"));
                return;
            };
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return self.forget();
            }
            if self
                .turned_to
                .as_ref()
                .is_none_or(|(_, of)| *of != event.wd)
            {
                continue;
            }
            match event.name {
                Some(name) if self.names.contains(&name) => return,
                Some(_) => {}
                None => return self.forget(),
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.deaf = Some(format!(
            "the kernel does not tell of changes in the kubelet's folder ({error}), they are seen every {} s: raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
            DEAF.as_secs()
        ));
    }
}
