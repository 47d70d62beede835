//! Adds and removes a real device: events and searches follow.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use leafhost_udev::{Event, Field, Monitor, Rule, Subsystems, Term, find};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Removes the device with a kernel name.
type Remove = Box<dyn Fn(&str) -> io::Result<()>>;

/// A device created by this test, removed on drop.
struct Plugged {
    kernel: String,
    subsystem: &'static str,
    remove: Remove,
}

impl Drop for Plugged {
    fn drop(&mut self) {
        if let Err(error) = (self.remove)(&self.kernel) {
            eprintln!("cannot remove {}: {error}", self.kernel);
        }
    }
}

/// Creates a compressed RAM disk if the kernel supports them, else a pair of network interfaces.
fn plug() -> io::Result<Plugged> {
    if let Ok(number) = fs::read_to_string("/sys/class/zram-control/hot_add") {
        return Ok(Plugged {
            kernel: format!("zram{}", number.trim()),
            subsystem: "block",
            remove: Box::new(|kernel| {
                let number = kernel.trim_start_matches("zram");
                fs::write("/sys/class/zram-control/hot_remove", number)
            }),
        });
    }
    let ip = |arguments: &[&str]| -> io::Result<()> {
        let status = Command::new("ip").arg("link").args(arguments).status()?;
        status
            .success()
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("ip link {arguments:?} failed")))
    };
    let kernel = format!("leaf{}", std::process::id() % 100_000);
    ip(&[
        "add",
        &kernel,
        "type",
        "veth",
        "peer",
        "name",
        &format!("{kernel}p"),
    ])?;
    Ok(Plugged {
        kernel,
        subsystem: "net",
        remove: Box::new(move |kernel| ip(&["del", kernel])),
    })
}

async fn wait_for(
    events: &mut Receiver<Arc<Event>>,
    action: &str,
    kernel: &str,
) -> Option<Arc<Event>> {
    let end = format!("/{kernel}");
    let heard = async {
        loop {
            match events.recv().await {
                Ok(event) if event.action == action && event.devpath.ends_with(&end) => {
                    return Some(event);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), heard)
        .await
        .ok()?
}

#[tokio::test]
async fn events_and_searches_follow_a_device_that_comes_and_goes()
-> Result<(), Box<dyn std::error::Error>> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to make a device; run it with sudo");
        return Ok(());
    }
    let monitor = Monitor::start()?;
    let mut events = monitor.subscribe();
    let device = match plug() {
        Ok(device) => device,
        Err(error) => {
            eprintln!("skipped: this machine lets no device be made ({error})");
            return Ok(());
        }
    };
    let kernel = device.kernel.clone();
    let allowed = Subsystems::new([device.subsystem]);
    let mk_rule = |kernel: &str| {
        Rule::new(vec![Term {
            field: Field::Kernel,
            key: None,
            negated: false,
            value: kernel.to_owned(),
        }])
    };
    let (ours, other) = (mk_rule(&kernel)?, mk_rule("video*")?);

    let added = wait_for(&mut events, "add", &kernel)
        .await
        .ok_or("no add was heard")?;
    assert_eq!(added.subsystem.as_deref(), Some(device.subsystem));
    assert!(ours.wakes_on(&added, &allowed, &|| true));
    assert!(!other.wakes_on(&added, &allowed, &|| true));
    let found = find(std::slice::from_ref(&ours), &allowed)?;
    let matched: Vec<_> = found
        .devices
        .iter()
        .filter(|device| !device.rules.is_empty())
        .collect();
    assert_eq!(matched.len(), 1);
    assert_eq!(matched[0].devpath, added.devpath);
    assert_eq!(matched[0].devnode, added.devnode);

    drop(device);
    let removed = wait_for(&mut events, "remove", &kernel)
        .await
        .ok_or("no remove was heard")?;
    assert!(ours.wakes_on(&removed, &allowed, &|| true));
    assert_eq!(find(&[ours], &allowed)?.devices, []);
    Ok(())
}
