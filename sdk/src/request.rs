//! Request of a call.

use crate::{Budget, Error, Event, Property, Result};

/// One call of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<D> {
    /// Name of the node.
    pub node: String,
    /// Configuration as `namespace/name`.
    pub configuration: String,
    /// `discoveryDetails` of the Configuration, accepted by [`Handler::validate`](crate::Handler::validate).
    pub details: D,
    /// `discoveryProperties` of the Configuration, resolved and sorted by name.
    pub properties: Vec<Property>,
    /// Events that caused the call, in the order they occurred. Events that coincide cause a single call.
    pub events: Vec<Event>,
    /// True if more events occurred than are kept (64): look at everything.
    pub events_lost: bool,
    /// Limits of the call; [`Host::has_time`](crate::Host::has_time) watches the clock.
    pub budget: Budget,
    /// Cursor that the last call of this session returned, if any. Absent after an agent start, when the handler or the
    /// details changed, and when it was larger than 64 KiB and the host had no room for it. The handler must find the same
    /// devices without it, only slower.
    pub cursor: Option<Vec<u8>>,
}

impl<D> Request<D> {
    /// Returns the bytes of a discovery property. `None` if there is no such property, or if its source is optional and
    /// absent.
    pub fn property(&self, name: &str) -> Option<&[u8]> {
        self.properties
            .iter()
            .find(|property| property.name == name)?
            .value
            .as_deref()
    }

    /// Returns the text of a discovery property, like [`property`](Self::property).
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the bytes are not UTF-8.
    pub fn property_text(&self, name: &str) -> Result<Option<&str>> {
        self.property(name)
            .map(std::str::from_utf8)
            .transpose()
            .map_err(|_| Error::unavailable(format!("discovery property {name:?} is not UTF-8")))
    }
}
