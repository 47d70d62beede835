//! What a pod gets: variables, nodes, and the slots it claims.

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use serde_json::Value;

use crate::device::Site;

/// Who has the slots of an Instance: the values of `deviceUsage` that are not empty.
fn used(instance: &Value) -> Vec<String> {
    let usage = instance
        .pointer("/spec/deviceUsage")
        .and_then(Value::as_object);
    let values = usage.into_iter().flat_map(|usage| usage.values());
    values
        .filter_map(Value::as_str)
        .filter(|usage| !usage.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_pod_gets_what_the_device_brings_and_its_slot_comes_back() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = cluster.namespace("gets")?;
    space.show_log(&site.home.log_file());
    site.configure("gets", 2, &["one"])?;
    site.home.start(&[])?;
    let name = site.instances(1)?.remove(0);
    let resource = format!("akri.sh/{name}");
    site.until_amounts(&resource, 2, 2)?;
    site.until_amounts("akri.sh/gets", 1, 1)?;
    let pod = Pod::new("a", &[Container::new("main").device(&resource, 1)]).on(site.node);
    space.run(&pod)?;
    space.wait_logs("a", "main", "DEBUG_ECHO_DESCRIPTION=one\n")?;
    let hash = name.trim_start_matches("gets-").to_uppercase();
    space.wait_logs("a", "main", &format!("DEBUG_ECHO_DESCRIPTION_{hash}=one\n"))?;
    let instances = site.home.instances(1)?;
    ensure!(used(&instances[0]) == [site.node.name()], "{instances:#?}");
    site.home.until("the pod is the slot's holder", |status| {
        status.pointer("/kubelet/slots/0/holder") == Some(&format!("{}/a", space.name()).into())
    })?;
    space.delete_now("a")?;
    site.home.until("the slot is free", |status| {
        status
            .pointer("/instances/0")
            .is_some_and(|instance| used(instance).is_empty())
    })?;
    Ok(())
}
