//! CEL expressions that select devices. This is the only file that parses and runs them.
//!
//! An expression reads `device.attributes["<domain>"].<name>`, `device.capacity["<domain>"].<name>`, `device.driver` and
//! `device.allowMultipleAllocations`, as in a resource claim. A domain that the device does not have is an empty map; a name that it does not have
//! makes the expression fail. Expressions must not loop, because nothing else bounds their run time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::objects::Value;
use cel::{Context, Program};
use leafhost_core::attribute::AttributeValue;
use leafhost_core::slices::DRIVER;

use crate::device_attributes::{DeviceAttributes, Name};
use crate::values;

/// Maximum length of an expression, in bytes.
pub const MAX_EXPRESSION: usize = 4096;
/// Maximum nesting depth of an expression, since each level takes stack space.
const MAX_DEPTH: usize = 100;

/// Result of an expression for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The expression is true.
    Fits,
    /// The expression is false.
    Differs,
    /// The expression failed, mostly because the device lacks an attribute or capacity it reads.
    Failed(String),
}

/// Parsed expression.
#[derive(Debug)]
pub struct Expression {
    /// Number of the expression among those that a [`Verdicts`](crate::Verdicts) has parsed.
    pub(crate) number: u64,
    program: Program,
    /// Attributes and capacities on which a verdict depends; `None` for all of the device.
    reads: Option<BTreeSet<(Kind, Name)>>,
    domains: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Attribute,
    Capacity,
}

/// Functions that expressions may call.
pub struct Functions(Context<'static, 'static>);

impl Default for Functions {
    fn default() -> Self {
        let mut context = Context::default();
        // Fails only for a name that is declared twice, which the tests of this file find.
        drop(values::declare(&mut context));
        Self(context)
    }
}

impl Expression {
    /// Parses an expression and rejects those that are too long, too deep or may loop. The error says why, with the remedy.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_EXPRESSION {
            let length = text.len();
            return Err(format!(
                "the expression has {length} bytes; at most {MAX_EXPRESSION} are allowed"
            ));
        }
        let program = Program::compile(text)
            .map_err(|error| format!("cannot read the expression: {}", first_line(&error)))?;
        let (mut reads, mut domains) = (Some(BTreeSet::new()), BTreeSet::new());
        // The depth is not known yet, so the walk does not recurse.
        let mut left = vec![(program.expression(), 0)];
        while let Some((expression, depth)) = left.pop() {
            if depth > MAX_DEPTH {
                return Err(format!(
                    "the expression is nested deeper than {MAX_DEPTH} levels; split it into several selectors"
                ));
            }
            match named(&expression.expr) {
                Named::Value(kind, name) => {
                    domains.insert(name.0.clone());
                    if let Some(reads) = &mut reads {
                        reads.insert((kind, name));
                    }
                    continue;
                }
                Named::Domain(domain) => {
                    domains.insert(domain);
                    reads = None;
                    continue;
                }
                Named::Constant => continue,
                Named::Device => reads = None,
                Named::Other => {}
            }
            // Loops and regular expressions may run long.
            if let Expr::Call(call) = &expression.expr
                && call.func_name == "matches"
            {
                let why = "the expression uses matches, which is not allowed; use startsWith, endsWith, contains or in";
                return Err(why.to_owned());
            }
            let parts = parts(&expression.expr).ok_or(
                "the expression uses all, exists, exists_one, map or filter, which are not allowed; name the values with || and &&",
            )?;
            left.extend(parts.into_iter().map(|part| (part, depth + 1)));
        }
        Ok(Self {
            number: 0,
            program,
            reads,
            domains,
        })
    }

    /// Returns the device's values that the verdict depends on; devices with equal ones have the same verdict.
    pub(crate) fn depends_on(&self, device: &DeviceAttributes) -> DeviceAttributes {
        let Some(reads) = &self.reads else {
            return device.clone();
        };
        let of = |kind: Kind| {
            let names = reads.iter().filter(move |(read, _)| *read == kind);
            names.map(|(_, name)| name)
        };
        DeviceAttributes {
            attributes: device.attributes.only(of(Kind::Attribute)),
            capacity: device.capacity.only(of(Kind::Capacity)),
            is_shared: device.is_shared,
        }
    }

    /// Judges a device by the expression.
    pub(crate) fn judge(
        &self,
        functions: &Functions,
        device_attributes: &DeviceAttributes,
    ) -> Verdict {
        let mut context = functions.0.new_inner_scope();
        context.add_variable_from_value("device", self.device(device_attributes));
        match self.program.execute(&context) {
            Ok(Value::Bool(true)) => Verdict::Fits,
            Ok(Value::Bool(false)) => Verdict::Differs,
            Ok(other) => Verdict::Failed(format!(
                "the result of the expression is {}, not true or false",
                other.type_of()
            )),
            Err(error) => Verdict::Failed(first_line(&error)),
        }
    }

    /// Builds the variable `device`.
    fn device(&self, device_attributes: &DeviceAttributes) -> Value {
        let attribute = |value: &AttributeValue| match value {
            AttributeValue::String(text) => Value::from(text.as_str()),
            AttributeValue::Int(number) => Value::Int(*number),
            AttributeValue::Bool(is) => Value::Bool(*is),
            AttributeValue::Version(text) => values::version(text),
        };
        let attributes = device_attributes.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name, attribute(value)));
        let capacity = device_attributes.capacity.iter();
        let capacity = capacity.map(|(name, value)| (name, values::quantity(*value)));
        let device: HashMap<&str, Value> = HashMap::from([
            ("driver", Value::from(DRIVER)),
            (
                "allowMultipleAllocations",
                Value::Bool(device_attributes.is_shared),
            ),
            ("attributes", self.by_domain(attributes)),
            ("capacity", self.by_domain(capacity)),
        ]);
        Value::from(device)
    }

    /// Groups values by domain and name. Each domain that the expression reads is present, if only as an empty map.
    fn by_domain<'a>(&self, values: impl Iterator<Item = (&'a Name, Value)>) -> Value {
        let mut all: BTreeMap<String, HashMap<String, Value>> = BTreeMap::new();
        for domain in &self.domains {
            all.entry(domain.clone()).or_default();
        }
        for ((domain, name), value) in values {
            let domain = all.entry(domain.clone()).or_default();
            domain.insert(name.clone(), value);
        }
        let all = all.into_iter();
        let all: HashMap<String, Value> = all
            .map(|(domain, values)| (domain, Value::from(values)))
            .collect();
        Value::from(all)
    }
}

/// Property of a device that a part of an expression reads.
enum Named {
    /// Single attribute or capacity.
    Value(Kind, Name),
    /// All attributes or capacities of a domain.
    Domain(String),
    /// Value that is not an attribute or capacity: `device.driver`, `device.allowMultipleAllocations`. Every verdict depends on the latter anyway.
    Constant,
    /// Any other part of `device`.
    Device,
    /// No property of a device.
    Other,
}

fn named(expression: &Expr) -> Named {
    if let Some((operand, name)) = step(expression) {
        if let Some((kind, domain)) = domain(operand) {
            return Named::Value(kind, (domain, name.to_owned()));
        }
        if let Some((_, domain)) = domain(expression) {
            return Named::Domain(domain);
        }
        if is_device(operand) && matches!(name, "driver" | "allowMultipleAllocations") {
            return Named::Constant;
        }
    }
    if let Expr::Select(select) = expression
        && let Some((_, domain)) = domain(&select.operand.expr)
    {
        // `has(…)` tests whether the name exists.
        return Named::Domain(domain);
    }
    if is_device(expression) {
        return Named::Device;
    }
    Named::Other
}

/// Returns the kind and the domain of `device.attributes["<domain>"]` or `device.capacity["<domain>"]`, or `None` for any other expression.
fn domain(expression: &Expr) -> Option<(Kind, String)> {
    let (operand, domain) = step(expression)?;
    let (device, name) = step(operand)?;
    let kind = match name {
        "attributes" => Kind::Attribute,
        "capacity" => Kind::Capacity,
        _ => return None,
    };
    is_device(device).then(|| (kind, domain.to_owned()))
}

fn is_device(expression: &Expr) -> bool {
    matches!(expression, Expr::Ident(name) if name == "device")
}

/// Returns the operand and the name of `<operand>.<name>` or `<operand>["<name>"]`, or `None` for any other expression.
fn step(expression: &Expr) -> Option<(&Expr, &str)> {
    match expression {
        Expr::Select(select) if !select.test => Some((&select.operand.expr, &select.field)),
        Expr::Call(call) if call.func_name == operators::INDEX && call.target.is_none() => {
            let [operand, key] = call.args.as_slice() else {
                return None;
            };
            match &key.expr {
                Expr::Literal(LiteralValue::String(text)) => Some((&operand.expr, text.inner())),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the direct parts of an expression, or `None` if it loops.
fn parts(expression: &Expr) -> Option<Vec<&IdedExpr>> {
    Some(match expression {
        Expr::Comprehension(_) => return None,
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Map(map) => map
            .entries
            .iter()
            .flat_map(|one| entry(&one.expr))
            .collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|one| entry(&one.expr)).collect(),
    })
}

fn entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Returns the first line of an error, cut to 300 characters. The other lines repeat the expression.
fn first_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("the expression is wrong");
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use leafhost_core::names::ConfigurationKey;

    use super::*;

    fn device_attributes() -> DeviceAttributes {
        let instance = serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "gpu-1", "namespace": "lab"},
            "spec": {"configurationName": "gpu", "capacity": 2, "leafhost": {"id": "x",
                "attributes": {"index": {"int": 5}, "model": {"string": "a"}, "driverVersion": {"version": "1.2.3"},
                    "fast": {"bool": true}, "example.com/rack": {"string": "r1"}, "numaNode": {"int": 1}},
                "capacity": {"memory": "80Gi"}}},
        }));
        let key = ConfigurationKey::new("lab", "gpu").unwrap();
        DeviceAttributes::of(&key, &instance.unwrap())
    }

    fn judged(text: &str) -> Verdict {
        let expression = Expression::new(text).unwrap();
        expression.judge(&Functions::default(), &device_attributes())
    }

    #[test]
    fn a_device_is_judged_by_what_its_slice_would_say() {
        let ours = r#"device.attributes["leafhost.dev"]"#;
        let memory = r#"device.capacity["leafhost.dev"].memory"#;
        for (text, verdict) in [
            (format!("{ours}.index == 5"), Verdict::Fits),
            (format!(r#"{ours}["index"] == 5"#), Verdict::Fits),
            (format!("{ours}.index > 5"), Verdict::Differs),
            (format!("{ours}.model in ['a', 'b']"), Verdict::Fits),
            (format!("{ours}.model.startsWith('b')"), Verdict::Differs),
            (
                format!("{ours}.fast && {ours}.instance == 'gpu-1'"),
                Verdict::Fits,
            ),
            (
                format!("{ours}.driverVersion.isGreaterThan(semver('1.2.0'))"),
                Verdict::Fits,
            ),
            (
                format!("{ours}.driverVersion.compareTo(semver('1.2.3')) == 0"),
                Verdict::Fits,
            ),
            (
                format!("{ours}.driverVersion.major() == 2"),
                Verdict::Differs,
            ),
            (
                format!("{memory}.compareTo(quantity('40Gi')) >= 0"),
                Verdict::Fits,
            ),
            (
                format!("{memory}.isLessThan(quantity('81920Mi'))"),
                Verdict::Differs,
            ),
            (
                format!("{memory}.sub(quantity('80Gi')).sign() == 0"),
                Verdict::Fits,
            ),
            (
                format!("{memory}.asInteger() == 85899345920"),
                Verdict::Fits,
            ),
            (
                r#"device.attributes["example.com"].rack == "r1""#.to_owned(),
                Verdict::Fits,
            ),
            (
                r#"device.attributes["resource.kubernetes.io"].numaNode == 1"#.to_owned(),
                Verdict::Fits,
            ),
            (
                r#"device.driver == "leafhost.dev" && device.allowMultipleAllocations"#.to_owned(),
                Verdict::Fits,
            ),
            (
                r#""x" in device.attributes["nowhere.example"]"#.to_owned(),
                Verdict::Differs,
            ),
            (
                r#"has(device.attributes["nowhere.example"].x) || true"#.to_owned(),
                Verdict::Fits,
            ),
            (format!("has({ours}.index)"), Verdict::Fits),
        ] {
            assert_eq!(judged(&text), verdict, "{text}");
        }
    }

    #[test]
    fn what_a_device_does_not_have_or_is_no_answer_fails_with_the_cause() {
        for (text, said) in [
            (
                r#"device.attributes["leafhost.dev"].vendor == "x""#,
                "vendor",
            ),
            (
                r#"device.attributes["leafhost.dev"].index"#,
                "not true or false",
            ),
            (
                r#"device.attributes["leafhost.dev"].index == "5" || nothing"#,
                "nothing",
            ),
            (r#"quantity("much").sign() == 0"#, "not a quantity"),
            (r#"semver("1").major() == 1"#, "not a semantic version"),
        ] {
            let Verdict::Failed(why) = judged(text) else {
                panic!("{text}");
            };
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    #[test]
    fn texts_that_are_wrong_long_deep_or_loop_are_refused() {
        let deep = format!("{}true{}", "(".repeat(1000), ")".repeat(1000));
        let chain = format!("1{} == 1", " + 1".repeat(900));
        let select = format!("device{}", ".a".repeat(2000));
        for text in [
            "",
            "device.",
            "device.attributes[",
            &deep,
            &chain,
            &select,
            &"a".repeat(MAX_EXPRESSION + 1),
            "[1, 2].all(x, x > 0)",
            "[1].exists(x, [2].map(y, y) == [x])",
            "[[1].filter(x, true)] == []",
            "'a'.matches('a')",
            "matches('a', 'a')",
        ] {
            let refused = Expression::new(text);
            assert!(refused.is_err(), "{text}");
        }
        let loops = Expression::new("[1].all(a, true)").unwrap_err();
        assert!(loops.contains("uses all, exists"), "{loops}");
    }

    #[test]
    fn a_verdict_depends_on_the_values_that_are_named() {
        let of = |text: &str| {
            let expression = Expression::new(text).unwrap();
            let values = expression.depends_on(&device_attributes());
            values.attributes.iter().count() + values.capacity.iter().count()
        };
        let ours = r#"device.attributes["leafhost.dev"]"#;
        assert_eq!(of(&format!("{ours}.index == 5 || {ours}.model == 'a'")), 2);
        assert_eq!(of(&format!("{ours}['index'] == 5")), 1);
        assert_eq!(of("device.driver == 'x'"), 0);
        for all in [
            format!("'x' in {ours}"),
            format!("has({ours}.x)"),
            "device == 1".to_owned(),
        ] {
            assert!(of(&all) > 6, "{all}");
        }
    }
}
