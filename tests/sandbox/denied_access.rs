//! Guests that try to use resources without a grant.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};

use anyhow::{Result, ensure};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::fixture::{Fixture, Guest, session};
use crate::loading::GRANTS;

/// Runs an action whose answer is good only if everything was denied; waits for that answer and for the reported
/// denials.
fn expect_denied(fixture: &mut Fixture, details: &str, denied: &[&str]) -> Result<()> {
    let name = fixture.serve(details)?;
    fixture.unaffected_by(|fixture| {
        let status = fixture.home.until("it was tried", |status| {
            let session = session(status, &name);
            let called = session.pointer("/sessions/0/events/0");
            called.is_some_and(|event| event == "timer")
        })?;
        let session = session(&status, &name);
        let result = session.pointer("/sessions/0/result");
        ensure!(result.is_some_and(|result| result == "ok"), "{session:#}");
        let told = session.pointer("/sessions/0/denied").map(Value::to_string);
        for words in denied {
            let is_told = told.as_ref().is_some_and(|told| told.contains(words));
            ensure!(is_told, "{words} is not in {session:#}");
        }
        Ok(())
    })
}

#[test]
fn everything_not_granted_is_denied_and_reported() -> Result<()> {
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let address = tcp.local_addr()?;
    let udp = UdpSocket::bind(address)?;
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    let reached = address.to_string();
    // Without network grants, and with wide ones.
    let wide = "udev: {subsystems: []}\nnetwork: {interfaces: [lo], tcp: [\"lan:*\", \"0.0.0.0/0:*\"], \
                udp: [\"0.0.0.0/0:*\"], http: [\"lan:*\"]}\n";
    for (grants, denied) in [
        (GRANTS, ("bind to 0.0.0.0:0", "bind to [::]:0")),
        (wide, ("169.254.169.254", "listen")),
    ] {
        let mut fixture = Fixture::with(Guest::default(), grants)?;
        let denied = [&*reached, "secret.example.com", denied.0, denied.1];
        expect_denied(&mut fixture, &format!("reach {address}"), &denied)?;
        let nobody = tcp.accept().err().map(|error| error.kind());
        assert_eq!(nobody, Some(ErrorKind::WouldBlock), "somebody connected");
        let nothing = udp.recv(&mut [0; 9]).err().map(|error| error.kind());
        assert_eq!(nothing, Some(ErrorKind::WouldBlock), "somebody sent");
        expect_denied(&mut fixture, "files", &[])?;
    }
    Ok(())
}

#[test]
fn devices_of_subsystems_that_are_not_granted_are_invisible() -> Result<()> {
    let grants = "udev: {subsystems: [net]}\nnetwork: {interfaces: [lo]}\n";
    let mut fixture = Fixture::with(Guest::default(), grants)?;
    expect_denied(&mut fixture, "foreign", &["udev subsystem \\\"mem\\\""])
}

#[test]
fn only_attributes_are_read_and_rules_are_bounded() -> Result<()> {
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    expect_denied(&mut fixture, "attributes", &[])?;
    expect_denied(&mut fixture, "rules", &[])
}

#[test]
fn costly_wake_rules_delay_no_other_handler_in_a_storm_of_events() -> Result<()> {
    if requirement::lacks(requirement::root("sudo -E make test"))? {
        return Ok(());
    }
    let mut fixture = Fixture::with(Guest::default(), GRANTS)?;
    let name = fixture.serve("wakes")?;
    fixture.home.until("its rules are in effect", |status| {
        session(status, &name)
            .to_string()
            .contains("the first ones are in effect")
    })?;
    fixture.unaffected_by(|fixture| {
        eventually("that they cost too much is told", || {
            for _ in 0..1000 {
                fs::write("/sys/devices/virtual/mem/null/uevent", "change")?;
            }
            let status = fixture.home.status()?;
            let told = session(&status, &name).to_string();
            ensure!(told.contains("simpler patterns"), "{told}");
            Ok(())
        })
    })
}
