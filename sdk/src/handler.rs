//! The trait a handler implements.

use crate::{Discovery, Host, Problem, Request, Result};

/// A discovery handler.
///
/// It is called, it does not run: every call gets a fresh instance of the component, so statics and thread locals
/// are as new each time. What the next call should know goes into [`Discovery::cursor`].
///
/// Make it a component with [`register!`](crate::register), and test it natively with [`testing`](crate::testing).
pub trait Handler {
    /// The Configuration's `discoveryDetails`, read as YAML: a type with [`#[details]`](macro@crate::details). No details
    /// at all are read as `{}`.
    ///
    /// A field that the type does not know, at any depth, is a problem, so that nothing misspelt passes silently. A type
    /// that takes any field says so: `#[serde(flatten)] rest: serde::de::IgnoredAny`. What is below
    /// such a field, and below untagged and internally tagged enums, is not checked.
    type Details: serde::de::DeserializeOwned;

    /// Who this is. Called once when the bytes are loaded; only logging works then.
    fn describe() -> Description;

    /// All that is wrong with details that have the right shape: bounds, patterns, what excludes what. No input
    /// or output.
    ///
    /// Called when a Configuration changes, and before every [`discover`](Self::discover).
    fn validate(details: &Self::Details) -> Vec<Problem> {
        let _ = details;
        Vec::new()
    }

    /// What an operator should know of details that can be used, such as a value that is read in an old way. Shown by
    /// `leafhost check`.
    fn remarks(details: &Self::Details) -> Vec<Problem> {
        let _ = details;
        Vec::new()
    }

    /// Looks for devices.
    ///
    /// # Errors
    /// With an error the devices found before stay; see [`Error`](crate::Error) for when the next call comes.
    fn discover(request: &Request<Self::Details>, host: &Host) -> Result<Discovery>;
}

/// What a handler says of itself. Its version is that of the crate that says [`register!`](crate::register).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    pub(crate) name: String,
    pub(crate) summary: String,
    pub(crate) example: String,
    pub(crate) shared: bool,
}

impl Description {
    /// `name` is what Configurations say in `discoveryHandler.name`: 1 to 63 letters, digits, `-`, `_` or `.`, beginning
    /// and ending with a letter or digit. `summary` is one line of at most 200 bytes: what is found, by which means.
    pub fn new(name: impl Into<String>, summary: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            summary: summary.into(),
            example: String::new(),
            shared: false,
        }
    }

    /// `discoveryDetails` that work, to start from.
    #[must_use]
    pub fn example(mut self, details: impl Into<String>) -> Self {
        self.example = details.into();
        self
    }

    /// A device that does not say otherwise is visible from many nodes, like a camera on the network. Without
    /// this it is local to the node that found it, like a USB stick.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }
}
