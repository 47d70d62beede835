//! What a call is asked.

use crate::{Budget, Error, Event, Property, Result};

/// One call of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<D> {
    /// The name of the node.
    pub node: String,
    /// The Configuration, `namespace/name`.
    pub configuration: String,
    /// The Configuration's `discoveryDetails`, which [`Handler::validate`](crate::Handler::validate) has accepted.
    pub details: D,
    /// The Configuration's `discoveryProperties`, resolved, sorted by name.
    pub properties: Vec<Property>,
    /// Why now. Several when wakes fell together, in the order they came.
    pub events: Vec<Event>,
    /// More events came than are kept (64): look at everything.
    pub events_lost: bool,
    /// What the call may use; [`Host::has_time`](crate::Host::has_time) watches the clock.
    pub budget: Budget,
    /// The bytes the last call of this session returned, if it did. Absent after an agent start, when the handler or
    /// the details changed, and when it was larger than 64 KiB and the host had no room for it: the same devices must
    /// come out without it, only slower.
    pub cursor: Option<Vec<u8>>,
}

impl<D> Request<D> {
    /// The bytes of a discovery property. `None` where there is none, or where it names a source that has none
    /// and says it is optional.
    pub fn property(&self, name: &str) -> Option<&[u8]> {
        self.properties
            .iter()
            .find(|property| property.name == name)?
            .value
            .as_deref()
    }

    /// The text of a discovery property, as [`property`](Self::property).
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the bytes are not UTF-8.
    pub fn property_text(&self, name: &str) -> Result<Option<&str>> {
        self.property(name)
            .map(std::str::from_utf8)
            .transpose()
            .map_err(|_| Error::unavailable(format!("discovery property {name:?} is not UTF-8")))
    }
}
