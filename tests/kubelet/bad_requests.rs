//! Allocate calls that no kubelet makes.

use anyhow::{Result, ensure};
use tonic::Code;

use crate::node::{Node, configuration, resource, used};

#[test]
fn what_no_kubelet_asks_is_refused_with_a_reason_and_claims_nothing() -> Result<()> {
    let mut node = Node::new()?;
    node.echo(2, &["foo", "bar"])?;
    let other = configuration("other", 2, &["else"]);
    node.home.write("configurations/other.yaml", other)?;
    node.home.start(&[])?;
    node.until_listed(5)?;
    let foo = node.instance("foo")?;
    let (own, echo) = (resource(&foo), resource("echo"));
    let good = format!("{foo}-0");
    let of_bar = format!("{}-0", node.instance("bar")?);
    let many = |count: usize| (0..count).map(|n| format!("{foo}-{n}")).collect::<Vec<_>>();
    let one = |id: &str| vec![vec![id.to_owned()]];
    let (invalid, missing) = (Code::InvalidArgument, Code::NotFound);
    for (resource, containers, code, words) in [
        (&own, vec![], invalid, "1 to 16 containers"),
        (&own, vec![many(1); 17], invalid, "1 to 16 containers"),
        (&own, vec![vec![]], invalid, "1 to 4096 devices"),
        (&own, vec![many(10_000)], invalid, "1 to 4096 devices"),
        (&own, vec![many(4096)], missing, "does not offer"),
        (&own, one(""), missing, "does not offer"),
        (&own, one(&of_bar), missing, &of_bar),
        (&own, one("echo-0"), missing, "echo-0"),
        (&own, one(&format!("{foo}-2")), missing, "does not offer"),
        (&own, one(&format!("{foo}-00")), missing, "does not offer"),
        (
            &own,
            one(&format!("{foo}-99999999999")),
            missing,
            "does not offer",
        ),
        (&own, one("\u{1b}[2J\n"), missing, r"\u{1b}[2J\n"),
        (&own, one(&"x".repeat(100_000)), missing, "does not offer"),
        (
            &own,
            one(&"x".repeat(5 << 20)),
            Code::OutOfRange,
            "too large",
        ),
        // A known ID and an unknown one: neither is allocated.
        (
            &own,
            vec![vec![good.clone(), of_bar.clone()]],
            missing,
            &of_bar,
        ),
        (
            &own,
            vec![vec![good.clone()], vec![of_bar.clone()]],
            missing,
            &of_bar,
        ),
        (&echo, one(&good), missing, &good),
        (&echo, one("other-0"), missing, "other-0"),
        (&echo, one("echo-7"), missing, "echo-7"),
    ] {
        let Err(status) = node.ask(resource, &containers)? else {
            anyhow::bail!("{resource} gave {words}");
        };
        ensure!(
            status.code() == code && status.message().contains(words),
            "{resource}, {words:?}: {status:?}"
        );
        ensure!(status.message().len() < 1000, "{}", status.message().len());
    }
    assert_eq!(used(&node.usage()?), [].into());

    // The plugin keeps serving; an ID that is named twice is allocated once.
    let answer = node.ask(&own, &[vec![good.clone(), good.clone()]])??;
    assert_eq!(answer.container_responses.len(), 1);
    assert_eq!(used(&node.usage()?), [good].into());
    node.run("p", &echo, 2)?;
    Ok(())
}
