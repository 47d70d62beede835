//! Slow readers of the agent's log and slow clients of its endpoint do not delay it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leafhost_tests::agent::{Home, address_in};
use leafhost_tests::program;
use leafhost_tests::wait::{eventually, within};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Child process, killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_unread_log_delays_neither_answers_nor_the_shutdown() -> Result<()> {
    let home = Home::new()?;
    let mut command = home.command(&["--log-level", "debug"])?;
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut agent = Ended(command.spawn()?);
    let mut unread = agent.0.stderr.take().context("no pipe")?;
    fcntl(&unread, FcntlArg::F_SETPIPE_SZ(4096))?;
    let mut lines = BufReader::new(&mut unread).lines().map_while(Result::ok);
    let address = lines.find_map(|line| address_in(&line));
    let address = address.context("no address")?;
    let dropped = || -> Result<u64> {
        let metrics = home.get("/metrics")?;
        let name = "leafhost_log_lines_dropped_total ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.context("no such metric")?.parse()?)
    };
    // Each request writes a log line.
    within(Duration::from_mins(2), "lines are dropped", || {
        for _ in 0..500 {
            let mut stream = TcpStream::connect(&address)?;
            stream.write_all(b"\x16\x03\x01\r\n\r\n")?;
            stream.read_to_end(&mut Vec::new())?;
        }
        ensure!(dropped()? > 0, "none is");
        Ok(())
    })?;
    home.status()?;
    kill(Pid::from_raw(i32::try_from(agent.0.id())?), Signal::SIGTERM)?;
    let ended = within(Duration::from_secs(10), "the agent ends", || {
        agent.0.try_wait()?.context("it still runs")
    })?;
    ensure!(ended.success(), "{ended}");
    drop(unread);
    Ok(())
}

#[test]
fn idle_connections_and_slow_readers_do_not_block_the_status() -> Result<()> {
    let mut home = Home::new()?;
    home.start(&[])?;
    let socket = fs::metadata(home.path().join("state/agent.sock"))?;
    ensure!(socket.permissions().mode() & 0o777 == 0o600);
    let address = home.address()?;
    let mut held = Vec::new();
    for number in 0..80 {
        let mut stream = TcpStream::connect(&address)?;
        if number < 10 {
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n")?;
        }
        held.push(stream);
    }
    home.status()?;
    for path in ["/healthz", "/metrics", "/status"] {
        program::run("curl", ["-sSf", &format!("http://{address}{path}")])?.good()?;
    }
    // The unix socket has its own limits.
    home.status()?;
    home.stop(Signal::SIGTERM)?;
    ensure!(!home.path().join("state/agent.sock").exists());
    drop(held);
    Ok(())
}

#[test]
fn the_first_agent_of_a_node_says_that_it_waits_for_the_api_server() -> Result<()> {
    let mut home = Home::new()?;
    let nobody = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], \
        clusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}], users: [{name: a, user: {token: a}}]}";
    home.write("kubeconfig", nobody)?;
    home.join(&home.path().join("kubeconfig"));
    let mut agent = Ended(home.command(&[])?.stdin(Stdio::null()).spawn()?);
    for arguments in [&["status", "--ready"][..], &["status"]] {
        eventually("it says what it waits for", || {
            let told = home.leafhost(arguments)?;
            let words = "is not ready: starting: the API server does not say which node this is";
            ensure!(told.code == Some(1) && told.err.contains(words), "{told:?}");
            Ok(())
        })?;
    }
    ensure!(
        agent.0.try_wait()?.is_none(),
        "it has ended: {}",
        home.log()
    );
    kill(Pid::from_raw(i32::try_from(agent.0.id())?), Signal::SIGTERM)?;
    within(Duration::from_secs(10), "it ends", || {
        let ended = agent.0.try_wait()?.context("it still runs")?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    })
}
