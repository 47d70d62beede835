//! Random concurrent events from seeds: pods come and go, other nodes claim, stores fail, devices are unplugged, agents are killed,
//! kubelets restart and lose their records, Instances are created again. No slot is ever given twice, and in the end none is lost.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use leafhost_core::device_id::DeviceId;
use leafhost_fakes::Trouble;
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const SEEDS: u64 = 100;
const STEPS: usize = 120;
const HASHES: [&str; 3] = ["a", "b", "c"];
const CAPACITY: u32 = 3;

struct World {
    rig: Rig,
    rng: SmallRng,
    /// Slots that containers really have, by pod.
    truth: BTreeMap<String, Vec<String>>,
    /// Pods of which the kubelet has lost its record.
    lost: BTreeSet<String>,
    fixture: Fixture,
    pods: u32,
    kills: u32,
    log: Vec<String>,
}

fn empty(hash: &str) -> Instance {
    let usage: Vec<_> = (0..CAPACITY).map(|slot| (slot, "")).collect();
    instance("cams", hash, CAPACITY, &usage)
}

impl World {
    /// Returns ids that a kubelet would give: listed Healthy and free by its own records.
    fn free(&mut self, resource: &str, count: usize) -> Option<Vec<String>> {
        let name = ResourceName::new(format!("akri.sh/{resource}")).unwrap();
        let offers = Arc::clone(&self.rig.offers.borrow());
        let held = self.rig.kubelet.state().held.clone();
        let free = offers.get(&name)?.iter().filter(|(id, device)| {
            device.health == Health::Healthy && !held.contains_key(&device_id(resource, id))
        });
        let ids: Vec<String> = free.map(|(id, _)| id.clone()).sample(&mut self.rng, count);
        (ids.len() == count).then_some(ids)
    }

    /// Returns true if an agent that starts now can learn everything the killed one knew: a container that the kubelet has forgotten is
    /// known only to the agent that saw it.
    fn is_known(&self) -> bool {
        self.truth.keys().all(|pod| !self.lost.contains(pod))
    }

    fn kill(&mut self) {
        self.log.push("agent killed".to_owned());
        self.kills += 1;
        self.rig.restart();
    }

    /// Unplugs a device or plugs it in.
    fn plug(&mut self) {
        let hash = HASHES.iter().choose(&mut self.rng).copied().unwrap();
        let view = self.fixture.view("cams", hash);
        view.missing_since = match view.missing_since {
            None => Some(jiff::Timestamp::UNIX_EPOCH),
            Some(_) => None,
        };
        self.log
            .push(format!("{hash} missing {:?}", view.missing_since));
        let devices = Arc::new(self.fixture.devices.clone());
        self.rig.devices.send_replace(devices);
    }

    /// Admits some pods at once; may kill the agent meanwhile.
    async fn start(&mut self) {
        let mut asked: Vec<(String, Vec<String>)> = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let (resource, count) = match self.rng.random_range(0..4) {
                3 => ("cams".to_owned(), self.rng.random_range(1..=2)),
                hash => (format!("cams-{}", HASHES[hash]), 1),
            };
            let Some(ids) = self.free(&resource, count) else {
                continue;
            };
            // The kubelet records ids before it asks.
            let is_new = |(other, others): &(String, Vec<String>)| {
                *other != resource || others.iter().all(|id| !ids.contains(id))
            };
            if asked.iter().all(is_new) {
                asked.push((resource, ids));
            }
        }
        let killed = self.is_known() && self.rng.random_bool(0.2);
        let moment = self.rng.random_range(1..12);
        let task = self.rig.task.abort_handle();
        let end = tokio::spawn(async move {
            for _ in 0..moment {
                tokio::task::yield_now().await;
            }
            if killed {
                task.abort();
            }
        });
        let asking = asked.into_iter().map(|(resource, asked)| {
            let handle = self.rig.handle.clone();
            let name = ResourceName::new(format!("akri.sh/{resource}")).unwrap();
            async move {
                let answer = handle
                    .allocate(&name, asked.iter().cloned().collect())
                    .await;
                (resource, asked, answer)
            }
        });
        let mut asking: JoinSet<_> = asking.collect();
        // The kubelet records each answer when it gets it, whatever the other pods wait for.
        while let Some(answered) = asking.join_next().await {
            let (resource, ids, answer) = answered.unwrap();
            self.log.push(format!("{resource} {ids:?}: {answer:?}"));
            if let Ok(answer) = answer {
                self.run(&resource, &ids, &answer);
            }
        }
        end.await.unwrap();
        if killed {
            self.kill();
        }
    }

    /// Runs the container of an answered allocation.
    fn run(&mut self, resource: &str, ids: &[String], answer: &Allocation) {
        let through = answer.annotations.get("slots.leafhost.dev/cams");
        let slots: Vec<String> = match through {
            Some(pairs) => pairs
                .split(' ')
                .map(|pair| pair.split_once('=').unwrap().1.to_owned())
                .collect(),
            None => ids.to_vec(),
        };
        assert_eq!(slots.len(), ids.len());
        self.pods += 1;
        let pod = format!("p{}", self.pods);
        let device_ids: Vec<DeviceId> = ids.iter().map(|id| device_id(resource, id)).collect();
        self.rig.kubelet.run(&pod, &device_ids);
        for (device_id, slot) in device_ids.iter().zip(&slots) {
            let mut state = self.rig.kubelet.state();
            if let Some((_, answered)) = state.held.get_mut(device_id) {
                *answered = through.map(|_| slot.clone());
            }
        }
        self.truth.insert(pod, slots);
    }

    fn end(&mut self) {
        let Some(pod) = self.truth.keys().choose(&mut self.rng).cloned() else {
            return;
        };
        self.log.push(format!("end {pod}"));
        self.truth.remove(&pod);
        if self.rng.random_bool(0.5) {
            self.rig.kubelet.end(&pod);
        } else {
            // The kubelet has the device id back, the folder goes later, and no event comes.
            let mut state = self.rig.kubelet.state();
            state.held.retain(|_, (holder, _)| *holder != pod);
            state.alive.remove(&pod);
        }
    }

    async fn other_node(&mut self, claims: bool) {
        let set = self.rig.store.set();
        let (from, to) = if claims {
            ("", "node-b")
        } else {
            ("node-b", "")
        };
        let slots = set.instances.values().flat_map(|instance| {
            let usage = instance.spec.device_usage.iter();
            usage
                .filter(|(_, usage)| *usage == from)
                .map(|(slot, _)| (instance.key(), instance.metadata.uid.clone(), slot.clone()))
        });
        let Some((key, uid, id)) = slots.choose(&mut self.rng) else {
            return;
        };
        self.log.push(format!("node-b {claims} {id}"));
        let edits = vec![Edit::Slot {
            id,
            held: from.parse().unwrap(),
            new: to.parse().unwrap(),
            reserved: None,
        }];
        drop(
            self.rig
                .store
                .apply(vec![Change::Update { key, uid, edits }])
                .await,
        );
    }

    /// Creates an Instance again, with the slots that the plan would fill in, or with none.
    async fn recreate(&mut self) {
        let hash = HASHES.iter().choose(&mut self.rng).copied().unwrap();
        let mut instance = empty(hash);
        self.pods += 1;
        instance.metadata.uid = format!("uid-{}", self.pods);
        if self.rng.random_bool(0.5) {
            let held = Arc::clone(&self.rig.held.borrow());
            for (slot, usage) in held.get(&instance.key()).into_iter().flatten() {
                let usage = usage.to_string();
                instance.spec.device_usage.insert(slot.clone(), usage);
            }
        }
        self.log
            .push(format!("anew {:?}", instance.spec.device_usage));
        let key = instance.key();
        self.rig.store.edit(|set| drop(set.instances.remove(&key)));
        if self.rng.random_bool(0.5) {
            idle().await;
        }
        self.rig.put(instance);
        // Other nodes wait until this one has claimed its slots.
        pass(20).await;
    }

    fn restart(&mut self) {
        // Only the kubelet knows a container that no snapshot has shown.
        let report = Arc::clone(&self.rig.report.borrow());
        let is_met = |(pod, slots): (&String, &Vec<String>)| {
            let holder = Some(format!("default/{pod}"));
            slots.iter().all(|slot| {
                let mut views = report.slots.iter();
                views.any(|view| view.slot == *slot && view.holder == holder)
            })
        };
        let loses = self.rng.random_bool(0.3) && self.truth.iter().all(is_met);
        self.log.push(format!("kubelet restarts, loses {loses}"));
        let mut state = self.rig.kubelet.state();
        state.number = state.number.map(|number| number + 1);
        if loses {
            state.held.clear();
            self.lost.extend(self.truth.keys().cloned());
        }
        drop(state);
        self.rig.kubelet.notify();
    }

    async fn step(&mut self) {
        let store = &self.rig.store;
        match self.rng.random_range(0..24) {
            0..6 => self.start().await,
            6..10 => self.end(),
            10 => self.other_node(true).await,
            11 => self.other_node(false).await,
            12 => *store.conflicts.lock().unwrap() = 1,
            13 => *store.unknown.lock().unwrap() = 1,
            14 => {
                let mut broken = store.broken.lock().unwrap();
                *broken = !*broken;
            }
            15 => {
                let seconds = self.rng.random_range(0..10);
                *store.slow.lock().unwrap() = Duration::from_secs(seconds);
            }
            16 => self.rig.kubelet.state().is_mute ^= true,
            17 if !*store.broken.lock().unwrap() && store.slow.lock().unwrap().is_zero() => {
                // Slots that the kubelet cannot show are unknown to the agent.
                pass(20).await;
                let is_mute = self.rig.kubelet.state().is_mute;
                if !is_mute {
                    self.recreate().await;
                }
            }
            18 => self.restart(),
            19 if self.is_known() => self.kill(),
            20 => self.plug(),
            21 => {
                let millis = self.rng.random_range(0..4000);
                self.rig.kubelet.state().slow = Duration::from_millis(millis);
            }
            22 => {
                let mut trouble = store.trouble.lock().unwrap();
                *trouble = match self.rng.random_range(0..3) {
                    0 => Trouble::default(),
                    _ => Trouble {
                        lost: self.rng.random_range(0..30),
                        busy: self.rng.random_range(0..30),
                        slow: self.rng.random_range(0..40),
                    },
                };
            }
            _ => {}
        }
        let wait = self.rng.random_range(0..30_000);
        if self.rng.random_bool(0.3) {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        idle().await;
    }

    /// Asserts that no slot is given twice.
    fn check(&self, seed: u64) {
        let mut name_index: BTreeMap<&str, &str> = BTreeMap::new();
        for (pod, slots) in &self.truth {
            for slot in slots {
                let other = name_index.insert(slot, pod);
                assert_eq!(other, None, "seed {seed}: {slot} {}", self.log.join("\n"));
                let usage = self.rig.usage(slot);
                assert_ne!(
                    usage,
                    "node-b",
                    "seed {seed}: {slot} {}",
                    self.log.join("\n")
                );
            }
        }
    }

    /// Asserts that everything is free again once all faults have ended.
    async fn calm(mut self, seed: u64) {
        let store = &self.rig.store;
        *store.broken.lock().unwrap() = false;
        *store.slow.lock().unwrap() = Duration::ZERO;
        *store.conflicts.lock().unwrap() = 0;
        *store.unknown.lock().unwrap() = 0;
        *store.trouble.lock().unwrap() = Trouble::default();
        for hash in HASHES {
            self.fixture.view("cams", hash).missing_since = None;
        }
        let devices = Arc::new(self.fixture.devices.clone());
        self.rig.devices.send_replace(devices);
        self.rig.kubelet.state().is_mute = false;
        self.rig.kubelet.state().slow = Duration::ZERO;
        pass(60).await;
        self.check(seed);
        for slot in self.truth.values().flatten() {
            assert!(
                self.rig.usage(slot).contains(NODE),
                "seed {seed}: {slot} is in use and free: {}",
                self.log.join("\n")
            );
        }
        for pod in std::mem::take(&mut self.truth).into_keys() {
            self.rig.kubelet.end(&pod);
        }
        for _ in 0..30 {
            self.other_node(false).await;
        }
        pass(GRACE.as_secs() * 2 + 60).await;
        for instance in self.rig.store.set().instances.values() {
            for (slot, usage) in &instance.spec.device_usage {
                assert_eq!(usage, "", "seed {seed}: {slot} {}", self.log.join("\n"));
            }
        }
        for hash in HASHES {
            let listed = self.rig.listed(&format!("cams-{hash}"));
            assert_eq!(listed.matches('+').count(), 3, "seed {seed}: {listed}");
        }
        assert!(self.rig.report.borrow().slots.is_empty(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_slot_is_given_twice_and_none_is_lost() {
    let (mut given, mut kills) = (0, 0);
    for seed in 0..SEEDS {
        let fixture = Fixture::new(&[("cams", &HASHES.map(empty))]);
        let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
        idle().await;
        let mut world = World {
            rig,
            rng: SmallRng::seed_from_u64(seed),
            truth: BTreeMap::new(),
            lost: BTreeSet::new(),
            fixture,
            pods: 0,
            kills: 0,
            log: Vec::new(),
        };
        for _ in 0..STEPS {
            world.step().await;
            world.check(seed);
        }
        given += world.pods;
        kills += world.kills;
        world.calm(seed).await;
    }
    assert!(
        given > 500 && kills > 100,
        "only {given} pods got anything, {kills} kills"
    );
}
