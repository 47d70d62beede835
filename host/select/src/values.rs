//! Quantities and versions in expressions, with the functions that Kubernetes defines for them.
//!
//! Source: `k8s.io/apiserver/pkg/cel/library`, `quantity.go` and `semverlib.go`.

use std::cmp::Ordering;
use std::sync::Arc;

use cel::extractors::This;
use cel::objects::{Opaque, Value};
use cel::{Context, DeclarationError, ExecutionError};
use leafhost_core::attribute::nanos;
use semver::Version;

const WHOLE: i128 = 1_000_000_000;

/// Quantity in units of 1e-9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quantity(i128);

impl Opaque for Quantity {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }
}

/// Semantic version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SemVer(Version);

impl Opaque for SemVer {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.Semver"
    }
}

type Any = Arc<dyn Opaque>;
type Outcome<T> = Result<T, ExecutionError>;

/// Returns a quantity, given in units of 1e-9, as a CEL value.
pub fn quantity(nanos: i128) -> Value {
    Value::Opaque(Arc::new(Quantity(nanos)))
}

/// Returns a version as a CEL value; a text that is not a semantic version stays a string.
pub fn version(text: &str) -> Value {
    match Version::parse(text) {
        Ok(version) => Value::Opaque(Arc::new(SemVer(version))),
        Err(_) => Value::from(text),
    }
}

/// Declares the functions of quantities and versions in a context.
pub fn declare(context: &mut Context<'_, '_>) -> Result<(), DeclarationError> {
    context.add_function("quantity", |text: Arc<String>| -> Outcome<Any> {
        let amount = nanos(&text).ok_or_else(|| wrong("quantity", "the text is not a quantity"))?;
        Ok(Arc::new(Quantity(amount)))
    })?;
    context.add_function("isQuantity", |text: Arc<String>| nanos(&text).is_some())?;
    context.add_function("semver", |text: Arc<String>| -> Outcome<Any> {
        let version = Version::parse(&text);
        let version = version.map_err(|_| wrong("semver", "the text is not a semantic version"))?;
        Ok(Arc::new(SemVer(version)))
    })?;
    context.add_function("isSemver", |text: Arc<String>| {
        Version::parse(&text).is_ok()
    })?;
    context.add_function("compareTo", |This(one): This<Any>, other: Any| {
        compare(&one, &other).map(|order| order as i64)
    })?;
    context.add_function("isGreaterThan", |This(one): This<Any>, other: Any| {
        compare(&one, &other).map(Ordering::is_gt)
    })?;
    context.add_function("isLessThan", |This(one): This<Any>, other: Any| {
        compare(&one, &other).map(Ordering::is_lt)
    })?;
    context.add_function("sign", |This(one): This<Any>| {
        Ok::<i64, ExecutionError>(i64::try_from(amount("sign", &one)?.signum()).unwrap_or(0))
    })?;
    context.add_function("isInteger", |This(one): This<Any>| {
        amount("isInteger", &one).map(|amount| amount % WHOLE == 0)
    })?;
    context.add_function("asInteger", |This(one): This<Any>| -> Outcome<i64> {
        let amount = amount("asInteger", &one)?;
        let whole = i64::try_from(amount / WHOLE).ok();
        let whole = whole.filter(|_| amount % WHOLE == 0);
        whole.ok_or_else(|| wrong("asInteger", "the quantity is not a number of 64 bits"))
    })?;
    context.add_function("add", |This(one): This<Any>, other: Any| -> Outcome<Any> {
        sum("add", &one, &other, i128::checked_add)
    })?;
    context.add_function("sub", |This(one): This<Any>, other: Any| -> Outcome<Any> {
        sum("sub", &one, &other, i128::checked_sub)
    })?;
    context.add_function("major", |This(one): This<Any>| part(&one, |v| v.major))?;
    context.add_function("minor", |This(one): This<Any>| part(&one, |v| v.minor))?;
    context.add_function("patch", |This(one): This<Any>| part(&one, |v| v.patch))
}

fn wrong(function: &str, why: &str) -> ExecutionError {
    ExecutionError::function_error(function, why)
}

fn compare(one: &Any, other: &Any) -> Outcome<Ordering> {
    let amounts = (one.downcast_ref::<Quantity>(), other.downcast_ref());
    if let (Some(Quantity(one)), Some(Quantity(other))) = amounts {
        return Ok(one.cmp(other));
    }
    let versions = (one.downcast_ref::<SemVer>(), other.downcast_ref());
    if let (Some(SemVer(one)), Some(SemVer(other))) = versions {
        return Ok(one.cmp_precedence(other));
    }
    Err(wrong("compareTo", "both must be quantities, or versions"))
}

fn amount(function: &str, one: &Any) -> Outcome<i128> {
    let quantity = one.downcast_ref::<Quantity>();
    let quantity = quantity.ok_or_else(|| wrong(function, "it is of quantities"))?;
    Ok(quantity.0)
}

fn sum(
    function: &str,
    one: &Any,
    other: &Any,
    of: impl Fn(i128, i128) -> Option<i128>,
) -> Outcome<Any> {
    let sum = of(amount(function, one)?, amount(function, other)?);
    let sum = sum.ok_or_else(|| wrong(function, "the quantity gets too large"))?;
    Ok(Arc::new(Quantity(sum)))
}

fn part(one: &Any, of: impl Fn(&Version) -> u64) -> Outcome<i64> {
    let version = one.downcast_ref::<SemVer>();
    let version = version.ok_or_else(|| wrong("major", "it is of versions"))?;
    Ok(i64::try_from(of(&version.0)).unwrap_or(i64::MAX))
}
