//! Folders, files and Configurations in unexpected states.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::kubelet::{Blocking, Restart};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;

use crate::node::{Node, SOON, configuration, list, resource, text, usage_of, used};

fn trouble(home: &Home, words: &str) -> Result<()> {
    home.until(&format!("it says {words:?}"), |status| {
        let problems = list(status, "/kubelet/problems");
        problems
            .iter()
            .any(|problem| problem.to_string().contains(words))
    })
    .map(drop)
}

#[test]
fn a_kubelet_whose_folder_is_missing_a_file_or_late_is_served_once_it_is_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("var/kubelet");
    let mut home = Home::new()?;
    home.add_handler("debug-echo")?;
    home.write(
        "configurations/echo.yaml",
        configuration("echo", 1, &["foo"]),
    )?;
    home.serve_kubelet(&root);
    home.start(&[])?;
    trouble(&home, "no kubelet here")?;
    home.instances(1)?;

    // First no folder, then an empty one.
    fs::create_dir_all(&root)?;
    fs::write(root.join("device-plugins"), "")?;
    trouble(&home, "is not a folder")?;
    fs::remove_file(root.join("device-plugins"))?;
    trouble(&home, "no kubelet here")?;
    fs::create_dir(root.join("device-plugins"))?;
    // No socket, under the kubelet's name.
    fs::write(root.join("device-plugins/kubelet.sock"), "")?;
    trouble(&home, "kubelet.sock is not a socket")?;
    fs::remove_file(root.join("device-plugins/kubelet.sock"))?;
    home.until("no kubelet is there, and nothing is wrong", |status| {
        list(status, "/kubelet/problems").is_empty()
            && status.pointer("/kubelet/present") == Some(&false.into())
    })?;

    let kubelet = Blocking::start(&root)?;
    kubelet.wait(kubelet.until_capacity("akri.sh/echo", 1, 1))?;
    // The whole folder is removed and created again.
    kubelet.wait(kubelet.stop());
    fs::remove_dir_all(&root)?;
    trouble(&home, "no kubelet here")?;
    kubelet.wait(kubelet.start())?;
    kubelet.wait(kubelet.until_capacity("akri.sh/echo", 1, 1))
}

#[test]
fn a_folder_that_may_not_be_written_is_named_and_used_once_it_may() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    if nix::unistd::geteuid().is_root() {
        println!("root may write everywhere: run as another user to see this");
        return Ok(());
    }
    let node = Node::new()?;
    let folder = node.kubelet.device_plugins();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555))?;
    let mut node = node;
    node.echo(1, &["foo"])?;
    node.home.start(&[])?;
    node.until_trouble("cannot create sockets")?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    node.until_listed(2)
}

#[test]
fn a_foreign_file_in_the_place_of_a_socket_is_left_alone_and_named() -> Result<()> {
    let mut node = Node::new()?;
    let path = node.kubelet.device_plugins().join("leafhost-echo.sock");
    fs::write(&path, "not yours")?;
    node.echo(1, &["foo"])?;
    node.home.start(&[])?;
    node.until_problem(
        "akri.sh/echo",
        "leafhost-echo.sock exists and is not a socket",
    )?;
    node.until_problem("akri.sh/echo", "remove it")?;
    eventually("the other resource is there", || {
        let own = resource(&node.instance("foo")?);
        ensure!(text(&node.resource(&own)?, "/state") == "listed");
        Ok(())
    })?;
    // Neither a restart of the kubelet nor one of the agent changes the file.
    node.kubelet
        .wait(node.kubelet.restart(Restart::default()))?;
    node.home.stop(Signal::SIGTERM)?;
    node.home.start(&[])?;
    node.until_problem("akri.sh/echo", "exists and is not a socket")?;
    assert_eq!(fs::read_to_string(&path)?, "not yours");
    fs::remove_file(&path)?;
    node.until_listed(2)
}

#[test]
fn sockets_of_others_and_those_that_are_served_stay() -> Result<()> {
    use std::os::unix::net::UnixListener;
    let mut node = Node::new()?;
    let folder = node.kubelet.device_plugins();
    let dead = |name: &str| UnixListener::bind(folder.join(name)).map(drop);
    dead("leafhost-left-behind.sock")?;
    dead("leafhost-echo.sock")?;
    dead("another-plugin.sock")?;
    let _served = UnixListener::bind(folder.join("leafhost-of-somebody.sock"))?;
    node.echo(1, &["foo"])?;
    node.home.start(&[])?;
    node.until_listed(2)?;
    for (name, there) in [
        ("leafhost-left-behind.sock", false),
        ("another-plugin.sock", true),
        ("leafhost-of-somebody.sock", true),
    ] {
        assert_eq!(folder.join(name).exists(), there, "{name}");
    }
    node.home.stop(Signal::SIGTERM)?;
    assert!(!folder.join("leafhost-echo.sock").exists());
    assert!(folder.join("another-plugin.sock").exists());
    Ok(())
}

#[test]
fn instances_whose_names_are_too_long_for_a_resource_are_had_through_the_configuration()
-> Result<()> {
    let mut node = Node::new()?;
    let (fits, long) = ("f".repeat(56), "l".repeat(57));
    for name in [&fits, &long] {
        node.home.write(
            &format!("configurations/{name}.yaml"),
            configuration(name, 1, &["foo"]),
        )?;
    }
    node.home.start(&[])?;
    node.until_listed(3)?;
    node.until_trouble("give the Configuration a shorter name")?;
    for name in [&fits, &long] {
        let name = resource(name);
        let uid = node.run("p", &name, 1)?;
        assert_eq!(node.held(&uid, &name).len(), 1);
    }
    assert_eq!(used(&node.usage()?).len(), 2);
    Ok(())
}

#[test]
fn new_names_end_at_a_thousand_and_a_restart_does_not_forget_them() -> Result<()> {
    let mut node = Node::new()?;
    let known: String = (0..997).map(|n| format!("echo-{n:06x}\n")).collect();
    node.home.write("state/offered-resources", known)?;
    let arguments = ["--instance-resources", "5"];
    node.home.start(&arguments)?;
    // A handler that returns new IDs at every call.
    for round in 0..5 {
        let new = format!("new{round}");
        node.echo(1, &["stays", &new])?;
        node.instance(&new)?;
        // The Configuration's resource always has both.
        node.kubelet
            .wait(node.kubelet.until("both can be had", |kubelet| {
                let now = kubelet.capacity("akri.sh/echo");
                ensure!(matches!(now, Some((_, 2))), "{now:?}");
                Ok(())
            }))?;
        if round == 2 {
            node.until_trouble("this node has offered 1000 names already")?;
            node.home.stop(Signal::SIGKILL)?;
            node.home.start(&arguments)?;
        }
    }
    let names: std::collections::BTreeSet<_> = node
        .kubelet
        .record()
        .registrations
        .into_iter()
        .map(|one| one.resource)
        .filter(|name| name != "akri.sh/echo")
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    ensure!(names.contains(&resource(&node.instance("stays")?)));
    // A name that was offered before is offered again.
    node.echo(1, &["stays", "new0"])?;
    let again = resource(&node.instance("new0")?);
    node.kubelet
        .wait(node.kubelet.until_capacity(&again, 1, 1))?;
    let text = fs::read_to_string(node.home.path().join("state/offered-resources"))?;
    assert_eq!(text.lines().count(), 1000);
    Ok(())
}

#[test]
fn instances_beyond_the_limit_have_no_resource_and_are_had_through_the_configuration() -> Result<()>
{
    let mut node = Node::new()?;
    node.echo(1, &["a", "b", "c"])?;
    node.home.start(&["--instance-resources", "2"])?;
    node.until_listed(3)?;
    node.until_trouble("--instance-resources")?;
    node.run("p", "akri.sh/echo", 3)?;
    assert_eq!(used(&node.usage()?).len(), 3);
    Ok(())
}

#[test]
fn odd_values_of_device_usage_hurt_nobody_and_keep_their_slot() -> Result<()> {
    let mut node = Node::with(6, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    node.home.stop(Signal::SIGTERM)?;
    let file = node
        .home
        .path()
        .join(format!("state/instances/default/{name}.yaml"));
    let mut yaml = fs::read_to_string(&file)?;
    // Slots 0 to 4: of another node, garbage, of this node without a pod, an older form, and a virtual device that no kubelet can name.
    let odd = [
        "node-b",
        "C:::",
        "node-a",
        "C:3:node-a",
        "C:echo-99999999999:node-a",
    ];
    for (slot, value) in odd.iter().enumerate() {
        let before = ["''", "\"\""].map(|none| format!("{name}-{slot}: {none}\n"));
        let found = before.iter().find(|line| yaml.contains(line.as_str()));
        let found = found.with_context(|| format!("no free slot {slot} in {yaml}"))?;
        yaml = yaml.replace(found, &format!("{name}-{slot}: \"{value}\"\n"));
    }
    // And a slot far beyond the capacity.
    let six = format!("{name}-5:");
    yaml = yaml.replace(&six, &format!("{name}-4000000000: \"node-a\"\n    {six}"));
    fs::write(&file, yaml)?;
    node.home.start(&SOON)?;
    node.until_listed(2)?;
    // The slots of this node are freed, since no pod has them; that of the other node and the garbage stay.
    node.home.until("this node's slots are free", |status| {
        used(&usage_of(status)) == [format!("{name}-0"), format!("{name}-1")].into()
    })?;
    let usage = node.usage()?;
    assert_eq!(usage[&format!("{name}-0")], "node-b");
    assert_eq!(usage[&format!("{name}-1")], "C:::");
    let own = resource(&name);
    node.run("p", &own, 4)?;
    assert_eq!(used(&node.usage()?).len(), 6);
    Ok(())
}
