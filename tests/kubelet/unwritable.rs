//! State folder that cannot be written, so that no slot can be claimed.

use std::fs;

use anyhow::{Result, bail, ensure};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;

use crate::node::{Node, SOON, resource, text};

#[test]
fn while_no_claim_can_be_written_one_pod_fails_the_others_wait_and_everything_says_so() -> Result<()>
{
    let node = Node::with(3, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let uid = node.run("holder", &own, 1)?;
    let held = node.held(&uid, &own);
    let free = (0..3).map(|slot| format!("{name}-{slot}"));
    let free: Vec<String> = free.filter(|id| !held.contains(id)).collect();
    // A file in place of the folder, because root may write to every folder.
    let folder = node.home.path().join("state/instances/default");
    let aside = node.home.path().join("aside");
    fs::rename(&folder, &aside)?;
    fs::write(&folder, "no folder")?;

    let spec = PodSpec::asking("first", &own, 1);
    let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
    let Err(Refusal::Plugin { message, .. }) = refused else {
        bail!("{refused:?}");
    };
    ensure!(message.contains("cannot write the claim"), "{message}");
    for id in &free {
        node.until_health(&own, id, "Unhealthy")?;
    }
    for id in &held {
        node.until_health(&own, id, "Healthy")?;
    }
    node.until("the Configuration's resource offers nothing", |kubelet| {
        let devices = kubelet.devices("akri.sh/echo");
        let offered = devices.values().any(|device| device.health == "Healthy");
        ensure!(!offered, "{devices:?}");
        Ok(())
    })?;
    for asked in [own.as_str(), "akri.sh/echo"] {
        let spec = PodSpec::asking("next", asked, 1);
        let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        // A scheduler would leave such a pod Pending.
        ensure!(
            matches!(
                refused,
                Err(Refusal::NoneHealthy(_) | Refusal::TooFew { .. })
            ),
            "{asked}: {refused:?}"
        );
    }
    let status = node.until_trouble("cannot claim slots")?;
    ensure!(
        status.to_string().contains("is not a folder"),
        "no remedy: {status:#}"
    );
    let refused = node.resource(&own)?;
    ensure!(
        text(&refused, "/refused/reason").contains("cannot write the claim")
            && refused.pointer("/refused/count") == Some(&1.into()),
        "{refused:#}"
    );
    ensure!(node.metric(r#"leafhost_problems{part="kubelet"}"#)? >= 2);
    let ready = node.home.get("/readyz");
    ensure!(ready.is_err(), "ready: {ready:?}");

    fs::remove_file(&folder)?;
    fs::rename(&aside, &folder)?;
    for id in &free {
        node.until_health(&own, id, "Healthy")?;
    }
    node.run("last", &own, 2)?;
    node.until_no_trouble()?;
    node.home.get("/readyz")?;
    ensure!(node.metric(r#"leafhost_problems{part="kubelet"}"#)? == 0);
    Ok(())
}
