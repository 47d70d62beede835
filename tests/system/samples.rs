//! Samples for clusters, as far as they need none.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use leafhost_tests::mounts;
use leafhost_tests::program::source_tree;
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Returns the commands of the containers of all brokers in the samples.
fn commands() -> Result<Vec<Vec<String>>> {
    let mut commands = Vec::new();
    for entry in fs::read_dir(source_tree().join("deploy/samples/cluster"))? {
        let text = fs::read_to_string(entry?.path())?;
        for document in serde_saphyr::from_multiple::<Value>(&text)? {
            let spec = "/spec/brokerSpec";
            for pod in ["brokerPodSpec", "brokerJobSpec/template/spec"] {
                let containers = document.pointer(&format!("{spec}/{pod}/containers"));
                for container in containers.and_then(Value::as_array).into_iter().flatten() {
                    let command = container.get("command").context("no command")?;
                    commands.push(serde_json::from_value(command.clone())?);
                }
            }
        }
    }
    Ok(commands)
}

#[test]
fn sample_brokers_end_at_sigterm() -> Result<()> {
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    let commands = commands()?;
    ensure!(!commands.is_empty(), "no sample has a broker");
    for command in commands {
        // A server for the broker that uses no port and ends at no signal either.
        let folder = tempfile::tempdir()?;
        let server = folder.path().join("httpd");
        fs::write(
            &server,
            "#!/bin/sh\n: > \"${0%/*}/serves\"\nexec sleep 1000\n",
        )?;
        fs::set_permissions(&server, fs::Permissions::from_mode(0o755))?;
        let path = std::env::var("PATH").unwrap_or_default();
        // As the first process of a container the command gets only signals that it handles.
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .args(&command)
            .env("PATH", format!("{}:{path}", folder.path().display()))
            .stdin(Stdio::null())
            .spawn()
            .context("cannot run unshare")?;
        let ended = eventually("the broker serves", || {
            ensure!(folder.path().join("serves").exists(), "not yet");
            let children = format!("/proc/{0}/task/{0}/children", unshare.id());
            let children = fs::read_to_string(children)?;
            children.trim().parse::<i32>().context("no child")
        })
        .and_then(|broker| {
            kill(Pid::from_raw(broker), Signal::SIGTERM)?;
            eventually("the broker ends", || {
                unshare.try_wait()?.context("it still runs")
            })
        });
        if ended.is_err() {
            unshare.kill()?;
            unshare.wait()?;
        }
        ended.with_context(|| command.join(" "))?;
    }
    Ok(())
}
