//! Tests of the harness: bridges are separate, links can be disconnected, a capture sees what leaves a host.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use leafhost_tests::lan::{self, Host, Lan};
use leafhost_tests::program::{self, Ended};
use leafhost_tests::{peer, requirement};

use crate::capture::{Capture, sent_to};

fn script(host: &Host, text: &str) -> Result<Ended> {
    let mut command = host.command("/usr/bin/python3");
    command.args(["-c", text]);
    program::finish(command)
}

fn reaches(from: &Host, to: &str) -> Result<bool> {
    let text = format!(
        "
import errno, socket, sys
family, *_, address = socket.getaddrinfo('{to}', 9, type=socket.SOCK_STREAM)[0]
s = socket.socket(family, socket.SOCK_STREAM)
s.settimeout(2)
sys.exit(0 if s.connect_ex(address) == errno.ECONNREFUSED else 1)
"
    );
    Ok(script(from, &text)?.code == Some(0))
}

#[test]
fn a_capture_sees_what_leaves_a_host_and_where_to() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::with_bridges(2)?;
    let host = lan.host_on("a", &[0, 1])?;
    let capture = Capture::start(&host)?;
    let send = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b'x', ('239.255.255.250', 3702))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('192.168.71.10'))
s.sendto(b'x', ('239.255.255.250', 3702))
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.sendto(b'x', ('ff02::c', 3702, 0, socket.if_nametoindex('eth1')))
";
    script(&host, send)?.good()?;
    let flows = capture.end()?;
    assert_eq!(sent_to(&flows, "239.255.255.250", 3702), 2, "{flows:?}");
    assert_eq!(sent_to(&flows, "ff02::c", 3702), 1, "{flows:?}");
    assert_eq!(sent_to(&flows, "239.255.255.250", 3703), 0, "{flows:?}");
    Ok(())
}

#[test]
fn bridges_are_separate_and_interfaces_can_be_disconnected_and_reconnected() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let lan = Lan::with_bridges(2)?;
    let (a, b) = (lan.host_on("a", &[0])?, lan.host_on("b", &[1])?);
    let both = lan.host_on("both", &[0, 1])?;
    assert!(reaches(&both, &a.address()?.to_string())?);
    assert!(reaches(&both, &b.address()?.to_string())?);
    assert!(reaches(&both, &format!("{}%eth1", b.link_local()))?);
    assert!(!reaches(&a, &b.address()?.to_string())?);

    lan.disconnect(&both, 1)?;
    assert!(!reaches(&both, &b.address()?.to_string())?);
    lan.connect(&both, 1)?;
    assert!(reaches(&both, &b.address()?.to_string())?);
    Ok(())
}

#[test]
fn leftovers_of_a_killed_test_are_removed() -> Result<()> {
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let mut gone = Command::new("true").spawn()?;
    let name = format!("{}{}-0", lan::PREFIX, gone.id());
    gone.wait()?;
    program::run("ip", ["netns", "add", &name])?.good()?;
    let mut left = Command::new("ip")
        .args(["netns", "exec", &name, "cat"])
        .stdin(Stdio::piped())
        .spawn()?;
    let entered = leafhost_tests::wait::eventually("it runs there", || {
        let pids = program::run("ip", ["netns", "pids", &name])?.good()?;
        anyhow::ensure!(!pids.is_empty(), "nothing does");
        Ok(())
    });
    lan::remove_leftovers()?;
    let ended = left.wait()?;
    entered?;
    assert!(!ended.success(), "{ended}");
    assert!(!Path::new("/run/netns").join(&name).exists());
    Ok(())
}
