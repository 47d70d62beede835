//! Listens for device events.
//!
//! Events reach every subscriber; the monitor does not know rules. It listens to udevd's own group if udevd runs in our network namespace,
//! because its events are heard only there; else to the kernel's group, whose events come before udevd has set permissions and links.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::broadcast;

use crate::event::Event;
use crate::sysfs::lossy;
use crate::tree::properties;

/// Time that udevd gets to follow up on an event of the kernel.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause before a broken socket is opened again, in milliseconds.
const REOPEN: u16 = 1_000;
/// Maximum number of events that a subscriber may lag behind; beyond it, the subscriber learns that events were lost.
const BACKLOG: usize = 1024;
/// Path of udevd's control socket.
const CONTROL: &str = "/run/udev/control";
/// List of the Unix sockets in our own network namespace.
const SOCKETS: &str = "/proc/self/net/unix";

/// Group of events that a monitor listens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Group of udevd, which sends an event when it is done with a device.
    Udev,
    /// Group of the kernel.
    Kernel,
}

impl Group {
    /// Returns the group that can be heard here.
    ///
    /// The events of udevd stay in its network namespace, which its control socket identifies: `/proc/net/unix` lists only the sockets of our
    /// namespace, even if `/run/udev` is mounted from elsewhere.
    pub fn here() -> Self {
        let sockets = fs::read_to_string(SOCKETS).unwrap_or_default();
        Self::choose(Path::new(CONTROL).exists(), &sockets)
    }

    fn choose(has_control: bool, sockets: &str) -> Self {
        let is_ours = sockets
            .lines()
            .any(|line| line.split_whitespace().last() == Some(CONTROL));
        if has_control && is_ours {
            Self::Udev
        } else {
            Self::Kernel
        }
    }

    fn settle(self) -> Option<Duration> {
        match self {
            Self::Udev => None,
            Self::Kernel => Some(SETTLE),
        }
    }
}

/// Monitor of device events, which listens until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    /// Group that the monitor listens to.
    pub group: Group,
    /// Weak sender; the thread holds the strong one, so that its end closes the subscriptions.
    events: broadcast::WeakSender<Arc<Event>>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to listen to the group that can be heard here. No event after its return is missed.
    pub fn start() -> io::Result<Self> {
        Self::start_on(Group::here())
    }

    /// Starts to listen to a group.
    pub fn start_on(group: Group) -> io::Result<Self> {
        let of_thread = |error: io::Error| {
            let what = "cannot start the thread that listens for device events";
            io::Error::other(format!("{what}: {error}"))
        };
        let (events, _) = broadcast::channel(BACKLOG);
        let (stop, stopped) = UnixStream::pair().map_err(of_thread)?;
        let (ready, opened) = mpsc::channel();
        let weak = events.downgrade();
        let thread = std::thread::Builder::new()
            .name("udev-monitor".to_owned())
            .spawn(move || run(group, &events, &stopped, &ready))
            .map_err(of_thread)?;
        let monitor = Self {
            group,
            events: weak,
            stop: Some(stop),
            thread: Some(thread),
        };
        match opened.recv() {
            Ok(Ok(())) => Ok(monitor),
            Ok(Err(error)) => Err(io::Error::other(format!(
                "cannot listen for device events: no netlink socket of the {group:?} group; handlers that wait for them are called every minute instead: {error}"
            ))),
            Err(_) => Err(of_thread(io::Error::other("it ended before it listened"))),
        }
    }

    /// Subscribes to the events from now on. A receiver that falls behind gets `Lagged`, which means the same as [`Event::is_lost`]; it gets
    /// `Closed` when the monitor is dropped or can no longer receive events.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        let events = self.events.upgrade();
        events.map_or_else(|| broadcast::channel(1).1, |events| events.subscribe())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            drop(thread.join());
        }
    }
}

/// Runs on the monitor's thread, because libudev's socket must stay on one thread.
fn run(
    group: Group,
    events: &broadcast::Sender<Arc<Event>>,
    stop: &UnixStream,
    ready: &mpsc::Sender<io::Result<()>>,
) {
    let mut socket = match open(group) {
        Ok(socket) => socket,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // The receiver may be gone; then the thread is already being stopped.
    drop(ready.send(Ok(())));
    while let Err(error) = pump(&socket, group, events, stop) {
        tracing::warn!(%error, "cannot receive device events; trying again");
        socket = loop {
            match wait(&mut [stopped(stop)], REOPEN.into()) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot receive device events any more; handlers that wait for them are called every minute instead");
                    return;
                }
            }
            if let Ok(socket) = open(group) {
                break socket;
            }
        };
        // Events in the meantime were missed.
        drop(events.send(Arc::new(Event::lost(group.settle()))));
    }
}

/// Waits until one of the descriptors is ready; returns false after the timeout.
fn wait(fds: &mut [PollFd<'_>], timeout: PollTimeout) -> io::Result<bool> {
    loop {
        match poll(fds, timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn stopped(stop: &UnixStream) -> PollFd<'_> {
    PollFd::new(stop.as_fd(), PollFlags::POLLIN)
}

fn open(group: Group) -> io::Result<udev::MonitorSocket> {
    let builder = match group {
        Group::Udev => udev::MonitorBuilder::new()?,
        Group::Kernel => udev::MonitorBuilder::new_kernel()?,
    };
    builder.listen()
}

/// Passes events on until the other end of `stop` is dropped or the socket breaks.
fn pump(
    socket: &udev::MonitorSocket,
    group: Group,
    events: &broadcast::Sender<Arc<Event>>,
    stop: &UnixStream,
) -> io::Result<()> {
    loop {
        let mut fds = [
            stopped(stop),
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        ];
        wait(&mut fds, PollTimeout::NONE)?;
        let [stopped, _] = &fds;
        if stopped.any() != Some(false) {
            return Ok(());
        }
        while let Some(event) = receive(socket, group)? {
            // Sending fails without a subscriber.
            drop(events.send(Arc::new(event)));
        }
    }
}

/// Returns the next event, or `None` if there is none at the moment.
fn receive(socket: &udev::MonitorSocket, group: Group) -> io::Result<Option<Event>> {
    loop {
        // Some versions of libudev do not set errno; without this an old value would count again.
        Errno::clear();
        if let Some(event) = socket.iter().next() {
            return Ok(Some(read_event(&event, group)));
        }
        // libudev leaves its reason in errno, and nothing has been called since.
        match Errno::last() {
            Errno::ENOBUFS => return Ok(Some(Event::lost(group.settle()))),
            Errno::EINTR => {}
            error @ (Errno::EBADF | Errno::ENOTSOCK | Errno::ENOMEM) => return Err(error.into()),
            _ => return Ok(None),
        }
    }
}

fn read_event(event: &udev::Event, group: Group) -> Event {
    Event {
        action: event.action().map(lossy).unwrap_or_default(),
        devpath: lossy(event.devpath()),
        subsystem: event.subsystem().map(lossy),
        devnode: event.devnode().map(|path| lossy(path.as_os_str())),
        properties: properties(event),
        settle: group.settle(),
    }
}

#[cfg(test)]
mod tests;
