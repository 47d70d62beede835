//! Measures the overhead of a call of a sandboxed handler over a native call of the same Rust function. The call lasts from the opening of
//! a session to the report with its devices; it includes a fresh store, and the check and the conversion of the answer.
//!
//! The two calls alternate, so that other load on the machine affects both.
#![allow(missing_docs, reason = "a benchmark")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench_twenty::Twenty;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{Handler, Loader as _, SourceFile};
use leafhost_core::session::{Devices, Opening, Outcome, SessionSpec};
use leafhost_sdk::testing::{Call, FakeHost};
use leafhost_wasm::{Runtime, RuntimeConfig};

#[path = "../../../tests/bench/table.rs"]
mod table;

const DETAILS: &str = "network: plant";
const GRANTS: &str = "devices: {env: [\"TWENTY_*\"]}";
const DEVICES: usize = 20;
/// Number of warm-up calls.
const WARM: usize = 500;
const CALLS: usize = 5_000;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs with two workers, like the agent on a small machine.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = Runtime::new(RuntimeConfig {
        own_folders: Vec::new(),
        cache_dir: folder.path().join("cache"),
        compiler: Some(env!("CARGO_BIN_EXE_leafhost-compile").into()),
        compile_timeout: Duration::from_mins(1),
        events: Err("no device events in this bench".to_owned()),
        network: Err("no network in this bench".to_owned()),
    })?;
    let handler = runtime
        .load(&SourceFile {
            name: "twenty.wasm".into(),
            bytes: fs::read(guest()?)?.into(),
            grants: Some(GRANTS.into()),
        })
        .await?;
    // In a task of the runtime, like the agent.
    let measured = tokio::spawn(async move {
        let (mut native, mut sandboxed, mut woken) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..WARM + CALLS {
            let (one, other) = (natively()?, sandboxed_call(handler.as_ref()).await?);
            let third = other_thread().await?;
            if turn >= WARM {
                native.push(one);
                sandboxed.push(other);
                woken.push(third);
            }
        }
        for times in [&mut native, &mut sandboxed, &mut woken] {
            times.sort();
        }
        Ok::<_, String>((native, sandboxed, woken))
    });
    let (native, sandboxed, woken) = measured.await??;
    let at = |times: &[Duration], share: usize| {
        let index = times.len().saturating_sub(1) * share / 100;
        times.get(index).copied().unwrap_or_default()
    };
    let us = |time: Duration| format!("{:.1} µs", time.as_secs_f64() * 1e6);
    let over = at(&sandboxed, 50).saturating_sub(at(&native, 50));
    table::print(&[table::Line {
        what: format!(
            "a discover that answers {DEVICES} devices, over the same function called natively, median of {CALLS}"
        ),
        value: us(over),
        target: "≤ 120 µs".into(),
        reference: format!(
            "sandboxed p50 {} p90 {}, native p50 {} p90 {}, to a waiting thread and back p50 {}",
            us(at(&sandboxed, 50)),
            us(at(&sandboxed, 90)),
            us(at(&native, 50)),
            us(at(&native, 90)),
            us(at(&woken, 50))
        ),
    }]);
    Ok(())
}

/// Measures one native call.
fn natively() -> std::result::Result<Duration, String> {
    let begun = Instant::now();
    let found = Call::<Twenty>::new(DETAILS).run(&FakeHost::new());
    let found = found.map_err(|error| format!("{error:?}"))?;
    let took = begun.elapsed();
    match found.devices().len() {
        DEVICES => Ok(took),
        count => Err(format!("{count} devices natively")),
    }
}

/// Measures the round trip to a waiting thread, which is part of each call: on an idle machine a processor has to wake up for it.
async fn other_thread() -> std::result::Result<Duration, String> {
    let begun = Instant::now();
    let back = tokio::task::spawn_blocking(|| ()).await;
    back.map_err(|error| error.to_string())?;
    Ok(begun.elapsed())
}

/// Measures one call of a new session.
async fn sandboxed_call(handler: &dyn Handler) -> std::result::Result<Duration, String> {
    let configuration =
        ConfigurationKey::new("default", "bench").map_err(|error| error.to_string())?;
    let spec = SessionSpec {
        node: "node-a".into(),
        configuration,
        details: DETAILS.into(),
        properties: Vec::new(),
        opening: Opening::First,
    };
    let begun = Instant::now();
    let report = handler.open(spec).next().await;
    let took = begun.elapsed();
    match report.outcome {
        Outcome::Discovered(discovery) => match discovery.devices {
            Devices::Complete(devices) if devices.len() == DEVICES => Ok(took),
            other => Err(format!("not {DEVICES} devices: {other:?}")),
        },
        other => Err(format!("no devices: {other:?}")),
    }
}

/// Returns the path of the component, as `make guests` builds it.
fn guest() -> Result<PathBuf> {
    let compiler = Path::new(env!("CARGO_BIN_EXE_leafhost-compile"));
    let target = compiler.parent().and_then(Path::parent);
    let path = target.ok_or("no build folder")?.join("guests/twenty.wasm");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} does not exist: run `make guests` first", path.display()).into())
}
