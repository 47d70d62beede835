//! Guests written as text, compiled with the real compiler: loaded, called, bounded.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test; what the bench cannot do is a failure"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::fault::FaultReason;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{Handler, LoadError, Loader as _, SourceFile};
use leafhost_core::session::{Devices, Opening, Outcome, Report, SessionSpec};
use leafhost_net::Network;
use leafhost_wasm::{Runtime, RuntimeConfig, engine_config};
use wasmtime::Engine;
use wasmtime::component::Component;

mod network;

/// Code that waits an hour, then returns the usual answer.
const ASLEEP: &str = "(call $block (call $after (i64.const 3600000000000))) (i32.const 256)";
/// Code that returns the usual answer.
const ANSWER: &str = "(i32.const 256)";

struct Guest {
    data: String,
    describe: &'static str,
    validate: &'static str,
    discover: String,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            data: String::new(),
            describe: "(i32.const 64)",
            validate: "(i32.const 128)",
            discover: ANSWER.to_owned(),
        }
    }
}

impl Guest {
    fn that(discover: &str) -> Self {
        Self {
            discover: discover.to_owned(),
            ..Self::default()
        }
    }

    fn wasm(&self) -> Vec<u8> {
        let mut text = include_str!("frame.wat").to_owned();
        // Each part begins with a line that is its name.
        for part in include_str!("network.wat").split("\n;; @network").skip(1) {
            let (name, part) = part.split_once('\n').unwrap();
            text = text.replace(&format!("@network{name}"), part);
        }
        let text = text
            .replace("@data@", &self.data)
            .replace("@describe@", self.describe)
            .replace("@validate@", self.validate)
            .replace("@discover@", &self.discover);
        wat::parse_str(text).unwrap()
    }
}

fn no_network() -> Result<Network, String> {
    Err("no network in this test".to_owned())
}

struct Bench {
    folder: tempfile::TempDir,
    runtime: Arc<Runtime>,
}

fn compiler() -> PathBuf {
    env!("CARGO_BIN_EXE_leafhost-compile").into()
}

fn runtime(cache: &Path, compiler: PathBuf, network: Result<Network, String>) -> Arc<Runtime> {
    Runtime::new(RuntimeConfig {
        own_folders: Vec::new(),
        cache_dir: cache.to_owned(),
        compiler: Some(compiler),
        compile_timeout: Duration::from_mins(1),
        events: Err("no device events in this test".to_owned()),
        network,
    })
    .unwrap()
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = runtime(&folder.path().join("cache"), compiler(), no_network());
        Self { folder, runtime }
    }

    async fn load(&self, bytes: &[u8], grants: &str) -> Result<Arc<dyn Handler>, LoadError> {
        let file = SourceFile {
            name: "textual.wasm".into(),
            bytes: bytes.into(),
            grants: Some(grants.into()),
        };
        self.runtime.load(&file).await
    }

    /// Returns the only file of native code.
    fn native(&self) -> PathBuf {
        std::fs::read_dir(self.folder.path().join("cache"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.extension().is_some_and(|ext| ext == "native"))
            .unwrap()
    }

    /// Returns the report of a guest's first call.
    async fn first(&self, guest: &Guest, grants: &str) -> Report {
        let handler = self.load(&guest.wasm(), grants).await.unwrap();
        handler.open(spec()).next().await
    }
}

fn spec() -> SessionSpec {
    SessionSpec {
        node: "node-a".into(),
        configuration: ConfigurationKey::new("default", "texts").unwrap(),
        details: String::new(),
        properties: Vec::new(),
        opening: Opening::First,
    }
}

fn fault(report: &Report) -> (FaultReason, &str) {
    match &report.outcome {
        Outcome::Faulted(fault) => (fault.reason, &fault.message),
        other => panic!("no fault: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_loaded_described_and_called() {
    let bench = Bench::new();
    let wasm = Guest::default().wasm();
    let handler = bench.load(&wasm, "").await.unwrap();
    let description = &handler.facts().description;
    assert_eq!(
        (description.name.as_str(), description.version.as_str()),
        ("textual", "1.2")
    );
    assert!(description.shared);
    assert_eq!(handler.validate("x").await, Ok(Vec::new()));
    let mut session = handler.open(spec());
    let report = session.next().await;
    let Outcome::Discovered(discovery) = &report.outcome else {
        panic!("{report:?}");
    };
    let Devices::Complete(devices) = &discovery.devices else {
        panic!("{discovery:?}");
    };
    assert_eq!(devices[0].id, "dev-1");
    assert!(devices[0].shared);
    assert_eq!(report.call.events, ["first"]);
    assert_eq!(report.call.memory, 2 * 65536);
    assert_eq!(report.call.next, Some(Duration::from_secs(2)));
    assert!(report.call.cpu > Duration::ZERO && report.call.cpu < Duration::from_secs(1));
    let report = session.next().await;
    assert_eq!(report.call.events, ["timer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn native_code_crosses_to_an_engine_without_a_compiler() {
    let bench = Bench::new();
    bench.load(&Guest::default().wasm(), "").await.unwrap();
    let bytes = std::fs::read(bench.native()).unwrap();
    let (_, native) = bytes.split_at(32);
    let mut config = engine_config().unwrap();
    config.enable_compiler(false);
    let engine = Engine::new(&config).unwrap();
    // SAFETY: the compiler has just written this native code.
    #[allow(
        unsafe_code,
        reason = "what the agent does, with an engine as the agent's"
    )]
    let component = unsafe { Component::deserialize(&engine, native) };
    component.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_needs_no_compiler() {
    let bench = Bench::new();
    let wasm = Guest::default().wasm();
    bench.load(&wasm, "").await.unwrap();
    let cache = bench.folder.path().join("cache");
    let again = runtime(&cache, "/nowhere/leafhost-compile".into(), no_network());
    let file = SourceFile {
        name: "textual.wasm".into(),
        bytes: wasm.into(),
        grants: None,
    };
    again.load(&file).await.unwrap();
    // With one changed byte, the code is not run.
    let native = bench.native();
    let mut bytes = std::fs::read(&native).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&native, bytes).unwrap();
    let error = again.load(&file).await.unwrap_err();
    assert!(
        error.message.contains("cannot find the compiler"),
        "{error}"
    );
    assert!(error.transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_beyond_a_limit_is_ended_and_said_why() {
    let bench = Bench::new();
    let bomb = "(drop (memory.grow (i32.const 2000))) unreachable";
    let recursion = "(call $discover (local.get 0))";
    let deep = "(loop $l (br $l)) unreachable";
    for (discover, reason, words) in [
        (
            "unreachable",
            FaultReason::Trap,
            "aborted, as after a panic; in discover",
        ),
        ("(i32.const 0x7ffffff0)", FaultReason::Trap, "out of bounds"),
        (
            "(i32.load (i32.const -8))",
            FaultReason::Trap,
            "out of bounds",
        ),
        (recursion, FaultReason::Trap, "stack"),
        (bomb, FaultReason::Memory, "more than 64 MiB"),
        (deep, FaultReason::CpuBudget, "2 s"),
    ] {
        let report = bench.first(&Guest::that(discover), "").await;
        let (found, message) = fault(&report);
        assert_eq!(found, reason, "{discover}: {message}");
        assert!(message.contains(words), "{discover}: {message}");
        // A fault of the guest delays the next call by a hundred times its CPU time.
        let next = report.call.next.unwrap();
        assert!(next >= report.call.cpu * 100, "{discover}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_function_called_for_ever_is_computing_too() {
    let bench = Bench::new();
    let guest = Guest::that(
        "(loop $l (call $skipped (i32.const 1024) (i32.const 7) (i32.const 1024) (i32.const 7) (i32.const 1024) (i32.const 7)) (br $l)) unreachable",
    );
    let report = bench.first(&guest, "").await;
    assert_eq!(fault(&report).0, FaultReason::CpuBudget);
    assert_eq!(report.explained.len(), 1000);
    assert_eq!(report.explained[0].subject, "textual");
    assert!(report.explained_dropped > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_lines_over_the_rate_are_counted() {
    let bench = Bench::new();
    let guest = Guest::that(
        "(local $n i32) (loop $l (call $write (i32.const 1) (i32.const 1024) (i32.const 7)) (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 50)))) (i32.const 256)",
    );
    let report = bench.first(&guest, "").await;
    assert!(
        matches!(report.outcome, Outcome::Discovered(_)),
        "{report:?}"
    );
    assert_eq!(report.call.log_dropped, 35);
    // An endless loop counts as computing.
    let guest = Guest::that(
        "(loop $l (call $write (i32.const 1) (i32.const 1024) (i32.const 7)) (br $l)) unreachable",
    );
    let report = bench.first(&guest, "").await;
    assert_eq!(fault(&report).0, FaultReason::CpuBudget);
    assert!(report.call.log_dropped > 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_a_limit_is_refused_whole() {
    let bench = Bench::new();
    // 5,000 empty devices.
    let guest = Guest::that(
        "(drop (memory.grow (i32.const 8))) (i32.store (i32.const 264) (i32.const 131072)) (i32.store (i32.const 268) (i32.const 5000)) (i32.const 256)",
    );
    let report = bench.first(&guest, "").await;
    let (reason, message) = fault(&report);
    assert_eq!(reason, FaultReason::AnswerTooLarge);
    assert!(message.contains("5000 devices"), "{message}");
    // With a higher limit, each one is left out by itself.
    let report = bench.first(&guest, "limits: {devices: 5000}").await;
    let Outcome::Discovered(discovery) = &report.outcome else {
        panic!("{report:?}");
    };
    assert_eq!(
        (discovery.left_out.shown.len(), discovery.left_out.more),
        (100, 4900)
    );
    // A list that would fill the host's memory.
    let guest = Guest::that(
        "(drop (memory.grow (i32.const 700))) (i32.store (i32.const 264) (i32.const 131072)) (i32.store (i32.const 268) (i32.const 500000)) (i32.const 256)",
    );
    let report = bench.first(&guest, "").await;
    assert_eq!(fault(&report).0, FaultReason::HostResources);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_example_that_is_refused_is_a_warning() {
    let bench = Bench::new();
    let guest = Guest {
        data: r#"(data (i32.const 192) "\01\00\00\00\e0\00\00\00\01\00\00\00") (data (i32.const 224) "\00\04\00\00\04\00\00\00\10\04\00\00\03\00\00\00")"#.into(),
        validate: "(i32.const 192)",
        ..Guest::default()
    };
    let handler = bench.load(&guest.wasm(), "").await.unwrap();
    assert_eq!(
        handler.facts().warnings,
        ["the handler refuses its own example: text: dev"]
    );
    assert_eq!(handler.validate("").await.unwrap()[0].path, "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_while_loading_may_take_a_moment_whatever_the_grants_say() {
    let bench = Bench::new();
    let grants = "limits: {wallSeconds: 600, cpuSeconds: 60}";
    let asleep = "(call $block (call $after (i64.const 3600000000000))) (i32.const 64)";
    for (describe, words) in [
        (asleep, "`describe` took longer than 5 s"),
        (
            "(loop $l (br $l)) unreachable",
            "`describe` computed longer than 1 s",
        ),
    ] {
        let guest = Guest {
            describe,
            ..Guest::default()
        };
        let error = bench.load(&guest.wasm(), grants).await.unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.message.contains("grants do not raise"), "{error}");
        // A guest that waits is asked again: the machine may have been too busy.
        assert_eq!(error.transient, words.contains("took"), "{error}");
    }
    let guest = Guest {
        validate: "(call $block (call $after (i64.const 3600000000000))) (i32.const 128)",
        ..Guest::default()
    };
    let handler = bench.load(&guest.wasm(), grants).await.unwrap();
    let warning = &handler.facts().warnings[0];
    assert!(
        warning.contains("`validate` took longer than 5 s"),
        "{warning}"
    );
    // A call of a session takes as long as the grants allow.
    let asked = tokio::time::timeout(Duration::from_secs(6), handler.validate("")).await;
    assert!(asked.is_err(), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_handler_is_refused_with_the_reason() {
    let bench = Bench::new();
    let wasm = Guest::default().wasm();
    let mut flipped = wasm.clone();
    let at = flipped.windows(8).position(|at| at == b"textual-").unwrap();
    // The length of the data segment before it.
    flipped[at - 1] ^= 0x40;
    for (bytes, grants, words) in [
        (
            wasm.as_slice(),
            "devices: {nodez: []}",
            "textual.grants.yaml: devices.nodez",
        ),
        (
            wasm.as_slice(),
            "name: onvif",
            "the component is the handler \"textual\", and textual.grants.yaml has `name: onvif`",
        ),
        (&wasm[..wasm.len() / 2], "", "cut off"),
        (b"garbage".as_slice(), "", "not WebAssembly"),
        (flipped.as_slice(), "", "does not compile"),
    ] {
        let error = bench.load(bytes, grants).await.unwrap_err();
        assert!(error.message.contains(words), "{words}: {error}");
        assert!(!error.transient, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_session_ends_its_call_and_gives_its_place_back() {
    let bench = Bench::new();
    let asleep = Guest::that(ASLEEP).wasm();
    let handler = bench.load(&asleep, "").await.unwrap();
    let mut sessions: Vec<_> = (0..4).map(|_| handler.open(spec())).collect();
    let moment = Duration::from_millis(200);
    for session in &mut sessions {
        assert!(tokio::time::timeout(moment, session.next()).await.is_err());
    }
    // Four concurrent calls of a handler, and no fifth.
    let fifth = tokio::time::timeout(moment, handler.validate("")).await;
    assert!(fifth.is_err());
    drop(sessions);
    let fifth = tokio::time::timeout(Duration::from_secs(10), handler.validate("")).await;
    assert_eq!(fifth.unwrap(), Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_sleeps_is_ended_by_the_clock_and_pays_no_computing() {
    let bench = Bench::new();
    let report = bench.first(&Guest::that(ASLEEP), "").await;
    let (reason, message) = fault(&report);
    assert_eq!(reason, FaultReason::WallTimeout, "{message}");
    assert!(report.call.wall >= Duration::from_secs(30));
    assert!(report.call.cpu < Duration::from_secs(1));
}

/// Encodes a section: its number, its length, its content.
fn section(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number][..], &leb(content.len()), content].concat()
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(u8::try_from(number & 127).unwrap() | 128);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// Builds a core module that is short and needs much memory to compile: each of very many branches passes on a thousand values.
fn bomb() -> Vec<u8> {
    let values = b"\x41\x00".repeat(1000);
    let branches = b"\x41\x00\x0d\x00".repeat(1_000_000);
    let body = [b"\x00", values.as_slice(), branches.as_slice(), b"\x0b"].concat();
    let results = [leb(1000), vec![0x7f; 1000]].concat();
    let code = [b"\x01".to_vec(), leb(body.len()), body].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[b"\x01\x60\x00".as_slice(), &results].concat()),
        section(3, b"\x01\x00"),
        section(10, &code),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_too_much_for_the_compiler_is_refused_by_name() {
    let bench = Bench::new();
    let wasm = [Guest::default().wasm(), section(1, &bomb())].concat();
    let error = bench.load(&wasm, "").await.unwrap_err();
    for words in ["which a limit has ended", "memory"] {
        assert!(error.message.contains(words), "{error}");
    }
    assert!(!error.transient, "{error}");
    bench.load(&Guest::default().wasm(), "").await.unwrap();
}

#[tokio::test]
async fn a_component_of_more_parts_than_there_is_room_for_is_refused_and_says_of_what() {
    let bench = Bench::new();
    let guest = Guest {
        data: "(table 1 funcref) ".repeat(17),
        ..Guest::default()
    };
    let error = bench.load(&guest.wasm(), "").await.unwrap_err();
    assert!(!error.transient, "{error:?}");
    assert!(error.message.contains("tables count of 17"), "{error:?}");
}
