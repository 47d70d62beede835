//! Tests that floods of datagrams withdraw no camera, and that a camera that appears during one is found within three probes
//! after it.

use super::*;

/// Source and payload of datagram `n` of a flood.
type Drop = fn(u32) -> (String, Vec<u8>);

/// Number of datagrams of a flood.
const FLOOD: u32 = 100_000;

/// Answers the first probe of each scan with a flood while the switch is on.
fn flooding(host: FakeHost, is_on: &Rc<Cell<bool>>, drop: Drop) -> FakeHost {
    let is_on = Rc::clone(is_on);
    host.udp_peer(GROUP, move |_, payload| {
        let is_first = String::from_utf8_lossy(payload).contains("NetworkVideoTransmitter</");
        // Each kind is sent twice.
        let many = if is_on.get() && is_first {
            FLOOD / 2
        } else {
            0
        };
        (0..many)
            .map(|n| {
                let (from, payload) = drop(n);
                UdpAnswer {
                    after: Duration::ZERO,
                    from: from.parse().unwrap(),
                    payload,
                }
            })
            .collect()
    })
}

#[test]
fn a_flood_of_probe_answers_withdraws_no_camera_and_a_new_one_is_found_after_it() {
    let floods: [(&str, Drop); 4] = [
        ("cameras of many hosts", |n| {
            let ip = format!("10.{}.{}.1", n / 250 % 250, n % 250);
            let uuid = format!("{n:08}-0000-0000-0000-{n:012}");
            (
                format!("{ip}:3702"),
                mk_match(&uuid, &format!("http://{ip}/")),
            )
        }),
        ("cameras of one host", |n| {
            let url = format!("http://192.168.7.66:{}/", 1 + n % 60_000);
            (
                "192.168.7.66:3702".to_owned(),
                mk_match(&format!("{n}"), &url),
            )
        }),
        ("what is not a message", |n| {
            let from = format!("10.66.{}.{}:9", n / 250 % 250, n % 250);
            (from, format!("<a>{n}").into_bytes())
        }),
        ("the two cameras, said to be elsewhere", |n| {
            let ip = format!("10.{}.{}.1", n / 250 % 250, n % 250);
            (
                format!("{ip}:3702"),
                mk_match(&uuid(9 + n % 2), &format!("http://{ip}/")),
            )
        }),
    ];
    for (name, drop) in floods {
        let (is_flood, is_new) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let host = flooding(mk_network(), &is_flood, drop);
        let host = with_switched(with_camera(host, 9), 10, &is_new);
        let mut found = call("").run(&host).unwrap();
        assert_eq!(ids(&found), [id(9)], "{name}");
        is_flood.set(true);
        is_new.set(true);
        for _ in 0..3 {
            host.pass(Duration::from_secs(5));
            let began = host.now();
            found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
            assert!(
                host.now().saturating_sub(began) < Duration::from_secs(24),
                "{name}"
            );
            let is_kept = !is_complete(&found) || ids(&found).contains(&id(9).as_str());
            assert!(is_kept && found.departed.is_empty(), "{name}: {found:?}");
            assert!(found.cursor.as_ref().unwrap().len() <= 1 << 20, "{name}");
        }
        is_flood.set(false);
        let mut all = Vec::new();
        for _ in 0..3 {
            host.pass(Duration::from_secs(9));
            found = next(&found, "", vec![Event::Timer]).run(&host).unwrap();
            all.extend(ids(&found).into_iter().map(str::to_owned));
        }
        // The camera is known now or since a scan during the flood.
        let again = call("").run(&host).unwrap();
        assert_eq!(ids(&again), [id(10), id(9)], "{name}");
        assert!(
            all.contains(&id(10)) || found.devices == Devices::Unchanged,
            "{name}: {all:?}"
        );
        let last = next(&found, "", vec![Event::Changed]).run(&host).unwrap();
        assert_eq!(last.devices, Devices::Unchanged, "{name}");
    }
}

#[test]
fn a_flood_of_hellos_prevents_neither_new_cameras_nor_full_scans() {
    let is_new = Rc::new(Cell::new(false));
    let host = with_switched(with_camera(mk_network(), 9), 10, &is_new);
    let mut found = call("").run(&host).unwrap();
    let sent = datagrams(&host);
    let began = host.now();
    let mut all = Vec::new();
    is_new.set(true);
    // Each call receives as many events as fit, and follows the last at once.
    let mut n = 0_u32;
    while host.now().saturating_sub(began) < Duration::from_mins(1) {
        let hellos = (0..64).map(|_| {
            n += 1;
            let ip = format!("10.9.{}.{}", n / 250 % 250, n % 250);
            let announcement = mk_announcement(&format!("{n}"), &format!("http://{ip}/"));
            let payload = mk_message("Hello", &format!("<d:Hello>{announcement}</d:Hello>"));
            mk_datagram(&format!("{ip}:3702"), payload)
        });
        let hellos: Vec<_> = hellos.collect();
        let before = host.now();
        found = next(&found, "", hellos).run(&host).unwrap();
        let took = host.now().saturating_sub(before);
        assert!(took < Duration::from_secs(24), "{took:?}");
        assert!(found.departed.is_empty());
        assert!(!is_complete(&found) || ids(&found).contains(&id(9).as_str()));
        assert!(found.cursor.as_ref().unwrap().len() <= 1 << 20);
        all.extend(ids(&found).into_iter().map(str::to_owned));
        host.pass(Duration::from_millis(100));
    }
    // Full scans continue, no more often than without the flood.
    let looks = (datagrams(&host) - sent) / sent;
    assert!((3..=6).contains(&looks), "{looks}");
    assert!(all.contains(&id(10)), "{all:?}");
}

#[test]
fn a_flood_of_byes_withdraws_no_camera_and_causes_few_requests() {
    let mut host = mk_network();
    for n in 10..42 {
        host = with_camera(host, n);
    }
    let mut found = call("").run(&host).unwrap();
    let before = requests(&host).len();
    for _ in 0..100 {
        let byes = (0..64).map(|n| mk_bye(10 + n % 32, "192.168.7.66:9"));
        found = next(&found, "", byes.collect()).run(&host).unwrap();
        assert!(found.departed.is_empty());
        assert_eq!(found.devices, Devices::Unchanged);
        host.pass(Duration::from_millis(100));
    }
    // Each camera is asked once in five seconds.
    let asked = requests(&host).len() - before;
    assert!(asked <= 3 * 32, "{asked}");
}
