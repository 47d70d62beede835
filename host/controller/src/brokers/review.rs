//! Checks that an object the controller writes is the one that a Configuration asks for. Pure.
//!
//! A holder of the controller's token can write pods in every namespace. The review therefore builds the object again from the
//! Configuration and the Instance that the API server has, and compares the two.

use leafhost_core::brokers::{Kind, Wanted};
use leafhost_core::configuration::Manifest;
use leafhost_core::instance::Instance;
use leafhost_core::names::API_VERSION;
use serde_json::{Map, Value};

use super::body::{self, Owner};
use super::template::{Template, TemplateKind, made_of};

mod compare;
mod defaults;

/// Annotation that the admission plugin `LimitRanger` of the API server sets.
const LIMIT_RANGER: &str = "kubernetes.io/limit-ranger";

/// A write of the controller under review.
#[derive(Debug)]
pub struct BrokerWrite {
    /// Kind of the object.
    pub kind: Kind,
    /// Object to be stored.
    pub object: Value,
    /// Object to be replaced; `None` for a new one.
    pub before: Option<Value>,
}

/// Owner of a broker as its owner reference names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferencedOwner {
    /// True for an Instance, false for a Configuration.
    pub is_instance: bool,
    /// Namespace of owner and broker.
    pub namespace: String,
    /// Name of the owner.
    pub name: String,
}

impl BrokerWrite {
    /// Returns the object's controlling owner: an Instance or, for a service only, a Configuration.
    pub fn owner(&self) -> Result<ReferencedOwner, String> {
        let owner = self.controlling()?;
        let is_instance = text(owner, "kind") == "Instance";
        if !is_instance && (text(owner, "kind") != "Configuration" || self.kind != Kind::Service) {
            return Err("metadata.ownerReferences: the owner must be an Instance, or of a service a Configuration".to_owned());
        }
        Ok(ReferencedOwner {
            is_instance,
            namespace: text(self.metadata(), "namespace").to_owned(),
            name: text(owner, "name").to_owned(),
        })
    }

    /// Checks the object against the Instance and the Configuration that it names; the error says what is wrong.
    pub fn review(
        &self,
        instance: Option<&Instance>,
        manifest: Option<&Manifest>,
    ) -> Result<(), String> {
        let named = self.owner()?;
        let uid = text(self.controlling()?, "uid");
        let Some(manifest) = manifest else {
            return Err("there is no such Configuration".to_owned());
        };
        if manifest.metadata.deletion_timestamp.is_some() {
            return Err("the Configuration is being deleted".to_owned());
        }
        if named.is_instance {
            let instance = instance
                .filter(|instance| instance.metadata.uid == uid && !uid.is_empty())
                .ok_or("metadata.ownerReferences: there is no such Instance")?;
            let metadata = &instance.metadata;
            let mut owners = metadata.owner_references.iter();
            if !owners.any(|owner| Some(&owner.uid) == manifest.metadata.uid.as_ref()) {
                return Err("the Instance belongs to another Configuration".to_owned());
            }
            if metadata.deletion_timestamp.is_some() {
                return Err("the Instance is being deleted".to_owned());
            }
            return self.of_instance(instance, manifest);
        }
        if manifest.metadata.uid.as_deref() != Some(uid) {
            return Err("metadata.ownerReferences: there is no such Configuration".to_owned());
        }
        let spec = manifest.spec.configuration_service_spec.as_ref();
        self.is_service(Owner::configuration(manifest), spec)
    }

    fn of_instance(&self, instance: &Instance, manifest: &Manifest) -> Result<(), String> {
        if self.kind == Kind::Service {
            let spec = manifest.spec.instance_service_spec.as_ref();
            return self.is_service(Owner::instance(instance), spec);
        }
        let none = || format!("the Configuration asks for no {}", self.kind);
        let template = Template::of(manifest).ok_or_else(none)?;
        match (self.kind, template.kind) {
            (Kind::Pod, TemplateKind::Pod) => {
                let name = text(self.metadata(), "name");
                let mut problem =
                    "metadata.name: no node that sees the device has a broker of this name"
                        .to_owned();
                for node in &instance.spec.nodes {
                    if body::pod_key(instance, node).name != name {
                        continue;
                    }
                    let made = body::pod(instance, node, &template);
                    match self.is(&made) {
                        Ok(()) => return Ok(()),
                        Err(differs) => problem = differs,
                    }
                }
                Err(problem)
            }
            (Kind::Job, TemplateKind::Job) => {
                let generation = manifest.metadata.generation.unwrap_or_default();
                self.is(&body::job(instance, generation, &template))
            }
            (Kind::ClaimTemplate, _) if template.has_claim => {
                self.is(&body::claims(instance, &template))
            }
            _ => Err(none()),
        }
    }

    fn is_service(&self, owner: Owner<'_>, spec: Option<&Value>) -> Result<(), String> {
        let spec = spec.ok_or("the Configuration asks for no such service")?;
        self.is(&body::service(owner, spec, &made_of(spec)))
    }

    /// Compares the object with the one built from the Configuration.
    fn is(&self, Wanted { body, .. }: &Wanted) -> Result<(), String> {
        let differs =
            |field: &str| format!("metadata.{field}: differs from what the Configuration asks for");
        let (own, made) = (self.metadata(), field(body, "metadata"));
        for name in ["name", "namespace"] {
            if text(own, name) != text(made, name) {
                return Err(differs(name));
            }
        }
        let before = self.before.as_ref().map(|before| field(before, "metadata"));
        if !are_kept(&["labels"], own, before.unwrap_or(made)) {
            return Err(differs("labels"));
        }
        // Other controllers may add a finalizer to a service.
        if !are_kept(
            &["finalizers", "generateName"],
            own,
            before.unwrap_or(&Value::Null),
        ) {
            return Err(differs("finalizers"));
        }
        if !has_annotations(own, made, before) {
            return Err(differs("annotations"));
        }
        if !has_owners(own, made, before) {
            return Err(differs("ownerReferences"));
        }
        compare::difference(self.kind, field(body, "spec"), field(&self.object, "spec"))
            .map_err(|path| format!("{path}: differs from what the Configuration asks for"))
    }

    fn metadata(&self) -> &Value {
        field(&self.object, "metadata")
    }

    /// Returns the only owner reference of this API group that controls the object.
    fn controlling(&self) -> Result<&Value, String> {
        let owners = field(self.metadata(), "ownerReferences").as_array();
        let ours = |owner: &&Value| {
            text(owner, "apiVersion") == API_VERSION
                && owner.get("controller") == Some(&true.into())
        };
        let mut owners = owners.into_iter().flatten().filter(ours);
        match (owners.next(), owners.next()) {
            (Some(owner), None) => Ok(owner),
            _ => Err(
                "metadata.ownerReferences: an Instance or a Configuration must control it"
                    .to_owned(),
            ),
        }
    }
}

/// Returns true if the annotations are the previous ones plus the wanted ones.
fn has_annotations(own: &Value, made: &Value, before: Option<&Value>) -> bool {
    let mut wanted = entries(before.unwrap_or(made), "annotations");
    wanted.extend(entries(made, "annotations"));
    let mut own = entries(own, "annotations");
    if before.is_none() {
        own.remove(LIMIT_RANGER);
    }
    own == wanted
}

/// Returns true if the owners are the previous ones plus the wanted one.
fn has_owners(own: &Value, made: &Value, before: Option<&Value>) -> bool {
    let of = |metadata: &Value| -> Vec<Value> {
        let owners = field(metadata, "ownerReferences").as_array();
        owners.cloned().unwrap_or_default()
    };
    let (own, made, before) = (of(own), of(made), of(before.unwrap_or(&Value::Null)));
    made.iter().chain(&before).all(|owner| own.contains(owner))
        && own
            .iter()
            .all(|owner| made.contains(owner) || before.contains(owner))
}

/// Returns true if these metadata fields are equal.
fn are_kept(fields: &[&str], one: &Value, other: &Value) -> bool {
    let of = |metadata: &Value, name: &str| -> Option<Value> {
        let value = metadata.get(name).cloned();
        value.filter(|value| !defaults::is_nothing(name, value))
    };
    fields.iter().all(|name| of(one, name) == of(other, name))
}

fn entries(metadata: &Value, name: &str) -> Map<String, Value> {
    let entries = field(metadata, name).as_object();
    entries.cloned().unwrap_or_default()
}

fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    field(value, name).as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
