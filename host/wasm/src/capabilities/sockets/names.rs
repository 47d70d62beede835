//! `wasi:sockets/ip-name-lookup`, implemented here: wasmtime's own can neither be bounded nor check names.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use leafhost_net::http::HttpError;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, poll_noop, spawn};

use super::{CallState, NetworkAccess};

/// Interface name as wasmtime spells it: only that name is replaced.
const INTERFACE: &str = "wasi:sockets/ip-name-lookup@0.2.12";

type Found = Result<VecDeque<IpAddr>, ErrorCode>;

/// Addresses of a name, or the running lookup.
enum Addresses {
    Waiting(AbortOnDropJoinHandle<Found>),
    Found(Found),
}

#[async_trait::async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {
        if let Self::Waiting(task) = self {
            *self = Self::Found(task.await);
        }
    }
}

impl Addresses {
    fn next(&mut self) -> Result<Option<IpAddr>, ErrorCode> {
        if let Self::Waiting(task) = self
            && let Some(found) = poll_noop(Pin::new(task))
        {
            *self = Self::Found(found);
        }
        match self {
            Self::Waiting(_) => Err(ErrorCode::WouldBlock),
            Self::Found(Ok(list)) => Ok(list.pop_front()),
            Self::Found(Err(code)) => Err(*code),
        }
    }
}

/// Links the interface, replacing wasmtime's.
pub(super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    let mut interface = linker.instance(INTERFACE)?;
    interface.resource(
        "resolve-address-stream",
        ResourceType::host::<Addresses>(),
        |mut store: StoreContextMut<'_, CallState>, index| {
            let stream = Resource::<Addresses>::new_own(index);
            store.data_mut().table.delete(stream)?;
            Ok(())
        },
    )?;
    interface.func_wrap(
        "resolve-addresses",
        |mut store: StoreContextMut<'_, CallState>, (_, name): (Resource<Network>, String)| {
            let state = store.data_mut();
            Ok((match look_up(state.reach.clone(), name) {
                Ok(addresses) => Ok(state.table.push(addresses)?),
                Err(code) => Err(code),
            },))
        },
    )?;
    interface.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store: StoreContextMut<'_, CallState>, (stream,): (Resource<Addresses>,)| {
            let next = store.data_mut().table.get_mut(&stream)?.next();
            Ok((next.map(|ip| ip.map(IpAddress::from)),))
        },
    )?;
    interface.func_wrap(
        "[method]resolve-address-stream.subscribe",
        |mut store: StoreContextMut<'_, CallState>, (stream,): (Resource<Addresses>,)| {
            let pollable: Resource<DynPollable> = subscribe(&mut store.data_mut().table, stream)?;
            Ok((pollable,))
        },
    )
}

fn look_up(reach: Arc<NetworkAccess>, name: String) -> Result<Addresses, ErrorCode> {
    let mut work = Box::pin(async move {
        match reach.addresses(&name).await {
            Ok(addresses) => Ok(addresses.into()),
            Err(HttpError::Denied(_)) => Err(ErrorCode::AccessDenied),
            Err(HttpError::Request(_)) => Err(ErrorCode::InvalidArgument),
            Err(_) => Err(ErrorCode::NameUnresolvable),
        }
    });
    // A denial is known at once.
    match poll_noop(work.as_mut()) {
        Some(found) => Ok(Addresses::Found(Ok(found?))),
        None => Ok(Addresses::Waiting(spawn(work))),
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::Engine;

    use super::*;

    #[test]
    fn what_is_replaced_is_what_wasmtime_links() {
        let mut linker = Linker::<CallState>::new(&Engine::default());
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).unwrap();
        let mut interface = linker.instance(INTERFACE).unwrap();
        for function in [
            "resolve-addresses",
            "[method]resolve-address-stream.resolve-next-address",
            "[method]resolve-address-stream.subscribe",
        ] {
            let nothing = |_: StoreContextMut<'_, CallState>, (): ()| Ok(());
            let twice = interface.func_wrap(function, nothing).unwrap_err();
            assert!(twice.to_string().contains("defined twice"), "{twice:#}");
        }
    }
}
