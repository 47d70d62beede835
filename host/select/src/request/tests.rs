//! Tests of annotations as people write them.

use super::*;
use crate::expression::{Expression, MAX_EXPRESSION};

fn containers(names: &[&str]) -> Vec<Container> {
    let container = |name: &&str| Container {
        name: (*name).to_owned(),
        kind: ContainerKind::App,
        asks: *name != "idle",
    };
    names.iter().map(container).collect()
}

fn read(text: &str) -> Result<Vec<ContainerRequest>, InvalidRequest> {
    let check = |text: &str| Expression::new(text).map(drop);
    super::read(text, &containers(&["idle", "main"]), check)
}

#[test]
fn a_text_of_a_resource_claim_is_read_as_it_is() {
    let asked = read(
        r#"
main:
  requests:
  - name: gpus
    exactly:
      deviceClassName: gpu.akri.sh
      allocationMode: ExactCount
      count: 2
      selectors:
      - cel:
          expression: device.attributes["leafhost.dev"].vendor == "x"
  - name: net
    firstAvailable:
    - {name: fast, deviceClassName: nic, count: 1}
    - {name: any, deviceClassName: nic.akri.sh, count: 3}
  constraints:
  - {matchAttribute: resource.kubernetes.io/numaNode}
  - {matchAttribute: leafhost.dev/model, requests: [gpus, net/fast]}
"#,
    )
    .unwrap();
    let [main] = &asked[..] else {
        panic!("{asked:#?}");
    };
    assert_eq!((&*main.container, main.place), ("main", 1));
    let [gpus, net] = &main.requests[..] else {
        panic!("{main:#?}");
    };
    let [gpu] = &gpus.alternatives[..] else {
        panic!("{gpus:#?}");
    };
    assert_eq!((&*gpu.configuration, gpu.count), ("gpu", 2));
    assert_eq!(gpu.expressions.len(), 1);
    let alternatives: Vec<_> = net
        .alternatives
        .iter()
        .map(|alternative| {
            (
                alternative.whole_name(net),
                &*alternative.configuration,
                alternative.count,
            )
        })
        .collect();
    assert_eq!(
        alternatives,
        [
            ("net/fast".to_owned(), "nic", 1),
            ("net/any".to_owned(), "nic", 3)
        ]
    );
    let concerns = |index: usize| {
        let one = &main.constraints[index];
        let all = main.requests.iter();
        all.flat_map(|request| {
            request
                .alternatives
                .iter()
                .map(move |alternative| one.concerns(request, alternative))
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(concerns(0), [true, true, true]);
    assert_eq!(concerns(1), [true, true, false]);
    let json = r#"{"main": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]}}"#;
    assert_eq!(read(json).unwrap()[0].requests[0].alternatives[0].count, 1);
}

/// Returns an annotation with one container and one request in this way.
fn one(alternative: &str) -> String {
    format!("{{main: {{requests: [{{name: a, {alternative}}}]}}}}")
}

#[test]
fn what_is_not_taken_is_refused_with_its_field() {
    let long = "x".repeat(MAX_EXPRESSION + 1);
    let many_ways: Vec<String> = (0..200)
        .map(|n| format!("{{name: w{n}, deviceClassName: gpu}}"))
        .collect();
    let requests: Vec<String> = (0..33)
        .map(|n| format!("{{name: r{n}, exactly: {{deviceClassName: gpu}}}}"))
        .collect();
    let selectors = "{cel: {expression: 'true'}}, ".repeat(33);
    let exactly = |fields: &str| one(&format!("exactly: {{deviceClassName: gpu, {fields}}}"));
    for (text, said) in [
        (String::new(), "annotation leafhost.dev/devices: "),
        ("main: [".to_owned(), "leafhost.dev/devices: "),
        ("[1]".to_owned(), "is a list, must be a map"),
        ("{}".to_owned(), "does not describe the devices of container main"),
        ("{main: {requests: []}}".to_owned(), "main.requests: there must be at least one"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: gpu}}]}, other: {requests: []}}".to_owned(), "other: the pod has no such container"),
        ("{idle: {requests: []}, main: {requests: []}}".to_owned(), "idle: the container does not ask"),
        (one("exactly: {}"), "requests[0].exactly: has no deviceClassName"),
        (one("exactly: {deviceClassName: gpu, selectors: [{cel: ['true']}]}"), "is a list, must be a map"),
        (one("x: 1"), "unknown field `x`"),
        (one("exactly: {deviceClassName: gpu}, firstAvailable: []"), "either exactly or firstAvailable"),
        ("{main: {requests: [{name: a}]}}".to_owned(), "either exactly or firstAvailable"),
        ("{main: {requests: [{name: A, exactly: {deviceClassName: gpu}}]}}".to_owned(), "requests[0].name: must be"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: gpu}}, {name: a, exactly: {deviceClassName: gpu}}]}}".to_owned(), "requests[1].name: must be a name of its own"),
        (exactly("count: 0"), "main.requests[0].exactly.count: must be 1 to 32"),
        (exactly("count: 1000000"), "exactly.count: must be 1 to 32"),
        (exactly("count: -1"), "exactly.count: must be 1 to 32"),
        (exactly("allocationMode: All"), "allocationMode: \"All\" is not possible"),
        (exactly("adminAccess: true"), "adminAccess: is not possible"),
        (exactly("tolerations: []"), "unknown field `tolerations`"),
        (one("exactly: {deviceClassName: 'G P U'}"), "deviceClassName: \"G P U\" must be"),
        (one("exactly: {deviceClassName: .akri.sh}"), "deviceClassName: "),
        (exactly(&format!("selectors: [{{cel: {{expression: '{long}'}}}}]")), "selectors[0].cel.expression: the expression has 4097"),
        (exactly("selectors: [{cel: {expression: 'a ='}}]"), "cannot read the expression"),
        (exactly("selectors: [{cel: {expression: '[1].all(x, true)'}}]"), "not allowed"),
        (exactly(&format!("selectors: [{selectors}]")), "more than 32 expressions"),
        (one(&format!("firstAvailable: [{}]", many_ways.join(", "))), "firstAvailable: there are 200; 1 to 8"),
        (one("firstAvailable: [{name: x, deviceClassName: g}, {name: x, deviceClassName: g}]"), "firstAvailable[1].name"),
        (format!("{{main: {{requests: [{}]}}}}", requests.join(", ")), "main.requests: there are 33"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: g, count: 32}}, {name: b, exactly: {deviceClassName: g, count: 32}}, {name: c, exactly: {deviceClassName: g}}]}}".to_owned(), "more than 64 devices"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: g}}], constraints: [{matchAttribute: model}]}}".to_owned(), "constraints[0].matchAttribute: \"model\" must be a domain"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: g}}], constraints: [{distinctAttribute: a/b}]}}".to_owned(), "distinctAttribute"),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: g}}], constraints: [{matchAttribute: a/b, requests: [z]}]}}".to_owned(), "there is no request \"z\""),
        ("{main: {requests: [{name: a, exactly: {deviceClassName: g}}], config: []}}".to_owned(), "unknown field `config`"),
        (format!("{{main: {{requests: [{{name: &a {}, exactly: {{deviceClassName: g}}}}], constraints: [{{matchAttribute: a/b, requests: [{}]}}]}}}}",
            "a".repeat(5_000), "*a, ".repeat(2_000)), "aliases that stand for too much"),
        ("[".repeat(200), "nested more than 32 deep"),
        (" ".repeat(MAX_TEXT + 1), "bytes; at most"),
    ] {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}\n{said}");
        assert!(error.starts_with("annotation leafhost.dev/devices: "));
    }
}
