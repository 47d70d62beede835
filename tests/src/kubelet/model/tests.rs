use leafhost_kubelet::proto::device_plugin::{NumaNode, TopologyInfo};

use super::*;

const R: &str = "akri.sh/r";

fn ids(ids: &[&str]) -> Ids {
    ids.iter().map(|&id| id.to_owned()).collect()
}

/// Lists one device per letter: upper case is unhealthy, `x` is near NUMA nodes 0 and 1.
fn list(model: &mut Model, letters: &str) {
    let devices: Vec<Device> = letters
        .chars()
        .map(|letter| Device {
            id: letter.to_ascii_lowercase().to_string(),
            health: if letter.is_uppercase() {
                "Unhealthy"
            } else {
                "Healthy"
            }
            .to_owned(),
            topology: (letter == 'x').then(|| TopologyInfo {
                nodes: vec![NumaNode { id: 0 }, NumaNode { id: 1 }],
            }),
        })
        .collect();
    model.list(R, &devices);
}

fn asking(uid: &str) -> Asking<'_> {
    Asking {
        uid,
        container: "main",
        runs_already: false,
    }
}

fn give(model: &mut Model, uid: &str, count: usize) -> Result<Ids, Refusal> {
    let taken = match model.begin(asking(uid), R, count)? {
        Step::Nothing => return Ok(Ids::new()),
        Step::Allocate(ids) => ids,
        Step::Choose(choice) => model.choose(R, choice, &Ids::new()),
    };
    model.finish(asking(uid), R, &taken, ContainerAllocateResponse::default())?;
    Ok(taken)
}

#[test]
fn only_free_and_healthy_devices_are_given() {
    let r = || R.to_owned();
    for (letters, held, count, expected) in [
        ("ab", 0, 2, Ok(2)),
        ("aB", 0, 1, Ok(1)),
        ("AB", 0, 1, Err(Refusal::NoneHealthy(r()))),
        ("", 0, 1, Err(Refusal::NoneHealthy(r()))),
        (
            "aB",
            0,
            2,
            Err(Refusal::TooFew {
                resource: r(),
                needed: 2,
                available: 1,
            }),
        ),
        (
            "ab",
            1,
            2,
            Err(Refusal::TooFew {
                resource: r(),
                needed: 2,
                available: 1,
            }),
        ),
    ] {
        let mut model = Model::default();
        list(&mut model, letters);
        if held > 0 {
            give(&mut model, "other", held).unwrap();
        }
        let given = give(&mut model, "p", count).map(|ids| ids.len());
        assert_eq!(given, expected, "{letters} {held} {count}");
    }
}

#[test]
fn a_container_that_has_its_devices_is_asked_for_their_health_only() {
    let mut model = Model::default();
    assert_eq!(
        give(&mut model, "p", 1),
        Err(Refusal::Unregistered(R.to_owned()))
    );
    list(&mut model, "a");
    give(&mut model, "p", 1).unwrap();
    assert_eq!(give(&mut model, "p", 1), Ok(Ids::new()));
    list(&mut model, "Ab");
    assert_eq!(
        give(&mut model, "p", 1),
        Err(Refusal::HeldUnhealthy(R.to_owned()))
    );
    let running = Asking {
        runs_already: true,
        ..asking("p")
    };
    assert_eq!(model.begin(running, R, 1), Ok(Step::Nothing));
}

#[test]
fn an_id_is_booked_at_each_of_its_numa_nodes() {
    let mut model = Model::default();
    list(&mut model, "ax");
    give(&mut model, "p", 2).unwrap();
    let given = model.given("p", "main", R).unwrap();
    let x = || vec!["x".to_owned()];
    let expected = [(-1, vec!["a".to_owned()]), (0, x()), (1, x())];
    assert_eq!(given.ids, expected.into());
    assert_eq!(given.ids(), ids(&["a", "x"]));
}

#[test]
fn an_order_depends_on_the_seed_alone() {
    let first_of = |seed| {
        let mut model = Model {
            seed,
            ..Model::default()
        };
        list(&mut model, "abcdefgh");
        give(&mut model, "p", 1).unwrap()
    };
    let firsts: BTreeSet<Ids> = (0..32).map(first_of).collect();
    assert!(firsts.len() > 3, "{firsts:?}");
    assert_eq!(first_of(7), first_of(7));
}
