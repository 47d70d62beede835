//! Random Instances generated from their own schema: the API server accepts each of them, so each must be readable.

use std::collections::BTreeSet;

use kube::core::DeserializeGuard;
use leafhost_core::device::Health;
use leafhost_core::instance::{Edit, Instance, NodeStatus};
use leafhost_core::slot::DeviceUsage;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Map, Value, json};

use super::definitions;
use crate::instance::patch;
use crate::instance::{self, InstanceObject};

const SEEDS: u64 = 3000;
const NODE: &str = "node-a";
const NAME: &str = "cams-8120fe";
/// Number of items where the schema sets no bound.
const MANY: u64 = 4;

/// Generator of values from a schema.
struct Maker {
    random: SmallRng,
}

impl Maker {
    fn value(&mut self, schema: &Value) -> Value {
        if schema["nullable"] == true && self.random.random_bool(0.2) {
            return Value::Null;
        }
        if let Some(all) = schema["enum"].as_array() {
            let all: Vec<&Value> = all.iter().filter(|one| !one.is_null()).collect();
            return (*all.choose(&mut self.random).unwrap()).clone();
        }
        match schema["type"].as_str() {
            Some("object") => Value::Object(self.object(schema)),
            Some("array") => {
                let many = self.count(&schema["minItems"], &schema["maxItems"]);
                let items = (0..many).map(|_| self.value(&schema["items"]));
                let mut items: Vec<Value> = items.collect();
                if schema["x-kubernetes-list-type"] == "set" {
                    items.sort_by_key(ToString::to_string);
                    items.dedup();
                }
                Value::Array(items)
            }
            Some("string") => self.text(schema).into(),
            Some("integer") => self.integer(schema).into(),
            Some("boolean") => self.random.random_bool(0.5).into(),
            other => panic!("a value of the type {other:?} cannot be made: {schema}"),
        }
    }

    fn object(&mut self, schema: &Value) -> Map<String, Value> {
        let mut made = Map::new();
        if let Some(properties) = schema["properties"].as_object() {
            let required: BTreeSet<&str> = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let least = schema["minProperties"].as_u64().unwrap_or_default();
            let most = schema["maxProperties"].as_u64();
            let mut names: Vec<&String> = properties.keys().collect();
            rand::seq::SliceRandom::shuffle(names.as_mut_slice(), &mut self.random);
            for name in names {
                let count = u64::try_from(made.len()).unwrap();
                let is_room = most.is_none_or(|most| count < most);
                let is_due = required.contains(name.as_str()) || count < least;
                if is_room && (is_due || self.random.random_bool(0.6)) {
                    made.insert(name.clone(), self.value(&properties[name]));
                }
            }
        }
        let additional = &schema["additionalProperties"];
        if additional.is_object() {
            for _ in 0..self.count(&schema["minProperties"], &schema["maxProperties"]) {
                let name = self.key();
                made.insert(name, self.value(additional));
            }
        }
        made
    }

    /// Returns a key of a map: one of the known nodes and slots, or any text.
    fn key(&mut self) -> String {
        let known = [
            NODE,
            "node-b",
            "cams-8120fe-0",
            "cams-8120fe-1",
            "cams-8120fe-01",
            "",
            "a/b~c",
        ];
        match known.choose(&mut self.random) {
            Some(known) if self.random.random_bool(0.7) => (*known).to_owned(),
            _ => self.text(&json!({"maxLength": 300})),
        }
    }

    fn count(&mut self, least: &Value, most: &Value) -> u64 {
        let (least, most) = (least.as_u64().unwrap_or_default(), most.as_u64());
        match most {
            Some(most) if self.random.random_bool(0.1) => most,
            most => self
                .random
                .random_range(least..=most.unwrap_or(MANY).min(least + MANY)),
        }
    }

    fn text(&mut self, schema: &Value) -> String {
        let least = schema["minLength"].as_u64().unwrap_or_default();
        let most = schema["maxLength"].as_u64().unwrap_or(64);
        let known = [
            "",
            NODE,
            "node-b",
            "C:cams-0:node-a",
            "C:0:node-b",
            "2026-01-01T00:00:00Z",
            "1Gi",
            "1.2.3",
            "-1",
            "null",
            "{}",
        ];
        let fits = |text: &&str| (least..=most).contains(&u64::try_from(text.len()).unwrap());
        let known: Vec<&str> = known.into_iter().filter(fits).collect();
        if let Some(known) = known.choose(&mut self.random)
            && self.random.random_bool(0.5)
        {
            return (*known).to_owned();
        }
        let length = match self.random.random_range(0..10) {
            0 => least,
            1 => most,
            _ => self.random.random_range(least..=most.min(least + 20)),
        };
        let letters = [
            'a', 'Z', '0', ':', '-', '/', '\\', '"', '\n', '\0', 'é', '\u{202e}', '𐍈',
        ];
        let letter = |_| *letters.choose(&mut self.random).unwrap();
        (0..length).map(letter).collect()
    }

    fn integer(&mut self, schema: &Value) -> i64 {
        let bound = |name: &str| -> Option<i64> {
            let bound = schema[name].as_f64()?;
            Some(format!("{bound:.0}").parse().unwrap())
        };
        let (least, most) = (bound("minimum"), bound("maximum"));
        let (least, most) = (least.unwrap_or(i64::MIN), most.unwrap_or(i64::MAX));
        let edges = [
            i64::MIN,
            -1,
            0,
            1,
            2,
            i64::from(u32::MAX),
            i64::from(u32::MAX) + 1,
            i64::MAX,
            least,
            most,
        ];
        let edges: Vec<i64> = edges
            .into_iter()
            .filter(|edge| (least..=most).contains(edge))
            .collect();
        if self.random.random_bool(0.5) {
            *edges.choose(&mut self.random).unwrap()
        } else {
            self.random.random_range(least..=most)
        }
    }

    /// Returns an Instance with a name, as the API server stores it.
    fn instance(&mut self, schema: &Value) -> Value {
        let mut made = Value::Object(self.object(schema));
        made["apiVersion"] = json!("akri.sh/v0");
        made["kind"] = json!("Instance");
        let generation = ["3", "", "-1", "three", "99999999999999999999"];
        let generation = generation.choose(&mut self.random).unwrap();
        made["metadata"] = json!({
            "name": NAME, "namespace": "default", "uid": "u", "resourceVersion": "7",
            "annotations": {"leafhost.dev/generation": generation, "x": self.text(&json!({}))},
            "labels": {"leafhost.dev/shared": "true"},
        });
        made
    }
}

fn schema() -> Value {
    let definitions = definitions().unwrap();
    let mut definitions = definitions.iter();
    let instances = definitions
        .find(|one| one.spec.names.kind == "Instance")
        .unwrap();
    let schema = instances.spec.versions[0].schema.as_ref().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.as_ref().unwrap()).unwrap()
}

/// Converts the schema to JSON Schema, which has no `nullable`.
fn with_nulls(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            let is_nullable = fields.get("nullable") == Some(&json!(true));
            for value in fields.values_mut() {
                *value = with_nulls(value.take());
            }
            if is_nullable {
                let type_of = fields["type"].take();
                fields["type"] = json!([type_of, "null"]);
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = with_nulls(item.take());
            }
        }
        _ => {}
    }
    schema
}

/// Reads the object as agents and the controller do.
fn read(object: &Value) -> Result<Instance, String> {
    let read: DeserializeGuard<InstanceObject> =
        serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let read = read.0.map_err(|unreadable| unreadable.error)?;
    Ok(instance::into_instance(read))
}

/// Returns the object after the requests by which an agent writes these edits.
fn patched(object: &Value, edits: &[Edit]) -> Result<Value, String> {
    let mut operations = patch::of(&read(object)?, edits).ok_or("it is not as was assumed")?;
    // To the API server's library an absent value equals null; to this one it is an error.
    let list = operations.as_array_mut().unwrap();
    list.retain(|one| one["op"] != "test" || !one["value"].is_null());
    let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
    let mut object = object.clone();
    json_patch::patch(&mut object, &operations).map_err(|error| error.to_string())?;
    Ok(object)
}

/// Runs only one seed if `SEED` is set.
#[test]
fn whatever_the_definition_of_instances_allows_is_read_and_its_slots_can_be_claimed() {
    let schema = schema();
    let validator = jsonschema::validator_for(&with_nulls(schema.clone())).unwrap();
    let seeds = match std::env::var("SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    let mut claimed = 0;
    for seed in seeds {
        let random = SmallRng::seed_from_u64(seed);
        let object = Maker { random }.instance(&schema);
        let says = |what: &str| format!("seed {seed}: {what}: {object:#}");
        let errors: Vec<String> = validator
            .iter_errors(&object)
            .map(|error| error.to_string())
            .collect();
        assert_eq!(errors, [""; 0], "{}", says("it is none of the schema"));
        let instance = read(&object).unwrap_or_else(|error| panic!("{}", says(&error)));
        let alone: Instance = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(
            (&alone.spec, &alone.status),
            (&instance.spec, &instance.status)
        );
        let entries = object["status"]["nodes"].as_object().map_or(0, Map::len);
        assert_eq!(instance.status.nodes.len(), entries, "{}", says("entries"));

        // Applies the writes of a node.
        let claim = Edit::Slot {
            id: format!("{NAME}-0"),
            held: DeviceUsage::Unused,
            new: DeviceUsage::Node(NODE.to_owned()),
            reserved: None,
        };
        let status = NodeStatus::new(Health::Unhealthy("hot".into()));
        let node = NODE.to_owned();
        let mut edits = vec![Edit::AddNode(node.clone()), Edit::Status { node, status }];
        let usage = instance.spec.device_usage.get(&format!("{NAME}-0"));
        if usage.is_none_or(String::is_empty) {
            claimed += 1;
            edits.push(claim);
        }
        for edit in edits {
            let written = patched(&object, std::slice::from_ref(&edit));
            let written =
                written.unwrap_or_else(|error| panic!("{}", says(&format!("{edit:?}: {error}"))));
            let answer = read(&written).unwrap_or_else(|error| panic!("{}", says(&error)));
            assert!(edit.is_made(&answer), "{}", says(&format!("{edit:?}")));
        }
    }
    println!("{claimed} slots were claimed");
}
