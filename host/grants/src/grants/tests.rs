use std::fmt::Write as _;

use super::*;

/// Returns grants for writing, wider than a file may have them.
fn mk_mounts(patterns: &[&str]) -> DeviceGrants {
    let mounts = patterns.iter().map(|pattern| MountGrant {
        path: Pattern::new(pattern).unwrap(),
        write: true,
    });
    DeviceGrants {
        mounts: mounts.collect(),
        ..DeviceGrants::default()
    }
}

#[test]
fn folders_of_the_agent_and_the_kubelet_fit_no_pattern() {
    let mut devices = mk_mounts(&["/*", "/*/*", "/*/*/*"]);
    assert!(devices.allows_mount("/var/lib", true));
    devices.never = ["/var/lib/kubelet".to_owned(), "/etc/leafhost".to_owned()].into();
    for (path, allowed) in [
        ("/var/lib/kubelet", false),
        ("/var/lib", false),
        ("/var", false),
        ("/etc/leafhost/secrets", false),
        ("/etc", false),
        ("/etc/leafhost2", true),
        ("/var/lib/kubelets", true),
        ("/var/log", true),
        ("/srv", true),
    ] {
        assert_eq!(devices.allows_mount(path, true), allowed, "{path}");
        assert_eq!(devices.allows_mount(path, false), allowed, "{path}");
    }
}

fn problem(text: &str) -> FieldProblem {
    Grants::parse(text).unwrap_err().remove(0)
}

#[test]
fn the_documented_file_is_read() {
    let grants = Grants::parse(
        r#"
network: {interfaces: ["en*", "eth*"], udp: ["239.255.255.250/32:3702", "[ff02::c]/128:3702"], multicast: ["239.255.255.250:3702"], tcp: ["lan:4840-4850"], http: ["lan:*", "api.example.com:443"], tls: verify}
udev: {subsystems: ["*"]}
limits: {memoryMiB: 128, cpuSeconds: 4, wallSeconds: 60, devices: 8192}
devices: {nodes: [udev, "/dev/vfio/*"], mounts: ["/run/udev:ro"], env: ["UDEV_*"]}
"#,
    )
    .unwrap();
    assert_eq!(grants.limits.memory, 128 << 20);
    assert_eq!(grants.limits.wall, Duration::from_mins(1));
    let network = grants.network.as_ref().unwrap();
    assert_eq!(network.udp.len(), 2);
    assert_eq!(network.tcp[0].net, None);
    let ports = network.tcp[0].ports;
    assert_eq!((ports.first, ports.last), (4840, 4850));
    assert!(matches!(&network.http[1], HostPorts::Name(name, _) if name == "api.example.com"));
    let devices = &grants.devices;
    assert!(devices.udev_nodes);
    assert!(devices.allows_node("/dev/vfio/7"));
    assert!(!devices.allows_node("/dev/vfio/a/b"));
    assert!(!devices.allows_node("/dev/sda"));
    assert!(devices.allows_mount("/run/udev", true));
    assert!(!devices.allows_mount("/run/udev", false));
    assert!(devices.allows_env("UDEV_DEVNODE"));
    assert!(!devices.allows_env("OTHER"));
    assert_eq!(grants.warnings(), Vec::<String>::new());
}

#[test]
fn nothing_is_granted_by_an_empty_file() {
    for text in ["", "# nothing\n", "{}", "devices: {}"] {
        assert_eq!(Grants::parse(text).unwrap(), Grants::default(), "{text:?}");
    }
}

#[test]
fn variables_are_granted_by_name_and_by_pattern() {
    for (pattern, name, allowed) in [
        ("A_B", "A_B", true),
        ("A_B", "A_BC", false),
        ("A_*", "A_", true),
        ("A_*", "A_B", true),
        ("A_*", "A", false),
        ("A_*", "BA_", false),
        ("A?_*", "AB_C", true),
        ("A?_*", "A_C", false),
        ("*_B", "A_B", true),
        ("A*B*", "A_BC", true),
        ("A*B*", "A_C", false),
        ("UDEV_*", "UDEV_DEVNODE", true),
    ] {
        let grants = Grants::parse(&format!("devices: {{env: ['{pattern}']}}")).unwrap();
        assert_eq!(grants.devices.allows_env(name), allowed, "{pattern} {name}");
    }
}

#[test]
fn some_variables_are_never_granted() {
    let grants = DeviceGrants {
        env: vec![Pattern::new("*").unwrap()],
        ..DeviceGrants::default()
    };
    for (name, allowed) in [
        ("A", true),
        ("PATH", false),
        ("PATHS", true),
        ("LD_PRELOAD", false),
        ("KUBERNETES_SERVICE_HOST", false),
        ("BASH_ENV", false),
        ("https_proxy", false),
        ("PYTHONSTARTUP", false),
    ] {
        assert_eq!(grants.allows_env(name), allowed, "{name}");
    }
    for pattern in ["PYTHON*", "NODE_OPTIONS", "*_PROXY"] {
        let problems = Grants::parse(&format!("devices: {{env: ['{pattern}']}}")).unwrap_err();
        assert!(
            problems[0].message.contains("is never handed out"),
            "{problems:?}"
        );
    }
}

#[test]
fn a_wrong_field_is_named_with_its_path() {
    for (text, path, words) in [
        ("udeev: {}", "udeev", "unknown field"),
        ("name: 'a b'", "name", "not the name of a handler"),
        ("udev: {subsystem: []}", "udev.subsystem", "unknown field"),
        ("udev: {}", "udev", "has no subsystems"),
        (
            "network: {udp: ['1.2.3.4/33:1']}",
            "network.udp[0]",
            "0 to 32",
        ),
        (
            "network: {udp: ['999.1.1.1/8:1']}",
            "network.udp[0]",
            "not an IP address",
        ),
        (
            "network: {tcp: ['lan:1', '10.0.0.1/8:1']}",
            "network.tcp[1]",
            "10.0.0.0/8",
        ),
        (
            "network: {tcp: ['ff02::c/128:1']}",
            "network.tcp[0]",
            "brackets",
        ),
        (
            "network: {tcp: ['opc.tcp://10.0.0.5:4840/']}",
            "network.tcp[0]",
            "is a URL; write its host and port",
        ),
        (
            "network: {tcp: ['lan:4840, lan:48010']}",
            "network.tcp[0]",
            "not an IP address",
        ),
        (
            "network: {multicast: ['239.255.255.250']}",
            "network.multicast[0]",
            "one port",
        ),
        (
            "network: {tcp: ['10.0.0.0/8']}",
            "network.tcp[0]",
            "CIDR:PORTS",
        ),
        (
            "network: {tcp: ['10.0.0.0/8:0']}",
            "network.tcp[0]",
            "ports",
        ),
        (
            "network: {tcp: ['10.0.0.0/8:9-1']}",
            "network.tcp[0]",
            "ports",
        ),
        (
            "network: {http: ['1.2.3:80']}",
            "network.http[0]",
            "not an IP address",
        ),
        (
            "network: {multicast: ['10.0.0.1:1']}",
            "network.multicast[0]",
            "group",
        ),
        (
            "network: {multicast: ['239.255.255.250:1-9']}",
            "network.multicast[0]",
            "one port",
        ),
        (
            "network: {interfaces: [eth0, '[']}",
            "network.interfaces[1]",
            "not a pattern",
        ),
        (
            "network: {names: ['***']}",
            "network.names[0]",
            "not a pattern",
        ),
        ("network: {tls: none}", "network.tls", "must be `verify`"),
        ("network: {tls: 'pin:12'}", "network.tls", "64 hexadecimal"),
        ("limits: {memoryMiB: 1}", "limits.memoryMiB", "64 to 1024"),
        ("limits: {cpuSeconds: 1000}", "limits.cpuSeconds", "2 to 60"),
        (
            "limits: {devices: -1}",
            "limits.devices",
            "is -1, must be a whole number from 0",
        ),
        (
            "devices: {nodes: ['/etc/passwd']}",
            "devices.nodes[0]",
            "below /dev",
        ),
        (
            "devices: {nodes: ['/dev/../etc']}",
            "devices.nodes[0]",
            "'..'",
        ),
        (
            "devices: {nodes: ['/dev/**']}",
            "devices.nodes[0]",
            "one star",
        ),
        (
            "devices: {mounts: ['/run/udev']}",
            "devices.mounts[0]",
            ":ro",
        ),
        (
            "devices: {mounts: ['/proc/1:ro']}",
            "devices.mounts[0]",
            "/proc",
        ),
        (
            "devices: {mounts: ['run:ro']}",
            "devices.mounts[0]",
            "not absolute",
        ),
        ("devices: {env: ['A-B']}", "devices.env[0]", "a name"),
        ("devices: {env: ['*']}", "devices.env[0]", "has PATH"),
        ("devices: {env: ['P*']}", "devices.env[0]", "has PATH"),
        (
            "devices: {env: ['A_*', '?D_PRELOAD']}",
            "devices.env[1]",
            "has LD_PRELOAD",
        ),
        ("devices: {env: ['L*']}", "devices.env[0]", "has LD_PRELOAD"),
        (
            "devices: {env: ['*_HOST']}",
            "devices.env[0]",
            "has KUBERNETES_SERVICE_HOST",
        ),
        (
            "devices: {env: ['LD_*']}",
            "devices.env[0]",
            "never handed out",
        ),
        (
            "devices: {mounts: ['/etc/*:ro']}",
            "devices.mounts[0]",
            "has /etc/shadow",
        ),
        (
            "devices: {mounts: ['/e?c:ro']}",
            "devices.mounts[0]",
            "has /etc, too",
        ),
        (
            "devices: {mounts: ['/srv:ro', '/*:rw']}",
            "devices.mounts[1]",
            "has /etc, too",
        ),
        (
            "devices: {mounts: ['/*/*:ro']}",
            "devices.mounts[0]",
            "has /etc/shadow",
        ),
        (
            "devices: {mounts: ['/run/*:rw']}",
            "devices.mounts[0]",
            "has /run/docker.sock",
        ),
        (
            "network: {tcp: ['lan:+80']}",
            "network.tcp[0]",
            "without a sign",
        ),
        (
            "network: {http: ['camera:+80']}",
            "network.http[0]",
            "without a sign",
        ),
        (
            "network: {tcp: ['10.0.0.0/08:80']}",
            "network.tcp[0]",
            "a zero in front",
        ),
        (
            "devices: {env: [V7, 8]}",
            "devices.env[1]",
            "is 8, must be text; write it in quotes",
        ),
        (
            "devices: {env: [V7]}\nlimits: 3",
            "limits",
            "is 3, must be a map",
        ),
    ] {
        let problem = problem(text);
        assert_eq!(problem.path, path, "{text}: {problem:?}");
        assert!(problem.message.contains(words), "{text}: {problem:?}");
    }
}

#[test]
fn a_file_made_to_blow_up_is_refused() {
    assert!(
        problem(&"#".repeat(MAX_TEXT + 1))
            .message
            .contains("64 KiB")
    );
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let one = format!("*a{}, ", n - 1);
        let _ = writeln!(bomb, "a{n}: &a{n} [{}]", one.repeat(9));
    }
    bomb.push_str("udev: {subsystems: *a11}\n");
    assert!(!problem(&bomb).message.is_empty());
    let nested = format!("udev: {}", "[".repeat(50_000));
    assert!(!problem(&nested).message.is_empty());
}

#[test]
fn what_a_reader_would_take_long_or_much_for_is_not_read() {
    let long = "x".repeat(30_000);
    for (text, words) in [
        ("[".repeat(MAX_TEXT), "nested more than 32 deep"),
        ("{a: ".repeat(MAX_TEXT / 4), "nested more than 32 deep"),
        (
            format!(
                "udev: {{subsystems: [&a \"{long}\", {}b]}}",
                "*a, ".repeat(6_000)
            ),
            "aliases that stand for too much",
        ),
    ] {
        let problem = problem(&text);
        assert!(problem.message.contains(words), "{problem:?}");
    }
    let text = "udev: {subsystems: [&a usb, *a]}";
    assert!(Grants::parse(text).is_ok(), "{text}");
}

#[test]
fn no_pattern_mounts_the_root_or_what_the_kernel_shows() {
    let grants = mk_mounts(&["/*", "/*/*", "/[dps]*/*/*"]);
    for (path, allowed) in [
        ("/srv", true),
        ("/srv/data", true),
        ("/", false),
        ("/dev", false),
        ("/dev/sda", false),
        ("/proc/1/root", false),
        ("/sys/class", false),
        ("/device", true),
    ] {
        assert_eq!(grants.allows_mount(path, true), allowed, "{path}");
    }
}

#[test]
fn many_entries_are_refused() {
    let text = format!("udev: {{subsystems: [{}]}}", "a, ".repeat(300));
    assert!(problem(&text).message.contains("at most 256"));
}

#[test]
fn what_is_meant_is_written_out_or_begun() {
    for text in [
        "devices: {env: ['UDEV_*', 'A?_*', 'PATHS', 'E', 'K*S']}",
        "devices: {mounts: ['/etc:ro', '/etc/shadow:ro', '/etc/vendor*:ro', '/run/udev:ro', '/srv/*:rw', '/var/lib/vendor/*:ro']}",
        "network: {tcp: ['10.0.0.0/8:80', '0.0.0.0/0:1-65535']}",
    ] {
        assert!(Grants::parse(text).is_ok(), "{text}");
    }
}
