//! Guests that reach for what they were not granted.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};

use anyhow::{Result, ensure};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::loading::GRANTS;
use crate::yard::{Guest, Yard, session};

/// Has the handler do a deed it can only answer for if nothing came of it, and waits for that answer and for what it was denied.
fn try_in_vain(yard: &mut Yard, details: &str, denied: &[&str]) -> Result<()> {
    let name = yard.serve(details)?;
    yard.bears(|yard| {
        let status = yard.home.until("it was tried", |status| {
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
fn what_is_not_granted_is_not_reached_by_any_way_and_told() -> Result<()> {
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let address = tcp.local_addr()?;
    let udp = UdpSocket::bind(address)?;
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    let reached = address.to_string();
    // With nothing, and with all that is wide.
    let wide = "udev: {subsystems: []}\nnetwork: {interfaces: [lo], tcp: [\"lan:*\", \"0.0.0.0/0:*\"], \
                udp: [\"0.0.0.0/0:*\"], http: [\"lan:*\"]}\n";
    for (grants, denied) in [
        (GRANTS, ("bind to 0.0.0.0:0", "bind to [::]:0")),
        (wide, ("169.254.169.254", "listen")),
    ] {
        let mut yard = Yard::with(Guest::default(), grants)?;
        let denied = [&*reached, "secret.example.com", denied.0, denied.1];
        try_in_vain(&mut yard, &format!("reach {address}"), &denied)?;
        let nobody = tcp.accept().err().map(|error| error.kind());
        assert_eq!(nobody, Some(ErrorKind::WouldBlock), "somebody connected");
        let nothing = udp.recv(&mut [0; 9]).err().map(|error| error.kind());
        assert_eq!(nothing, Some(ErrorKind::WouldBlock), "somebody sent");
        try_in_vain(&mut yard, "files", &[])?;
    }
    Ok(())
}

#[test]
fn devices_of_other_subsystems_are_as_if_they_were_not_there() -> Result<()> {
    let grants = "udev: {subsystems: [net]}\nnetwork: {interfaces: [lo]}\n";
    let mut yard = Yard::with(Guest::default(), grants)?;
    try_in_vain(&mut yard, "foreign", &["udev subsystem \\\"mem\\\""])
}

#[test]
fn attributes_that_are_none_are_not_read_and_rules_are_bounded() -> Result<()> {
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    try_in_vain(&mut yard, "attributes", &[])?;
    try_in_vain(&mut yard, "rules", &[])
}

#[test]
fn costly_wake_rules_delay_nobody_in_a_storm_of_events() -> Result<()> {
    if requirement::lacks(requirement::root("sudo -E make test"))? {
        return Ok(());
    }
    let mut yard = Yard::with(Guest::default(), GRANTS)?;
    let name = yard.serve("wakes")?;
    yard.home.until("its rules are in force", |status| {
        session(status, &name)
            .to_string()
            .contains("the first ones are in force")
    })?;
    yard.bears(|yard| {
        eventually("that they cost too much is told", || {
            for _ in 0..1000 {
                fs::write("/sys/devices/virtual/mem/null/uevent", "change")?;
            }
            let status = yard.home.status()?;
            let told = session(&status, &name).to_string();
            ensure!(told.contains("simpler patterns"), "{told}");
            Ok(())
        })
    })
}
