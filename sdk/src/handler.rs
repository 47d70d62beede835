//! The trait that a handler implements.

use crate::{Discovery, Host, Problem, Request, Result};

/// Discovery handler.
///
/// Every call gets a fresh instance of the component, so statics and thread locals do not survive it. State for the next
/// call goes into [`Discovery::cursor`].
///
/// Export it as a component with [`register!`](crate::register), and test it natively with [`testing`](crate::testing).
pub trait Handler {
    /// Type of the Configuration's `discoveryDetails`, read as YAML; mark it with [`#[details]`](macro@crate::details).
    /// Absent details are read as `{}`.
    ///
    /// A field that the type does not know, at any depth, is a problem, so that no typo passes silently. A type opts out
    /// with `#[serde(flatten)] rest: serde::de::IgnoredAny`. Fields below such a field, and below untagged and internally
    /// tagged enums, are not checked.
    type Details: serde::de::DeserializeOwned;

    /// Returns the handler's name and defaults. The host calls it once when the bytes are loaded; only logging works then.
    fn describe() -> Description;

    /// Returns all problems of details that have the right shape: exceeded bounds, malformed patterns, fields that exclude
    /// each other. It must not do I/O.
    ///
    /// The host calls it when a Configuration changes, and before every [`discover`](Self::discover).
    fn validate(details: &Self::Details) -> Vec<Problem> {
        let _ = details;
        Vec::new()
    }

    /// Returns remarks for the operator on valid details, such as a value in an old format. `leafhost check` shows them.
    fn remarks(details: &Self::Details) -> Vec<Problem> {
        let _ = details;
        Vec::new()
    }

    /// Looks for devices.
    ///
    /// # Errors
    /// On an error the devices found before stay; see [`Error`](crate::Error) for when the next call comes.
    fn discover(request: &Request<Self::Details>, host: &Host) -> Result<Discovery>;
}

/// Description of a handler. Its version is that of the crate that calls [`register!`](crate::register).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    pub(crate) name: String,
    pub(crate) summary: String,
    pub(crate) example: String,
    pub(crate) shared: bool,
}

impl Description {
    /// Creates a description. `name` is the value of `discoveryHandler.name` in Configurations: 1 to 63 letters, digits,
    /// `-`, `_` or `.`, beginning and ending with a letter or digit. `summary` is one line of at most 200 bytes that says
    /// what is found, and by which means.
    pub fn new(name: impl Into<String>, summary: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            summary: summary.into(),
            example: String::new(),
            shared: false,
        }
    }

    /// Sets an example of valid `discoveryDetails`.
    #[must_use]
    pub fn example(mut self, details: impl Into<String>) -> Self {
        self.example = details.into();
        self
    }

    /// Declares devices visible from many nodes by default, like a camera on the network. Otherwise a device is local to the
    /// node that found it, like a USB stick.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }
}
