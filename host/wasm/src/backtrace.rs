//! Describes the location of a guest's error with readable function names.
//!
//! The names are the guest's: they may have any length, and a demangled name may be exponentially longer than its mangled form. So both
//! are bounded before use, and only Rust names are demangled.

use std::fmt::{self, Write as _};

use leafhost_grants::cut;
use rustc_demangle::try_demangle;
use wasmtime::WasmBacktrace;

/// Maximum number of functions that are named.
const FRAMES: usize = 6;
/// Maximum number of frames that are read: those of the language's panic runtime come first.
const MAX_FRAMES: usize = 32;
/// Maximum length of a name that is demangled, in bytes.
const MAX_MANGLED: usize = 1024;
/// Maximum length of a shown name, in bytes.
const MAX_NAME: usize = 256;
/// Prefixes of functions of a language's panic runtime, which say nothing about the guest.
const RUNTIMES: [&str; 5] = ["std::", "core::", "alloc::", "__rustc::", "__rust"];

/// Formats the backtrace of `error` as `; in f, called by g, h`; empty if it names no function.
pub(crate) fn location(error: &wasmtime::Error) -> String {
    let frames = error
        .downcast_ref::<WasmBacktrace>()
        .map_or(&[][..], WasmBacktrace::frames);
    describe(
        frames
            .iter()
            .map(|frame| (frame.func_name(), frame.func_index())),
    )
}

/// Formats functions, by name or number, innermost first.
fn describe<'a>(frames: impl Iterator<Item = (Option<&'a str>, u32)>) -> String {
    let mut names: Vec<String> = frames
        .take(MAX_FRAMES)
        .map(|(name, index)| match name {
            Some(name) => readable(name),
            None => format!("<wasm function {index}>"),
        })
        .filter(|name| !name.is_empty() && !is_glue(name))
        .collect();
    // A function that calls itself is listed once.
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

/// Returns true for the code that wit-bindgen generates between an export and the guest's function.
fn is_glue(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    last.starts_with("_export_") && last.ends_with("_cabi")
}

/// Demangles a Rust name without its hash; returns any other name unchanged. The result has at most [`MAX_NAME`] bytes.
fn readable(name: &str) -> String {
    let mut readable = Bounded(String::new());
    let demangled = if name.len() <= MAX_MANGLED {
        try_demangle(name).ok()
    } else {
        None
    };
    // A name that does not fit is cut.
    let _ = match demangled {
        Some(demangled) => write!(readable, "{demangled:#}"),
        None => readable.write_str(name),
    };
    readable.0
}

/// Text of at most [`MAX_NAME`] bytes; a write that exceeds them is cut and returns an error.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = cut(text, MAX_NAME - self.0.len());
        self.0.push_str(fits);
        if fits.len() == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> String {
        describe(names.iter().map(|name| (Some(*name), 0)))
    }

    #[test]
    fn functions_of_the_panic_runtime_are_not_the_location() {
        let names = [
            "abort",
            "_RNvNtCshGpAVYOtgW1_3std7process5abort",
            "_ZN3std9panicking11begin_panic17h0123456789abcdefE",
            "_RNvCsgFQFbr2jY4c_7___rustc17rust_begin_unwind",
            "_ZN9rust_cams6deeper17h4c092f5b8f8b3a6eE",
            "_ZN9rust_cams6deeper17h4c092f5b8f8b3a6eE",
            "_RNvNtCshGpAVYOtgW1_3std6thread5local",
            "_ZN5guest8bindings21_export_discover_cabi17hd7d2468c53e44ce2E",
            "leafhost:discovery/handler@0.1.0#discover",
        ];
        assert_eq!(
            named(&names),
            "; in rust_cams::deeper, called by std::thread::local, leafhost:discovery/handler@0.1.0#discover"
        );
    }

    #[test]
    fn a_location_without_names_is_empty_and_one_of_a_runtime_alone_is_named() {
        assert_eq!(describe(std::iter::empty()), "");
        assert_eq!(named(&["", "abort"]), "; in abort");
        let nameless = [(None, 3)].into_iter();
        assert_eq!(describe(nameless), "; in <wasm function 3>");
    }

    #[test]
    fn the_first_six_functions_are_named_of_which_each_is_cut() {
        let long = "ä".repeat(1 << 20);
        let names: Vec<String> = (0..1000).map(|number| format!("{number}{long}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let told = named(&names);
        assert_eq!(told.split(", ").count(), FRAMES);
        assert!(told.len() < FRAMES * (MAX_NAME + 16), "{}", told.len());
    }

    /// Returns a C++ name of a function whose parameters each consist of two of the previous one.
    fn doubling_cpp(times: usize) -> String {
        let mut name = "_Z1f1a1bIS_S_E".to_owned();
        for number in 1..times {
            let digit = char::from_digit(u32::try_from(number).unwrap(), 36).unwrap();
            let digit = digit.to_ascii_uppercase();
            write!(name, "S0_IS{digit}_S{digit}_E").unwrap();
        }
        name
    }

    /// Returns a Rust name with nested tuples, each of two of the previous one.
    fn doubling_rust(times: usize) -> String {
        let mut name = "_RINvC1a1f".to_owned();
        let mut before = None;
        for _ in 0..times {
            let at = name.len() - "_R".len();
            match before {
                None => name.push_str("TllE"),
                Some(before) => {
                    let back = base_62(before);
                    write!(name, "TB{back}B{back}E").unwrap();
                }
            }
            before = Some(at);
        }
        name.push('E');
        name
    }

    fn base_62(number: usize) -> String {
        let Some(mut left) = number.checked_sub(1) else {
            return "_".to_owned();
        };
        let mut digits = Vec::new();
        loop {
            let digit = u8::try_from(left % 62).unwrap();
            digits.push(match digit {
                0..10 => b'0' + digit,
                10..36 => b'a' + digit - 10,
                _ => b'A' + digit - 36,
            });
            left /= 62;
            if left == 0 {
                break;
            }
        }
        digits.reverse();
        digits.push(b'_');
        String::from_utf8(digits).unwrap()
    }

    #[test]
    fn a_name_that_would_be_exponentially_long_is_told_as_far_as_it_goes() {
        let cpp = doubling_cpp(30);
        assert_eq!(readable(&cpp), cut(&cpp, MAX_NAME));
        let rust = doubling_rust(60);
        let told = readable(&rust);
        assert!(told.starts_with("a::f::<(i32, i32), ("), "{told}");
        assert_eq!(told.len(), MAX_NAME);
    }
}
