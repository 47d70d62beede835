//! One call of a handler, as the host makes it.

use std::marker::PhantomData;

use super::FakeHost;
use crate::bindings::leafhost::discovery::types as wit;
use crate::{Budget, Discovery, Event, Handler, Property, Result, glue};

/// Returns the default budget of a call.
pub fn budget() -> Budget {
    Budget {
        wall_ms: 30_000,
        cpu_ms: 2_000,
        memory_bytes: 64 << 20,
        devices: 4_096,
        answer_bytes: 8 << 20,
    }
}

/// One call of a handler. Unless set otherwise, it is the first of its session, on the node `node-a`, for the Configuration
/// `default/example`.
#[derive(Debug, Clone)]
pub struct Call<H> {
    request: wit::Request,
    handler: PhantomData<H>,
}

impl<H: Handler> Call<H> {
    /// Creates a call with these `discoveryDetails`.
    pub fn new(details: &str) -> Self {
        Self {
            request: wit::Request {
                node: "node-a".to_owned(),
                configuration: "default/example".to_owned(),
                details: details.to_owned(),
                properties: Vec::new(),
                events: vec![Event::First],
                events_lost: false,
                budget: budget(),
                cursor: None,
            },
            handler: PhantomData,
        }
    }

    /// Sets the node's name.
    #[must_use]
    pub fn node(mut self, name: &str) -> Self {
        name.clone_into(&mut self.request.node);
        self
    }

    /// Adds a discovery property.
    #[must_use]
    pub fn property(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.with_property(name, value.into(), false)
    }

    /// Adds a discovery property from a Secret.
    #[must_use]
    pub fn secret(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.with_property(name, value.into(), true)
    }

    fn with_property(mut self, name: &str, value: Vec<u8>, secret: bool) -> Self {
        self.request.properties.push(Property {
            name: name.to_owned(),
            value: Some(value),
            secret,
        });
        self.request
            .properties
            .sort_by(|one, other| one.name.cmp(&other.name));
        self
    }

    /// Sets the events that caused the call.
    #[must_use]
    pub fn events(mut self, events: impl IntoIterator<Item = Event>) -> Self {
        self.request.events = events.into_iter().collect();
        self
    }

    /// Sets the budget of the call.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.request.budget = budget;
        self
    }

    /// Sets the cursor that the previous call returned.
    #[must_use]
    pub fn cursor(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.request.cursor = Some(bytes.into());
        self
    }

    /// Makes the call.
    ///
    /// # Errors
    /// Returns the handler's error; [`InvalidDetails`](crate::Error::InvalidDetails) also if the details cannot be read.
    pub fn run(&self, host: &FakeHost) -> Result<Discovery> {
        host.0.begin_call();
        glue::discover::<H>(self.request.clone(), host.imports())
    }
}
