//! Stop of the webhook, without a cluster.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_webhook_that_is_stopped_while_it_loads_a_handler_has_not_died_of_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("handlers"))?;
    let handler = program::handler("udev")?;
    fs::copy(&handler, at("handlers/udev.wasm"))?;
    // Without its grants the handler is refused before the compiler starts.
    let grants = "udev.grants.yaml";
    fs::copy(handler.with_file_name(grants), at("handlers").join(grants))?;
    program::script(&at("compiler"), "exec sleep 60")?;
    // Nothing listens at this address.
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n";
    fs::write(at("kubeconfig"), config)?;
    let child = Command::new(program::leafhost()?)
        .arg("webhook")
        .args(["--listen", "127.0.0.1:0", "--log-level", "error"])
        .arg("--handlers-dir")
        .arg(at("handlers"))
        .arg("--compiler")
        .arg(at("compiler"))
        .arg("--state-dir")
        .arg(at("state"))
        .env("KUBECONFIG", at("kubeconfig"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the webhook")?;
    let loading = || fs::read_to_string(at("state/loading")).unwrap_or_default();
    let is_loading = eventually("it loads the handler", || {
        ensure!(!loading().is_empty());
        Ok(())
    });
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
    let ended = child.wait_with_output()?;
    is_loading.with_context(|| String::from_utf8_lossy(&ended.stderr).into_owned())?;
    ensure!(ended.status.success(), "{ended:?}");
    assert_eq!(loading(), "");
    Ok(())
}
