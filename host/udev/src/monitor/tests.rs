use nix::sys::socket::{setsockopt, sockopt};

use tokio::sync::broadcast::error::TryRecvError;

use super::*;

#[test]
fn the_group_of_udevd_is_used_only_in_its_own_namespace() {
    let socket = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        ffff88: 00000002 00000000 00010000 0005 01 17 /run/udev/control\n";
    let other = socket.replace("control", "control2");
    let table = [
        (true, socket, Group::Udev),
        (true, other.as_str(), Group::Kernel),
        (true, "", Group::Kernel),
        // Without the control socket libudev would listen to nothing.
        (false, socket, Group::Kernel),
    ];
    for (has_control, sockets, expected) in table {
        assert_eq!(Group::choose(has_control, sockets), expected, "{sockets}");
    }
}

#[test]
fn a_dropped_monitor_ends_its_thread() -> io::Result<()> {
    let monitor = Monitor::start_on(Group::Kernel)?;
    let mut events = monitor.subscribe();
    assert_eq!(monitor.group, Group::Kernel);
    drop(monitor);
    loop {
        match events.try_recv() {
            Err(broadcast::error::TryRecvError::Closed) => return Ok(()),
            // Events of the machine may come at any time.
            Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(broadcast::error::TryRecvError::Empty) => panic!("the thread is still there"),
        }
    }
}

#[test]
fn an_overflow_of_the_socket_is_reported_as_lost_events() -> io::Result<()> {
    let uevent = Path::new("/sys/devices/virtual/mem/null/uevent");
    if !nix::unistd::geteuid().is_root() || !uevent.exists() {
        eprintln!("skipped: needs root and /sys; run it with sudo");
        return Ok(());
    }
    let socket = open(Group::Kernel)?;
    setsockopt(&socket, sockopt::RcvBuf, &2304)?;
    for _ in 0..64 {
        if let Err(error) = fs::write(uevent, "change") {
            eprintln!("skipped: /sys cannot be written here ({error})");
            return Ok(());
        }
    }
    let mut heard = Vec::new();
    while let Some(event) = receive(&socket, Group::Kernel)? {
        heard.push(event);
    }
    assert!(heard.iter().any(Event::is_lost), "{} heard", heard.len());
    let change = heard.iter().find(|event| event.action == "change");
    let change = change.map(|event| (event.devpath.as_str(), event.subsystem.as_deref()));
    assert_eq!(change, Some(("/devices/virtual/mem/null", Some("mem"))));
    Ok(())
}

#[test]
fn subscribers_are_notified_when_the_thread_ends() {
    let (events, _) = broadcast::channel(BACKLOG);
    let monitor = Monitor {
        group: Group::Kernel,
        events: events.downgrade(),
        stop: None,
        thread: None,
    };
    let mut before = monitor.subscribe();
    assert!(matches!(before.try_recv(), Err(TryRecvError::Empty)));
    // The thread does this whenever it ends.
    drop(events);
    for mut receiver in [before, monitor.subscribe()] {
        assert!(matches!(receiver.try_recv(), Err(TryRecvError::Closed)));
    }
}
