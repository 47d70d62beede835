//! USB stick that appears again at its port with other numbers and another product: the same Instance, with the slot of its pod. The agent
//! sees a sysfs of ordinary files.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::kubelet::Blocking;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::mounts::{self, Mounts};
use leafhost_tests::{program, requirement};
use serde_json::Value;

const HUB: &str = "devices/pci0000:00/0000:00:14.0/usb1";

/// Writes a device of a sysfs.
fn device(sys: &Path, path: &str, subsystem: &str, uevent: &str) -> Result<()> {
    let folder = sys.join(path);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("uevent"), uevent)?;
    symlink(format!("/sys/{subsystem}"), folder.join("subsystem"))?;
    Ok(())
}

/// Plugs a stick with a serial port into port 2 of the hub; the kernel has counted up to this number.
fn plug(sys: &Path, number: u8) -> Result<()> {
    let usb = format!("{HUB}/1-2");
    let interface = format!("{usb}/1-2:1.0");
    let port = format!("{interface}/ttyUSB{number}");
    let tty = format!("{port}/tty/ttyUSB{number}");
    let of_usb = format!(
        "MAJOR=189\nMINOR={number}\nDEVNAME=bus/usb/001/00{number}\nDEVTYPE=usb_device\nPRODUCT=403/601{number}/700\n"
    );
    let of_tty = format!("MAJOR=188\nMINOR={number}\nDEVNAME=ttyUSB{number}\n");
    device(sys, &usb, "bus/usb", &of_usb)?;
    device(sys, &interface, "bus/usb", "DEVTYPE=usb_interface\n")?;
    device(sys, &port, "bus/usb-serial", "")?;
    fs::write(sys.join(&port).join("port_number"), "0\n")?;
    device(sys, &tty, "class/tty", &of_tty)?;
    let class = sys.join("class/tty");
    fs::create_dir_all(&class)?;
    let link = class.join(format!("ttyUSB{number}"));
    symlink(format!("../../{tty}"), link)?;
    Ok(())
}

fn unplug(sys: &Path) -> Result<()> {
    fs::remove_dir_all(sys.join("class/tty"))?;
    fs::remove_dir_all(sys.join(HUB).join("1-2"))?;
    Ok(())
}

fn configure(home: &Home, permissions: &str) -> Result<()> {
    let text = format!(
        r#"apiVersion: akri.sh/v0
kind: Configuration
metadata: {{name: sticks}}
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: |
      leafhost.dev/identity: port
      permissions: {permissions}
      udevRules: ['SUBSYSTEM=="tty", KERNEL=="ttyUSB*"']
  capacity: 1
"#
    );
    home.write("configurations/sticks.yaml", text)
}

/// Returns name and device node of the only Instance, and the holder of its slot.
fn only(status: &Value) -> Option<(&str, &str, &str)> {
    let text = |pointer: &str| status.pointer(&format!("/instances/0{pointer}"))?.as_str();
    let name = text("/metadata/name")?;
    let holder = text(&format!("/spec/deviceUsage/{name}-0"))?;
    Some((name, text("/spec/brokerProperties/UDEV_DEVNODE")?, holder))
}

#[test]
fn a_stick_that_appears_again_at_its_port_keeps_its_instance_and_the_slot_of_its_pod() -> Result<()>
{
    if requirement::lacks(mounts::missing())? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let sys = folder.path();
    device(
        sys,
        HUB,
        "bus/usb",
        "DEVTYPE=usb_device\nPRODUCT=1d6b/2/515\n",
    )?;
    plug(sys, 0)?;
    let mounts = Arc::new(Mounts::new()?);
    mounts.mount([OsStr::new("--bind"), sys.as_os_str(), OsStr::new("/sys")])?;
    let dev = tempfile::tempdir()?;
    for (name, major, minor) in [
        ("null", "1", "3"),
        ("ttyUSB0", "188", "0"),
        ("ttyUSB1", "188", "1"),
    ] {
        let path = dev.path().join(name);
        program::run("mknod", [&path.to_string_lossy(), "c", major, minor])?.good()?;
    }
    mounts.mount([
        OsStr::new("--bind"),
        dev.path().as_os_str(),
        OsStr::new("/dev"),
    ])?;
    let node = tempfile::tempdir()?;
    let kubelet = Blocking::start(node.path())?;
    let mut home = Home::new()?;
    home.live_in(&mounts);
    home.serve_kubelet(node.path());
    // libudev otherwise refuses what is no sysfs.
    home.set_environment(&[("SYSTEMD_DEVICE_VERIFY_SYSFS", OsStr::new("0"))]);
    home.add_handler("udev")?;
    configure(&home, "rwm")?;
    home.start(&[])?;
    let found = home.until("the stick is found", |status| only(status).is_some())?;
    let (name, devnode, holder) = only(&found).context("none")?;
    ensure!((devnode, holder) == ("/dev/ttyUSB0", ""), "{found:#}");

    let resource = format!("akri.sh/{name}");
    let run = |pod: &str| -> Result<String> {
        kubelet.wait(kubelet.until_capacity(&resource, 1, 1))?;
        let spec = PodSpec::asking(pod, &resource, 1);
        let (uid, admitted) = kubelet.wait(kubelet.run_pod(&spec))?;
        admitted.with_context(|| home.log())?;
        Ok(uid)
    };
    let nodes = |uid: &str| -> Vec<String> {
        let answer = kubelet.answer(uid, "main", &resource).unwrap_or_default();
        let paths = answer.devices.into_iter().map(|device| device.host_path);
        paths.collect()
    };
    let first = run("first")?;
    ensure!(nodes(&first) == ["/dev/ttyUSB0"], "{:?}", nodes(&first));
    let status = home.until("it is seen who has the slot", |status| {
        status.to_string().contains(r#""holder":"default/first""#)
    })?;
    let (_, _, holder) = only(&status).context("none")?;
    ensure!(!holder.is_empty(), "{status:#}");

    // The kernel announces nothing of this sysfs; each edit makes the agent call the handler again.
    unplug(sys)?;
    configure(&home, "rw")?;
    home.instances(0)?;
    plug(sys, 1)?;
    configure(&home, "rwm")?;
    let expected = Some((name, "/dev/ttyUSB1", holder));
    home.until("the Instance has the new node and the old slot", |status| {
        only(status) == expected
    })?;

    let ids = kubelet.held(&first, "main", &resource);
    kubelet.end_pod(&first);
    kubelet.delete_pod(&first)?;
    home.until("the slot is free", |status| {
        only(status) == Some((name, "/dev/ttyUSB1", ""))
    })?;
    let second = run("second")?;
    ensure!(kubelet.held(&second, "main", &resource) == ids);
    ensure!(nodes(&second) == ["/dev/ttyUSB1"], "{:?}", nodes(&second));
    Ok(())
}
