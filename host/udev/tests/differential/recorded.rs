//! Recorded devices: turns the output of `umockdev-record` into a sysfs and udev's database.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Creates the devices of a recording, unless they exist.
pub fn plug(recording: &str) -> io::Result<()> {
    recording.split("\n\n").try_for_each(device)
}

fn device(text: &str) -> io::Result<()> {
    let line = |prefix: &'static str| {
        text.lines()
            .filter_map(move |line| line.strip_prefix(prefix))
    };
    let path = line("P: ").next().unwrap_or_default();
    let folder = format!("/sys{path}");
    if path.is_empty() || Path::new(&folder).join("uevent").exists() {
        return Ok(());
    }
    fs::create_dir_all(&folder)?;
    let (mut kernels, mut udevs) = (Vec::new(), vec!["I:1".to_owned()]);
    let mut subsystem = None;
    for property in line("E: ") {
        let (key, value) = property.split_once('=').unwrap_or((property, ""));
        let tags = value.split(':').filter(|tag| !tag.is_empty());
        match key {
            "SUBSYSTEM" => subsystem = Some(value),
            // The current tags are among all tags that the device ever had.
            "TAGS" => udevs.extend(tags.map(|tag| format!("G:{tag}"))),
            "CURRENT_TAGS" => udevs.extend(tags.map(|tag| format!("Q:{tag}"))),
            // These do not describe the device, but how udev came to know it.
            "DEVLINKS" | "USEC_INITIALIZED" => {}
            _ if key.starts_with("ID_") => udevs.push(format!("E:{property}")),
            "DEVNAME" => kernels.push(format!("{key}={}", value.trim_start_matches("/dev/"))),
            _ => kernels.push(property.to_owned()),
        }
    }
    udevs.push("V:1\n".to_owned());
    for link in line("L: ") {
        let (name, target) = link.split_once('=').unwrap_or((link, ""));
        symlink(target, place(&folder, name)?)?;
        // The kernel sets it, even if the recording lacks it.
        if name == "driver" && !kernels.iter().any(|line| line.starts_with("DRIVER=")) {
            let driver = target.rsplit('/').next().unwrap_or_default();
            kernels.push(format!("DRIVER={driver}"));
        }
    }
    for attribute in line("A: ") {
        let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
        fs::write(place(&folder, name)?, unescaped(value))?;
    }
    for attribute in line("H: ") {
        let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
        fs::write(place(&folder, name)?, unhexed(value))?;
    }
    let kernel = path.rsplit('/').next().unwrap_or_default();
    if let Some(subsystem) = subsystem {
        enlist(path, kernel, subsystem)?;
        fs::write(database_of(&kernels, kernel, subsystem), udevs.join("\n"))?;
    }
    fs::write(format!("{folder}/uevent"), kernels.join("\n") + "\n")
}

/// Returns the path of an attribute; creates its folder if it is missing.
fn place(folder: &str, name: &str) -> io::Result<PathBuf> {
    let path = Path::new(folder).join(name);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    Ok(path)
}

/// Links the device into its bus or class, as the kernel does.
fn enlist(path: &str, kernel: &str, subsystem: &str) -> io::Result<()> {
    let is_bus = ["pci", "platform", "scsi", "usb", "usb-serial"].contains(&subsystem);
    let (place, list) = if is_bus {
        let place = format!("bus/{subsystem}");
        (place.clone(), format!("{place}/devices"))
    } else {
        let place = format!("class/{subsystem}");
        (place.clone(), place)
    };
    fs::create_dir_all(format!("/sys/{list}"))?;
    let up = |path: &str| "../".repeat(path.split('/').count());
    symlink(
        format!("{}{}", up(&list), path.trim_start_matches('/')),
        format!("/sys/{list}/{kernel}"),
    )?;
    let above = "../".repeat(path.matches('/').count());
    symlink(format!("{above}{place}"), format!("/sys{path}/subsystem"))
}

/// Returns the path of a device's file in udev's database.
fn database_of(kernels: &[String], kernel: &str, subsystem: &str) -> String {
    let property = |name: &str| {
        let mut lines = kernels.iter();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let id = match (property("MAJOR"), property("MINOR")) {
        (Some(major), Some(minor)) if subsystem == "block" => format!("b{major}:{minor}"),
        (Some(major), Some(minor)) => format!("c{major}:{minor}"),
        _ => format!("+{subsystem}:{kernel}"),
    };
    format!("/run/udev/data/{id}")
}

fn unescaped(value: &str) -> String {
    let mut text = String::new();
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        text.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            },
            c => c,
        });
    }
    text
}

fn unhexed(value: &str) -> Vec<u8> {
    let digit = |at: usize| {
        value
            .get(at..at + 2)
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    (0..value.len()).step_by(2).filter_map(digit).collect()
}
