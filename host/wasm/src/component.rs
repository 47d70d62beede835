//! Inspects a handler's bytes without running or compiling them: unpacks them, identifies them and lists the imports.
//!
//! Does not know the engine. All input is untrusted: everything is bounded, and nothing panics.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use leafhost_core::handler::Digest;
use sha2::{Digest as _, Sha256};
use wasmparser::{Encoding, Parser, Payload};

use crate::engine::hex;

/// Maximum size of an unpacked component, in bytes.
const MAX_BYTES: usize = 32 << 20;
/// Interface that a component must export to be a handler.
const HANDLER: &str = "leafhost:discovery/handler";
/// Packages of the contract with their supported versions, newest first: an import or export names one of them.
pub const CONTRACT_VERSIONS: &[&str] = &[
    "leafhost:discovery@0.1.0",
    "leafhost:log@0.1.0",
    "leafhost:explain@0.1.0",
    "leafhost:udev@0.1.0",
    "leafhost:net@0.1.0",
];
/// Leafhost interfaces that need no grant: types, and interfaces that are always present.
const UNGRANTED: &[&str] = &[
    "leafhost:discovery/types",
    "leafhost:udev/types",
    "leafhost:log/log",
    "leafhost:explain/explain",
];
/// Leafhost interfaces and the grant that each needs.
const GRANTED: &[(&str, &str)] = &[
    ("leafhost:udev/devices", "udev"),
    ("leafhost:net/interfaces", "network"),
];
/// Packages of WASI 0.2 that are linked; without a grant they give only clocks, random numbers and log lines.
const WASI: &[&str] = &[
    "wasi:cli",
    "wasi:clocks",
    "wasi:filesystem",
    "wasi:http",
    "wasi:io",
    "wasi:random",
    "wasi:sockets",
];
/// Server-side interface of those packages, which is not linked.
const NOT_LINKED: &str = "wasi:http/incoming-handler";

/// Reason why bytes are not a handler.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ComponentError(String);

/// Facts about a handler that are known without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// SHA-256 digest of the unpacked bytes.
    pub digest: Digest,
    /// Size of the unpacked bytes.
    pub size: usize,
    /// Size of the bytes as given, if they were gzipped.
    pub packed_size: Option<usize>,
    /// Imported interfaces with versions, sorted.
    pub imports: Vec<String>,
    /// Grants that the handler needs, such as `udev`, sorted.
    pub grants: Vec<String>,
    /// Exported handler interface, with version.
    pub handler: String,
}

/// Inspects a handler's bytes, `.wasm` or `.wasm.gz`.
///
/// # Errors
/// Returns the reason if the bytes are not a handler.
pub fn inspect(bytes: &[u8]) -> Result<Inspection, ComponentError> {
    check(bytes).map(|(_, inspection)| inspection)
}

/// Unpacks and checks a handler's bytes; returns them unpacked, with the result of the inspection.
pub(crate) fn check(packed: &[u8]) -> Result<(Cow<'_, [u8]>, Inspection), ComponentError> {
    let bytes = unpack(packed)?;
    let digest = Digest(hex(&Sha256::digest(&bytes)));
    let (imports, exports) = surface(&bytes)?;
    let handler = exports
        .iter()
        .find(|name| split_version(name).0 == HANDLER)
        .cloned()
        .ok_or_else(|| {
            refused(format!(
                "this is a component, but no discovery handler: it does not export {HANDLER} (it exports {}); register! forgotten?",
                list(&exports)
            ))
        })?;
    for name in imports.iter().chain([&handler]) {
        let (interface, version) = split_version(name);
        let package = interface.split('/').next().unwrap_or_default();
        let wanted = format!("{package}@{version}");
        let mut contracts = CONTRACT_VERSIONS.iter();
        if contracts.any(|contract| split_version(contract).0 == package)
            && !CONTRACT_VERSIONS.contains(&wanted.as_str())
        {
            return Err(refused(format!(
                "the component was built for {wanted}; this version of Leafhost supports {}",
                CONTRACT_VERSIONS.join(", ")
            )));
        }
    }
    let unknown: Vec<String> = imports
        .iter()
        .filter(|name| !known(name))
        .cloned()
        .collect();
    if !unknown.is_empty() {
        return Err(refused(format!(
            "the component imports {}, which this version does not have",
            unknown.join(", ")
        )));
    }
    let grants: BTreeSet<&str> = imports
        .iter()
        .filter_map(|name| {
            let interface = split_version(name).0;
            let (_, grant) = GRANTED.iter().find(|(needs, _)| *needs == interface)?;
            Some(*grant)
        })
        .collect();
    let inspection = Inspection {
        digest,
        size: bytes.len(),
        packed_size: matches!(bytes, Cow::Owned(_)).then_some(packed.len()),
        grants: grants.into_iter().map(str::to_owned).collect(),
        imports,
        handler,
    };
    Ok((bytes, inspection))
}

fn unpack(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ComponentError> {
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
        MultiGzDecoder::new(bytes)
            .take(limit)
            .read_to_end(&mut unpacked)
            .map_err(|error| {
                refused(format!(
                    "cannot unpack it; the gzip data is cut off or damaged: {error}"
                ))
            })?;
        Cow::Owned(unpacked)
    } else {
        Cow::Borrowed(bytes)
    };
    if bytes.len() > MAX_BYTES {
        return Err(refused(format!(
            "the component has more than {} MiB unpacked",
            MAX_BYTES >> 20
        )));
    }
    Ok(bytes)
}

/// Returns the names of imports and exports at the outermost level, sorted.
fn surface(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), ComponentError> {
    if bytes.is_empty() {
        return Err(refused("the file is empty"));
    }
    if bytes.trim_ascii_start().starts_with(b"(") {
        return Err(refused(
            "this is WebAssembly as text; turn it into a component first",
        ));
    }
    if !bytes.starts_with(b"\0asm".get(..bytes.len().min(4)).unwrap_or_default()) {
        let begin = bytes.get(..bytes.len().min(16)).unwrap_or_default();
        return Err(refused(format!(
            "this is not WebAssembly (it begins with \"{}\"); a handler is a component, built with --target wasm32-wasip2",
            begin.escape_ascii()
        )));
    }
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    let broken = |error: wasmparser::BinaryReaderError| {
        let what = if error.message().contains("unexpected end") {
            "cut off"
        } else {
            "damaged"
        };
        refused(format!("the file is {what}: {error}"))
    };
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(broken)? {
            Payload::Version {
                encoding: Encoding::Module,
                ..
            } if depth == 0 => {
                return Err(refused(
                    "this is a core module, not a component; build it with --target wasm32-wasip2",
                ));
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import.map_err(broken)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export.map_err(broken)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    imports.sort();
    exports.sort();
    Ok((imports, exports))
}

fn refused(why: impl Into<String>) -> ComponentError {
    ComponentError(why.into())
}

fn known(name: &str) -> bool {
    let (interface, version) = split_version(name);
    let package = interface.split('/').next().unwrap_or_default();
    UNGRANTED.contains(&interface)
        || GRANTED.iter().any(|(granted, _)| *granted == interface)
        || (WASI.contains(&package) && interface != NOT_LINKED && version.starts_with("0.2."))
}

fn split_version(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests;
