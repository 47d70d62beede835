use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// Builds a component with these imports and a handler of that version.
fn component(imports: &[&str], handler: &str) -> Vec<u8> {
    let mut instances = String::new();
    for name in imports {
        let _ = write!(instances, "(import \"{name}\" (instance))");
    }
    let text = format!(
        "(component {instances} (instance $handler) (export \"{handler}\" (instance $handler)))"
    );
    wat::parse_str(text).unwrap()
}

const SERVED: &str = "leafhost:discovery/handler@0.1.0";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn imports_show_which_grants_are_needed() {
    let wasm = component(
        &[
            "wasi:cli/exit@0.2.6",
            "wasi:sockets/tcp@0.2.12",
            "leafhost:udev/types@0.1.0",
            "leafhost:log/log@0.1.0",
        ],
        SERVED,
    );
    assert_eq!(inspect(&wasm).unwrap().grants, Vec::<String>::new());
    let wasm = component(&["leafhost:udev/devices@0.1.0"], SERVED);
    let inspection = inspect(&wasm).unwrap();
    assert_eq!(inspection.grants, ["udev"]);
    assert_eq!(inspection.size, wasm.len());
    assert_eq!(inspection.packed_size, None);
    let grants = crate::suggest(&inspection);
    let grants = leafhost_grants::Grants::parse(&grants).unwrap();
    assert!(grants.gives("udev"));
}

#[test]
fn the_network_is_suggested_where_it_is_needed_and_as_comments_elsewhere() {
    let suggested = |imports: &[&str]| {
        let inspection = inspect(&component(imports, SERVED)).unwrap();
        crate::suggest(&inspection)
    };
    let parse = |text: &str| leafhost_grants::Grants::parse(text).unwrap();
    let needed = suggested(&["leafhost:net/interfaces@0.1.0"]);
    assert!(parse(&needed).gives("network"));
    parse(&needed.replace("  # ", "  "));
    let text = suggested(&["wasi:sockets/tcp@0.2.6"]);
    assert!(!parse(&text).gives("network"), "{text}");
    let (network, _) = text.split_once("\n# What its devices").unwrap();
    let wide = network
        .replace("# network:", "network:")
        .replace("#   ", "  ");
    assert!(parse(&wide).gives("network"), "{wide}");
}

#[test]
fn a_packed_component_is_the_same_component() {
    let wasm = component(&[], SERVED);
    let packed = gzip(&wasm);
    let inspection = inspect(&packed).unwrap();
    assert_eq!(inspection.digest, inspect(&wasm).unwrap().digest);
    assert_eq!(inspection.packed_size, Some(packed.len()));
}

#[test]
fn what_is_no_handler_is_told_what_it_is() {
    let wasm = component(&[], SERVED);
    let half = wasm.len() / 2;
    let packed = gzip(&wasm);
    let module = wat::parse_str("(module (func (export \"run\")))").unwrap();
    let bomb = gzip(&vec![0; MAX_BYTES + 1]);
    let table: [(&[u8], &str); 15] = [
        (b"", "empty"),
        (
            b"\x7fELF\x02",
            "not WebAssembly (it begins with \"\\x7fELF\\x02\")",
        ),
        (b"  (component)", "as text"),
        (
            &module,
            "core module, not a component; build it with --target wasm32-wasip2",
        ),
        (&wasm[..3], "cut off"),
        (&wasm[..half], "cut off"),
        (&packed[..packed.len() - 9], "cannot unpack"),
        (&bomb, "more than 32 MiB"),
        (
            &component(&[], "example:other/handler@1.0.0"),
            "it exports example:other/handler@1.0.0); register! forgotten?",
        ),
        (
            &component(&[], "leafhost:discovery/handler@0.2.0"),
            "leafhost:discovery@0.2.0; this version of Leafhost supports leafhost:discovery@0.1.0",
        ),
        (
            &component(&["leafhost:udev/devices@7.0.0"], SERVED),
            "built for leafhost:udev@7.0.0",
        ),
        (
            &component(&["leafhost:net/net@0.1.0"], SERVED),
            "imports leafhost:net/net@0.1.0",
        ),
        (
            &component(
                &[
                    "wasi:http/types@0.2.0",
                    "wasi:io/poll@0.3.0",
                    "wasi:io/poll@0.2.0",
                ],
                SERVED,
            ),
            "imports wasi:io/poll@0.3.0, which",
        ),
        (
            &component(&["wasi:http/incoming-handler@0.2.0"], SERVED),
            "imports wasi:http/incoming-handler@0.2.0, which",
        ),
        (
            &component(&["leafhost:udev/secrets@0.1.0"], SERVED),
            "imports leafhost:udev/secrets@0.1.0",
        ),
    ];
    for (bytes, words) in table {
        let error = inspect(bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
}

#[test]
fn no_cut_and_no_flipped_byte_panics() {
    let wasm = component(&["leafhost:udev/devices@0.1.0"], SERVED);
    for at in 0..wasm.len() {
        let _ = inspect(&wasm[..at]);
        for bit in 0..8 {
            let mut flipped = wasm.clone();
            flipped[at] ^= 1 << bit;
            let _ = inspect(&flipped);
        }
    }
}
