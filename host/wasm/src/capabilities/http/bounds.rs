//! Functions of `wasi:http` that make the host hold data of a guest: each checks a bound in addition to what wasmtime's own does.

use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentNamedList, Lift, Linker, LinkerInstance, Lower, Resource};
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler::Host as _;
use wasmtime_wasi_http::p2::bindings::http::types::{
    self, Host as _, HostFields, HostOutgoingRequest as _, Method, RequestOptions, Scheme,
};
use wasmtime_wasi_http::p2::types::{HostOutgoingRequest, HostOutgoingResponse};
use wasmtime_wasi_http::{FieldMap, WasiHttpView as _};

use super::CallState;

/// Interface names as wasmtime spells them: only functions under these names are replaced.
const TYPES: &str = "wasi:http/types@0.2.12";
const HANDLER: &str = "wasi:http/outgoing-handler@0.2.12";

/// Maximum length of method and scheme, in bytes.
const MAX_WORD: usize = 64;
/// Maximum length of the authority, in bytes: a name of 253 bytes, a port, and a user.
const MAX_AUTHORITY: usize = 512;
/// Maximum length of the path with its query, in bytes.
const MAX_PATH: usize = 8 << 10;
/// Maximum size of a request besides headers and body, in bytes.
pub(in super::super) const MAX_REQUEST: usize = 2 * MAX_WORD + MAX_AUTHORITY + MAX_PATH;

type Store<'a> = StoreContextMut<'a, CallState>;
type Request = Resource<HostOutgoingRequest>;
type Fields = Resource<FieldMap>;
type Given = Result<(), ()>;

/// Links the functions, replacing wasmtime's.
pub(super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    setters(linker)?;
    makers(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Links the setters of a request: a value that is too long is invalid.
fn setters(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    let mut interface = linker.instance(TYPES)?;
    interface.func_wrap(
        "[method]outgoing-request.set-method",
        |mut store: Store<'_>, (request, method): (Request, Method)| {
            if matches!(&method, Method::Other(other) if other.len() > MAX_WORD) {
                return Ok((Given::Err(()),));
            }
            Ok((store.data_mut().http().set_method(request, method)?,))
        },
    )?;
    interface.func_wrap(
        "[method]outgoing-request.set-scheme",
        |mut store: Store<'_>, (request, scheme): (Request, Option<Scheme>)| {
            if matches!(&scheme, Some(Scheme::Other(other)) if other.len() > MAX_WORD) {
                return Ok((Given::Err(()),));
            }
            Ok((store.data_mut().http().set_scheme(request, scheme)?,))
        },
    )?;
    interface.func_wrap(
        "[method]outgoing-request.set-authority",
        |mut store: Store<'_>, (request, authority): (Request, Option<String>)| {
            if is_longer(authority.as_ref(), MAX_AUTHORITY) {
                return Ok((Given::Err(()),));
            }
            Ok((store.data_mut().http().set_authority(request, authority)?,))
        },
    )?;
    interface.func_wrap(
        "[method]outgoing-request.set-path-with-query",
        |mut store: Store<'_>, (request, path): (Request, Option<String>)| {
            if is_longer(path.as_ref(), MAX_PATH) {
                return Ok((Given::Err(()),));
            }
            let mut http = store.data_mut().http();
            Ok((http.set_path_with_query(request, path)?,))
        },
    )
}

fn is_longer(text: Option<&String>, most: usize) -> bool {
    text.is_some_and(|text| text.len() > most)
}

/// Links the functions that add resources to the table.
fn makers(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    let mut interface = linker.instance(TYPES)?;
    maker(&mut interface, "[constructor]fields", |state, (): ()| {
        HostFields::new(&mut state.http())
    })?;
    maker(
        &mut interface,
        "[static]fields.from-list",
        |state, (entries,): (Vec<(String, Vec<u8>)>,)| {
            Ok(match state.http().from_list(entries) {
                Ok(made) => Ok(made),
                Err(error) => Err(state.http().convert_header_error(error)?),
            })
        },
    )?;
    maker(
        &mut interface,
        "[method]fields.clone",
        |state, (fields,): (Fields,)| HostFields::clone(&mut state.http(), fields),
    )?;
    maker(
        &mut interface,
        "[method]outgoing-request.body",
        |state, (request,): (Request,)| {
            types::HostOutgoingRequest::body(&mut state.http(), request)
        },
    )?;
    maker(
        &mut interface,
        "[method]outgoing-response.body",
        |state, (response,): (Resource<HostOutgoingResponse>,)| {
            types::HostOutgoingResponse::body(&mut state.http(), response)
        },
    )?;
    maker(
        &mut linker.instance(HANDLER)?,
        "handle",
        |state, (request, options): (Request, Option<Resource<RequestOptions>>)| {
            Ok(match state.http().handle(request, options) {
                Ok(made) => Ok(made),
                Err(error) => Err(state.http().convert_error_code(error)?),
            })
        },
    )
}

/// Links `function`, and counts the memory that the table holds after each call of it.
fn maker<P, R>(
    interface: &mut LinkerInstance<'_, CallState>,
    name: &str,
    function: impl Fn(&mut CallState, P) -> wasmtime::Result<R> + Send + Sync + 'static,
) -> wasmtime::Result<()>
where
    P: ComponentNamedList + Lift + 'static,
    R: Lower + 'static,
    (R,): ComponentNamedList + Lower,
{
    interface.func_wrap(name, move |mut store: Store<'_>, parameters: P| {
        let state = store.data_mut();
        let made = function(state, parameters)?;
        state.hold()?;
        Ok((made,))
    })
}

#[cfg(test)]
mod tests {
    use wasmtime::Engine;

    use super::*;

    #[test]
    fn what_is_replaced_is_what_wasmtime_links() {
        let mut linker = Linker::<CallState>::new(&Engine::default());
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).unwrap();
        for (interface, function) in [
            (TYPES, "[method]outgoing-request.set-method"),
            (TYPES, "[method]outgoing-request.set-scheme"),
            (TYPES, "[method]outgoing-request.set-authority"),
            (TYPES, "[method]outgoing-request.set-path-with-query"),
            (TYPES, "[constructor]fields"),
            (TYPES, "[static]fields.from-list"),
            (TYPES, "[method]fields.clone"),
            (TYPES, "[method]outgoing-request.body"),
            (TYPES, "[method]outgoing-response.body"),
            (HANDLER, "handle"),
        ] {
            let mut interface = linker.instance(interface).unwrap();
            let nothing = |_: Store<'_>, (): ()| Ok(());
            let twice = interface.func_wrap(function, nothing).unwrap_err();
            assert!(twice.to_string().contains("defined twice"), "{twice:#}");
        }
    }
}
