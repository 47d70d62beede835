//! Fakes with which `cargo test` runs a handler natively, in the same steps as in a component: the details are read from
//! YAML, then [`Handler::validate`] and [`Handler::discover`] are called.
//!
//! ```
//! use leafhost_sdk::testing::{Call, FakeHost, UdevDevice};
//! use leafhost_sdk::{Description, Device, Discovery, Handler, Host, Request, Result, register, udev};
//!
//! struct Cameras;
//! register!(Cameras);
//!
//! #[leafhost_sdk::details]
//! struct Details {
//!     driver: String,
//! }
//!
//! impl Handler for Cameras {
//!     type Details = Details;
//!
//!     fn describe() -> Description {
//!         Description::new("cameras", "Cameras with a certain driver").example("driver: uvcvideo")
//!     }
//!
//!     fn discover(request: &Request<Details>, host: &Host) -> Result<Discovery> {
//!         let rule = vec![udev::subsystem("video4linux"), udev::driver(&request.details.driver)];
//!         let found = host.udev().find(&[rule.clone()])?;
//!         let devices = found.iter().filter(|device| device.matched());
//!         Ok(Discovery::complete(devices.map(|device| Device::new(&device.devpath))).wake_on_udev(rule))
//!     }
//! }
//!
//! let host = FakeHost::new().udev(
//!     UdevDevice::new("/devices/usb/video0").subsystem("video4linux").driver("uvcvideo"),
//! );
//! let found = Call::<Cameras>::new("driver: uvcvideo").run(&host).unwrap();
//! assert_eq!(found.devices(), [Device::new("/devices/usb/video0")]);
//! ```

mod call;
mod clock;
mod http;
mod network;
mod tcp;
mod udev;
mod udp;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::host::Imports;
use crate::{Handler, Host, Level, Problem, glue};

pub use call::{Call, budget};
pub use http::HttpAnswer;
pub use network::Contact;
pub use tcp::TcpReaction;
pub(crate) use tcp::TcpStream;
pub use udev::UdevDevice;
pub use udp::UdpAnswer;
pub(crate) use udp::UdpSocket;

/// Maximum number of explanations that a fake host keeps, and of bytes in each of their texts.
const MAX_SKIPPED: usize = 1_000;
const MAX_SKIPPED_TEXT: usize = 512;

/// In-memory fake of the host: devices, network, and the handler's reports.
///
/// The clock advances only by [`pass`](Self::pass) and by waits; a wait takes no real time and is exact. The random numbers
/// are the same in every run.
#[derive(Debug, Default)]
pub struct FakeHost(Rc<State>);

/// State shared by a fake host and the imports created from it.
#[derive(Debug, Default)]
pub(crate) struct State {
    log: RefCell<Vec<(Level, String)>>,
    skipped: RefCell<Vec<Skipped>>,
    random: Cell<u64>,
    pub(crate) clock: clock::Clock,
    pub(crate) network: network::Network,
    pub(crate) udev: udev::Table,
}

/// Explanation reported with [`Host::skipped`], or by the host itself for a udev device that nearly matches a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Subject, as given to [`Host::skipped`].
    pub subject: String,
    /// Rule, as given to [`Host::skipped`].
    pub rule: String,
    /// Reason, as given to [`Host::skipped`].
    pub reason: String,
}

impl FakeHost {
    /// Creates a host without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a udev device. The nearest device above it by `devpath` becomes its parent.
    #[must_use]
    pub fn udev(self, device: UdevDevice) -> Self {
        self.0.udev.insert(device);
        self
    }

    /// Makes every udev query fail, as on a node without sysfs.
    #[must_use]
    pub fn without_udev(self, why: &str) -> Self {
        self.0.udev.fail(why);
        self
    }

    /// Makes the clock advance by this time whenever the handler reads it, so that [`Host::has_time`] becomes false after a
    /// while.
    #[must_use]
    pub fn tick(self, time: Duration) -> Self {
        self.0.clock.set_tick(time);
        self
    }

    /// Returns the time by the host's clock, which starts at zero.
    pub fn now(&self) -> Duration {
        self.0.clock.now()
    }

    /// Lets time pass, for example between two calls.
    pub fn pass(&self, time: Duration) {
        self.0.clock.pass(time);
    }

    /// Creates a [`Host`] to test a handler's own functions with; [`Call`] creates its own.
    pub fn host(&self) -> Host {
        Host::new(self.imports(), &budget())
    }

    /// Returns the log lines written so far.
    pub fn log(&self) -> Vec<(Level, String)> {
        self.0.log.borrow().clone()
    }

    /// Returns the explanations reported so far, as `leafhost handler run --explain` shows them.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.0.skipped.borrow().clone()
    }

    pub(crate) fn imports(&self) -> Imports {
        Rc::clone(&self.0)
    }
}

impl State {
    pub(crate) fn log(&self, level: Level, message: &str) {
        self.log.borrow_mut().push((level, message.to_owned()));
    }

    pub(crate) fn skipped(&self, subject: &str, rule: &str, reason: &str) {
        let mut skipped = self.skipped.borrow_mut();
        if skipped.len() < MAX_SKIPPED {
            skipped.push(Skipped {
                subject: cut(subject),
                rule: cut(rule),
                reason: cut(reason),
            });
        }
    }

    /// Generates numbers with `SplitMix64` (Steele, Lea, Flood 2014), seeded with 0.
    pub(crate) fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn cut(text: &str) -> String {
    let kept = text.get(..text.floor_char_boundary(MAX_SKIPPED_TEXT));
    match kept {
        Some(kept) if kept.len() < text.len() => format!("{kept}…"),
        _ => text.to_owned(),
    }
}

/// Returns the problems that the handler finds in these details.
pub fn validate<H: Handler>(details: &str) -> Vec<Problem> {
    glue::parse::<H>(details).err().unwrap_or_default()
}

/// Returns the handler's remarks on these details; none if it rejects them.
pub fn remarks<H: Handler>(details: &str) -> Vec<Problem> {
    glue::parse::<H>(details).map_or_else(|_| Vec::new(), |details| H::remarks(&details))
}

/// Returns the problems of the handler's description; empty if a host accepts it.
pub fn description_problems<H: glue::Registered>() -> Vec<String> {
    let description = glue::describe::<H>();
    let mut problems = Vec::new();
    let name = &description.name;
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let at_end = |c: char| c.is_ascii_alphanumeric();
    if name.len() > 63
        || !name.chars().all(in_name)
        || !name.starts_with(at_end)
        || !name.ends_with(at_end)
    {
        problems.push(format!(
            "name {name:?} is not 1 to 63 letters, digits, '-', '_' or '.'"
        ));
    }
    let summary = &description.summary;
    if summary.is_empty() || summary.len() > 200 || summary.contains('\n') {
        problems.push(format!(
            "summary {summary:?} is not one line of 1 to 200 bytes"
        ));
    }
    let example = validate::<H>(&description.example);
    problems.extend(example.iter().map(|problem| format!("example: {problem}")));
    problems
}

#[cfg(test)]
mod tests;
