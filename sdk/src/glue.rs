//! Connects the contract's exports to a [`Handler`]. Every component has this code; handler authors never write it.

use std::marker::PhantomData;

#[cfg(target_family = "wasm")]
use crate::bindings::exports::leafhost::discovery::handler::Guest;
use crate::bindings::leafhost::discovery::types as wit;
use crate::host::Imports;
use crate::{Discovery, Error, Handler, Host, Problem, Request, Result, details};

/// Handler that [`register!`](crate::register) exports as a component.
#[diagnostic::on_unimplemented(
    message = "the handler `{Self}` is not registered",
    note = "register! forgotten? write `leafhost_sdk::register!({Self});` at the top of the crate"
)]
pub trait Registered: Handler {
    /// Version of the handler's crate.
    const VERSION: &'static str;
}

/// Implementation of a component's exports by the handler `H`.
#[derive(Debug)]
pub struct Component<H>(PhantomData<H>);

pub(crate) fn describe<H: Registered>() -> wit::Description {
    let description = H::describe();
    wit::Description {
        name: description.name,
        version: H::VERSION.to_owned(),
        summary: description.summary,
        example: description.example,
        shared: description.shared,
    }
}

pub(crate) fn parse<H: Handler>(text: &str) -> Result<H::Details, Vec<Problem>> {
    let details = details::parse(text)?;
    let problems = H::validate(&details);
    if problems.is_empty() {
        Ok(details)
    } else {
        Err(problems)
    }
}

pub(crate) fn discover<H: Handler>(request: wit::Request, imports: Imports) -> Result<Discovery> {
    let host = Host::new(imports, &request.budget);
    let details = parse::<H>(&request.details).map_err(Error::InvalidDetails)?;
    let request = Request {
        node: request.node,
        configuration: request.configuration,
        details,
        properties: request.properties,
        events: request.events,
        events_lost: request.events_lost,
        budget: request.budget,
        cursor: request.cursor,
    };
    H::discover(&request, &host)
}

#[cfg(target_family = "wasm")]
impl<H: Registered> Guest for Component<H> {
    fn describe() -> wit::Description {
        describe::<H>()
    }

    fn validate(details: String) -> Result<(), Vec<Problem>> {
        let details = parse::<H>(&details)?;
        for remark in H::remarks(&details) {
            crate::bindings::leafhost::explain::explain::skipped(&remark.path, "", &remark.message);
        }
        Ok(())
    }

    fn discover(request: wit::Request) -> Result<wit::Discovery, wit::DiscoveryError> {
        match discover::<H>(request, Imports::default()) {
            Ok(discovery) => Ok(discovery.into()),
            Err(Error::InvalidDetails(problems)) => {
                Err(wit::DiscoveryError::InvalidDetails(problems))
            }
            Err(Error::Unavailable(what)) => Err(wit::DiscoveryError::Unavailable(what)),
        }
    }
}

/// Exports this [`Handler`] as the crate's component. Use it once per crate, which needs `crate-type = ["cdylib"]`.
///
/// In a native build it only checks the type and makes the handler known to [`testing`](crate::testing).
#[macro_export]
macro_rules! register {
    ($handler:ty) => {
        impl $crate::glue::Registered for $handler {
            const VERSION: &'static str = env!("CARGO_PKG_VERSION");
        }

        #[cfg(not(target_family = "wasm"))]
        const _: fn() -> $crate::Description = <$handler as $crate::Handler>::describe;

        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code, reason = "the component's exports")]
        const _: () = {
            type Component = $crate::glue::Component<$handler>;
    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
}
