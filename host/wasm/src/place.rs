//! Where in a guest it happened, in names a person can read.

use wasmtime::WasmBacktrace;

/// The most functions that are named.
const FRAMES: usize = 6;
/// Where functions of a guest's language end up when it gives up: they say nothing of the guest.
const RUNTIMES: [&str; 5] = ["std::", "core::", "alloc::", "__rustc::", "__rust"];

/// `; in f, called by g, h`, as far as names are known.
pub(crate) fn place(error: &wasmtime::Error) -> String {
    // Its text has the names demangled, of whichever language they are.
    let shown = error
        .downcast_ref::<WasmBacktrace>()
        .map(ToString::to_string);
    words(shown.as_deref().unwrap_or_default())
}

fn words(backtrace: &str) -> String {
    let mut names: Vec<String> = backtrace
        .lines()
        .filter_map(|line| line.trim_start().split_once(": "))
        .filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|(_, frame)| frame.split_once('!'))
        .map(|(_, name)| readable(name.trim()))
        .filter(|name| !name.is_empty() && !is_glue(name))
        .collect();
    // A function that calls itself.
    names.dedup();
    let own = names.iter().position(|name| !is_runtime(name));
    names.drain(..own.unwrap_or(0));
    names.truncate(FRAMES);
    match names.split_first() {
        None => String::new(),
        Some((first, [])) => format!("; in {first}"),
        Some((first, callers)) => format!("; in {first}, called by {}", callers.join(", ")),
    }
}

fn is_runtime(name: &str) -> bool {
    let name = name.trim_start_matches('<');
    ["abort", "rust_panic", "rust_begin_unwind"].contains(&name)
        || RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
}

/// What wit-bindgen makes between an export and the guest's function for it.
fn is_glue(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    last.starts_with("_export_") && last.ends_with("_cabi")
}

/// The name without the hashes that Rust's have: `path::name::h0123456789abcdef`, `crate[0123456789abcdef]::name`.
fn readable(name: &str) -> String {
    let name = match name.rsplit_once("::h") {
        Some((path, hash)) if is_hash(hash) => path,
        _ => name,
    };
    let mut parts = name.split('[');
    let mut readable = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((hash, rest)) if is_hash(hash) => readable.push_str(rest),
            _ => {
                readable.push('[');
                readable.push_str(part);
            }
        }
    }
    readable
}

/// Hashes are of sixteen hex digits; a form of them has no leading zeros.
fn is_hash(text: &str) -> bool {
    (8..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_does_to_give_up_is_not_where_it_happened() {
        let backtrace = "error while executing at wasm backtrace:
    0:  0x157f6 - guest.wasm!abort
    1:  0x13d06 - guest.wasm!std[d123b7a1a2ed1472]::process::abort
    2:  0x13c00 - guest.wasm!<std[d123b7a1a2ed1472]::panicking::Rewrap as core[1234567890abcdef]::panic::Payload>::get
    3:  0x13d12 - guest.wasm!__rustc[b7974e8690430dd9]::__rust_abort
    4:   0xa1e2 - guest.wasm!rust_begin_unwind
    5:   0xa1e2 - guest.wasm!rust_cams::deeper::h4c092f5b8f8b3a6e
    6:   0xa1e2 - guest.wasm!rust_cams::deeper::h4c092f5b8f8b3a6e
    7:   0xa1e2 - guest.wasm!<guest::Camera as core::ops::FnOnce<!>>::take::<[u8; 24]>
    8:   0xa1e2 - guest.wasm!std[d123b7a1a2ed1472]::thread::local
    9:   0xb001 - guest.wasm!guest::bindings::exports::handler::_export_discover_cabi::hd7d2468c53e44ce2
   10:   0xb002 - guest.wasm!leafhost:discovery/handler@0.1.0#discover
";
        assert_eq!(
            words(backtrace),
            "; in rust_cams::deeper, called by <guest::Camera as core::ops::FnOnce<!>>::take::<[u8; 24]>, std::thread::local, leafhost:discovery/handler@0.1.0#discover"
        );
    }

    #[test]
    fn a_place_without_names_is_none_and_one_of_a_runtime_alone_is_told() {
        assert_eq!(words(""), "");
        assert_eq!(words("note: a word\n"), "");
        assert_eq!(words("  0: 0x1 - <unknown>!abort\n"), "; in abort");
        let index = "  0: 0x1 - <unknown>!<wasm function 3>\n";
        assert_eq!(words(index), "; in <wasm function 3>");
    }
}
