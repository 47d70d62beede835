//! The policy after the task that follows the interfaces has ended.

use super::*;

#[tokio::test]
async fn nothing_is_allowed_once_the_interfaces_are_not_followed_any_more() {
    let (sender, receiver) = watch::channel(Arc::new(mk_node()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let follower = tokio::spawn(async move {
        let _sender = sender;
        let _ = ended.await;
    });
    let network = Network::followed(receiver, follower);
    let grants = NetworkGrants {
        udp: parsed(&["lan:3702", "239.255.255.250:3702"]),
        tcp: parsed(&["0.0.0.0/0:80"]),
        http: parsed(&["0.0.0.0/0:80", "camera.example:80"]),
        ..NetworkGrants::default()
    };
    let policy = Policy::new(Arc::new(grants), network.clone());
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let group = address("239.255.255.250:3702");
    let outcomes = || {
        [
            policy.bind(address("192.168.7.20:0")),
            policy.send(address("192.168.7.9:3702")),
            policy.receive(address("192.168.7.9:3702"), &[group]),
            policy.connect(address("1.2.3.4:80")),
            policy.request("1.2.3.4", address("1.2.3.4:80")),
            policy.request("camera.example", address("1.2.3.4:80")),
        ]
    };
    assert_eq!(outcomes(), [const { Ok(()) }; 6]);
    assert!(!policy.interfaces().is_empty());
    drop(end);
    while network.interfaces().is_ok() {
        tokio::task::yield_now().await;
    }
    for outcome in outcomes().into_iter().chain([policy.send_unbound(group)]) {
        let Denied(why) = outcome.unwrap_err();
        assert!(why.contains("no longer follows the network"), "{why}");
    }
    assert!(policy.interfaces().is_empty());
}
