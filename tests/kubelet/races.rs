//! Many concurrent Allocates for the same slots, through the Instances' resources and the Configuration's.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use leafhost_kubelet::proto::device_plugin::{AllocateRequest, ContainerAllocateRequest};
use leafhost_tests::kubelet::faults::Trouble;
use leafhost_tests::random::{self, Random};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use crate::node::{Node, resource};

/// Number of calls per agent. The next agent starts with all slots free.
const AN_AGENT: usize = 1000;
const TASKS: usize = 10;
const DEVICES: [&str; 4] = ["a", "b", "c", "d"];
const CAPACITY: u64 = 30;

/// Result of an Allocate: the slot, and the resource and ID it was allocated through.
type Given = (String, (String, String));

async fn ask(
    mut plugin: DevicePluginClient<Channel>,
    asked: (String, String),
) -> Result<Option<Given>> {
    let (resource, id) = &asked;
    let request = ContainerAllocateRequest {
        devices_ids: vec![id.clone()],
    };
    let answer = plugin.allocate(AllocateRequest {
        container_requests: vec![request],
    });
    match answer.await {
        Err(status) => {
            let expected = [Code::ResourceExhausted, Code::NotFound];
            ensure!(expected.contains(&status.code()), "{asked:?}: {status:?}");
            Ok(None)
        }
        Ok(answer) => {
            // The annotation names the slot behind a virtual device.
            let annotation = "slots.leafhost.dev/echo";
            let containers = answer.into_inner().container_responses;
            let slot = containers[0].annotations.get(annotation);
            let slot = match slot.and_then(|pair| pair.split_once('=')) {
                Some((_, slot)) => slot.to_owned(),
                None if resource == "akri.sh/echo" => anyhow::bail!("no annotation for {asked:?}"),
                None => id.clone(),
            };
            Ok(Some((slot, asked)))
        }
    }
}

/// Calls one agent; nothing is released meanwhile. Returns the allocations of each slot.
fn race_one(allocates: usize, random: &mut Random) -> Result<()> {
    let node = Node::with(usize::try_from(CAPACITY)?, &DEVICES, &[])?;
    let names = DEVICES.map(|device| node.instance(device));
    let names = names.into_iter().collect::<Result<Vec<_>>>()?;
    // No pod has the allocated slots, so readable records would free them.
    let error = Trouble::Error(Code::Internal, "out of sorts".to_owned());
    node.kubelet.faults().trouble_pod_resources(Some(error));
    let given: Vec<Given> = node.kubelet.wait(async {
        let mut clients = BTreeMap::new();
        for name in names.iter().map(String::as_str).chain(["echo"]) {
            let name = resource(name);
            // Each resource accepts 32 concurrent calls per connection.
            clients.insert(name.clone(), node.kubelet.dial(&name).await?);
        }
        let mut given = Vec::new();
        let mut asking = JoinSet::new();
        for _ in 0..allocates {
            let name = &names[usize::try_from(random.below(4))?];
            let asked = if random.below(3) == 0 {
                (
                    "akri.sh/echo".to_owned(),
                    format!("echo-{}", random.below(60)),
                )
            } else {
                (resource(name), format!("{name}-{}", random.below(CAPACITY)))
            };
            asking.spawn(ask(clients[&asked.0].clone(), asked));
            if asking.len() >= TASKS {
                let ended = asking.join_next().await.transpose()?.transpose()?;
                given.extend(ended.flatten());
            }
        }
        while let Some(ended) = asking.join_next().await {
            given.extend(ended??);
        }
        anyhow::Ok(given)
    })?;

    let mut by_slot: BTreeMap<&String, BTreeSet<&(String, String)>> = BTreeMap::new();
    for (slot, asked) in &given {
        by_slot.entry(slot).or_default().insert(asked);
    }
    for (slot, asked) in &by_slot {
        ensure!(asked.len() == 1, "{slot} was given for {asked:?}");
    }
    let through = |name: &str| {
        given
            .iter()
            .filter(|(_, (resource, _))| resource == name)
            .count()
    };
    ensure!(
        through("akri.sh/echo") > 0,
        "nothing through the Configuration"
    );
    ensure!(
        given.len() > through("akri.sh/echo"),
        "nothing through an Instance"
    );
    // The store agrees on each slot: the resource and ID, and this node.
    let usage = node.usage()?;
    let said: BTreeMap<&String, String> = by_slot
        .iter()
        .filter_map(|(slot, asked)| Some((*slot, *asked.first()?)))
        .map(|(slot, (resource, id))| match resource.as_str() {
            "akri.sh/echo" => (slot, format!("C:{id}:node-a")),
            _ => (slot, "node-a".to_owned()),
        })
        .collect();
    for (slot, said) in &usage {
        let expected = said.as_str();
        ensure!(
            by_slot.contains_key(slot) != expected.is_empty(),
            "{slot} is used by {said:?}, given for {:?}",
            by_slot.get(slot)
        );
    }
    for (slot, said) in said {
        ensure!(
            usage[slot] == said,
            "{slot}: {} instead of {said}",
            usage[slot]
        );
    }
    Ok(())
}

fn race(allocates: usize, seed: u64) -> Result<()> {
    println!("{allocates} Allocates");
    let mut random = Random::new(seed);
    let mut left = allocates;
    while left > 0 {
        let now = left.min(AN_AGENT);
        race_one(now, &mut random)?;
        left -= now;
    }
    Ok(())
}

#[test]
fn of_many_allocates_at_once_no_two_get_one_slot() -> Result<()> {
    race(2000, 1)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_racing_allocates() -> Result<()> {
    race(random::rounds(100_000), random::seed()?)
}
