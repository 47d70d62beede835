//! Private test networks: bridges in a namespace, and hosts in namespaces of their own with interfaces on one or more bridges.
//!
//! They are invisible to the machine's own interfaces. Names contain the PID of the test, so that the next test can remove the networks of a killed
//! one. Knows nothing of the programs on the hosts.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program;
use crate::requirement::{self, Missing};

/// Prefix of all names; the PID of the test follows it.
pub const PREFIX: &str = "lhlan";
const MADE: &str = "/run/netns";
/// Folder whose files below `<namespace>` appear in `/etc` of the namespace's processes.
const FILES: &str = "/etc/netns";

/// Returns what this machine lacks for the networks.
pub fn missing() -> Option<Missing> {
    requirement::root("sudo -E make test-all")
        .or_else(|| requirement::files(&["/usr/sbin/ip"], "make setup-test"))
}

/// Network of bridges. A host on bridge `n` has the addresses `192.168.(70 + n).x`, `fd70:n::x` and `fe80::x`, with the same x on all.
#[derive(Debug)]
pub struct Lan {
    name: String,
    hosts: AtomicU8,
    namespaces: Mutex<Vec<String>>,
}

/// Host: a network namespace with `eth0` and optionally more interfaces, a default route to nowhere, and no name server.
#[derive(Debug, Clone)]
pub struct Host {
    namespace: String,
    number: u8,
    bridges: Vec<u8>,
}

impl Lan {
    /// Creates a network with one bridge.
    pub fn new() -> Result<Self> {
        Self::with_bridges(1)
    }

    /// Creates a network with several unconnected bridges.
    pub fn with_bridges(count: u8) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            remove_leftovers()?;
        }
        let lan = Self {
            name: format!("{PREFIX}{}-{number}", std::process::id()),
            hosts: AtomicU8::new(9),
            namespaces: Mutex::default(),
        };
        lan.add_namespace(&lan.name)?;
        let mut script = String::from("link set lo up\n");
        for bridge in 0..count {
            write!(
                script,
                "link add br{bridge} type bridge\n\
                 link set br{bridge} up\n\
                 address add {}/24 dev br{bridge}\n",
                gateway(bridge)
            )?;
        }
        ip(&lan.name, &script)?;
        Ok(lan)
    }

    fn add_namespace(&self, name: &str) -> Result<()> {
        let files = Path::new(FILES).join(name);
        fs::create_dir_all(&files).with_context(|| format!("cannot create {}", files.display()))?;
        // Lookups fail at once, so that unknown names cause no wait.
        fs::write(files.join("resolv.conf"), "nameserver 127.0.0.1\n")?;
        fs::write(files.join("hosts"), "127.0.0.1 localhost\n")?;
        program::run("ip", ["netns", "add", name])?.good()?;
        let mut all = self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.push(name.to_owned());
        Ok(())
    }

    /// Adds a host on the first bridge.
    pub fn host(&self, name: &str) -> Result<Host> {
        self.host_on(name, &[0])
    }

    /// Adds a host with `eth0` on the first of these bridges, `eth1` on the second, and so on.
    pub fn host_on(&self, name: &str, bridges: &[u8]) -> Result<Host> {
        let host = Host {
            namespace: format!("{}-{name}", self.name),
            number: self.hosts.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            bridges: bridges.to_vec(),
        };
        self.add_namespace(&host.namespace)?;
        ip(&host.namespace, "link set lo up\n")?;
        for leg in 0..bridges.len() {
            self.connect(&host, leg)?;
        }
        Ok(host)
    }

    /// Connects an interface of a host, for instance one that [`Self::disconnect`] removed.
    pub fn connect(&self, host: &Host, leg: usize) -> Result<()> {
        let (bridge, number) = (host.bridge(leg)?, host.number);
        let end = format!("h{number}-{leg}");
        ip(
            &self.name,
            &format!(
                "link add {end} type veth peer name eth{leg} netns {}\n\
                 link set {end} master br{bridge} up\n",
                host.namespace
            ),
        )?;
        let mut script = format!(
            "link set eth{leg} addrgenmode none\n\
             address add {}/24 brd + dev eth{leg}\n\
             link set eth{leg} up\n\
             address add {}/64 dev eth{leg} nodad\n\
             address add {}/64 dev eth{leg} nodad\n",
            host.address_on(leg)?,
            host.link_local(),
            host.address_v6(leg)?
        );
        if leg == 0 {
            writeln!(script, "route add default via {}", gateway(bridge))?;
        }
        ip(&host.namespace, &script)
    }

    /// Removes an interface of a host.
    pub fn disconnect(&self, host: &Host, leg: usize) -> Result<()> {
        ip(&self.name, &format!("link delete h{}-{leg}\n", host.number))
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let all = self
            .namespaces
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for namespace in all.drain(..).rev() {
            if let Err(error) = remove(&namespace) {
                eprintln!("{namespace} stays: {error:#}");
            }
        }
    }
}

impl Host {
    /// Connects a host without bridges to a bridge of the machine: its `eth0` has this address and the multicast route.
    pub fn join(&self, bridge: &str, address: &str) -> Result<()> {
        let end = format!("{bridge}x{}", self.number);
        let add = ["link", "add", &end, "type", "veth", "peer", "name", "eth0"];
        let add = add.iter().copied().chain(["netns", &*self.namespace]);
        program::run("ip", add)?.good()?;
        program::run("ip", ["link", "set", &end, "master", bridge, "up"])?.good()?;
        let script = format!(
            "address add {address} dev eth0\nlink set eth0 up\nroute add 224.0.0.0/4 dev eth0\n"
        );
        ip(&self.namespace, &script)
    }

    /// Returns the host's address on the bridge of `eth0`.
    pub fn address(&self) -> Result<Ipv4Addr> {
        self.address_on(0)
    }

    /// Returns the host's address on the bridge of `eth<leg>`.
    pub fn address_on(&self, leg: usize) -> Result<Ipv4Addr> {
        let [a, b, c, _] = gateway(self.bridge(leg)?).octets();
        Ok(Ipv4Addr::new(a, b, c, self.number))
    }

    /// Returns the host's link-local address, which is the same on each interface.
    pub fn link_local(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, self.number.into())
    }

    /// Returns the host's unique local address on the bridge of `eth<leg>`.
    pub fn address_v6(&self, leg: usize) -> Result<Ipv6Addr> {
        let bridge = self.bridge(leg)?;
        Ok(Ipv6Addr::new(
            0xfd70,
            bridge.into(),
            0,
            0,
            0,
            0,
            0,
            self.number.into(),
        ))
    }

    fn bridge(&self, leg: usize) -> Result<u8> {
        self.bridges
            .get(leg)
            .copied()
            .with_context(|| format!("{} has no eth{leg}", self.namespace))
    }

    /// Returns a command that runs `program` on the host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace])
            .arg(program);
        command
    }
}

/// Returns the bridge's own address, the target of default routes. Nothing is forwarded.
fn gateway(bridge: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, bridge.saturating_add(70), 1)
}

/// Runs a script of `ip` commands in a namespace.
fn ip(namespace: &str, script: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start ip")?;
    child
        .stdin
        .take()
        .context("ip has no input")?
        .write_all(script.as_bytes())
        .context("ip does not read")?;
    let output = child.wait_with_output().context("cannot run ip")?;
    ensure!(
        output.status.success(),
        "ip in {namespace}: {}\n{script}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Kills the processes in a namespace and removes it, if it exists.
fn remove(namespace: &str) -> Result<()> {
    if Path::new(MADE).join(namespace).exists() {
        let pids = program::run("ip", ["netns", "pids", namespace])?.good()?;
        for pid in pids.split_whitespace() {
            // The process may have ended meanwhile.
            let _ = kill(Pid::from_raw(pid.parse()?), Signal::SIGKILL);
        }
        program::run("ip", ["netns", "delete", namespace])?.good()?;
    }
    let files = Path::new(FILES).join(namespace);
    if files.exists() {
        fs::remove_dir_all(&files).with_context(|| format!("cannot remove {}", files.display()))?;
    }
    Ok(())
}

/// Removes the namespaces of tests that ended without cleanup. The first network of a process calls it.
pub fn remove_leftovers() -> Result<()> {
    for folder in [MADE, FILES] {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries {
            let name = entry.context("cannot list the namespaces")?.file_name();
            let name = name.to_string_lossy();
            let pid = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split('-').next());
            let is_left = pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
            // Another test may be removing the same namespace.
            if is_left
                && let Err(error) = remove(&name)
                && Path::new(folder).join(&*name).exists()
            {
                return Err(error);
            }
        }
    }
    Ok(())
}
