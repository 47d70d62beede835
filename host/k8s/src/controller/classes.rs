//! Device classes: one for each Configuration whose devices the scheduler allocates. A class of the same name that belongs to others is not changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector,
};
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::cluster::{Classes, ClusterViews};
use leafhost_core::device_id::resource;
use leafhost_core::names::{ConfigurationKey, class_name, label_value};
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::{NameOwners, NameSet, oldest_first};
use leafhost_core::slice_device::name_attribute;
use leafhost_core::slices::DRIVER;
use leafhost_core::status_store::ConfigurationStates;
use leafhost_core::wait::changed;
use tokio::sync::watch;

use crate::bounded_store::BoundedStore;
use crate::controller::left_over::has_some;
use crate::controller::log_problem;
use crate::reconciler::{Reconcile, Reconciler, hold_alone};
use crate::watch::Watch;

/// Label of the controller's classes, with the name of the Configuration.
pub const LABEL: &str = "leafhost.dev/configuration";
/// Annotation with the namespace of the Configuration.
const NAMESPACE: &str = "leafhost.dev/namespace";
/// Maximum length of an extended resource's name after the slash.
const MAX_RESOURCE: usize = 63;
/// Maximum length of a class name.
const MAX_NAME: usize = 253;

/// Writes the classes until the future is dropped. Writes nothing while this process is not the leader.
pub async fn keep(
    client: Client,
    ClusterViews {
        mut leads,
        mut configurations,
        mut names,
        ..
    }: ClusterViews,
    states: watch::Sender<Arc<Classes>>,
) {
    let api: Api<DeviceClass> = Api::all(client);
    // A cluster whose Configurations need no class may lack the API.
    let ours = ListParams::default().labels(LABEL);
    let some_left = has_some(&api, &ours).await;
    let is_wanted = |known: &Arc<ConfigurationStates>| some_left || known.has_dra();
    if configurations.wait_for(is_wanted).await.is_err() {
        return std::future::pending().await;
    }
    // The watch covers all classes, since one of another owner may have to be deleted first.
    let watch = Watch::new(api.clone());
    let mut reconciler = Reconciler::new(Ours, api, watch);
    let mut logged = None;
    loop {
        let known = Arc::clone(&configurations.borrow_and_update());
        let names_now = Arc::clone(&names.borrow_and_update());
        let is_known = known.complete && names_now.is_known;
        let problem = reconciler.problem();
        if is_known {
            let owned = owned(&known, &names_now);
            let wanted = owned.iter().filter_map(|(key, owns)| {
                let name = class_name(key.name());
                let is_name = name.len() <= MAX_NAME;
                (*owns && is_name).then(|| (name.clone(), class(&name, key)))
            });
            reconciler.want(wanted.collect());
            if let Some(found) = reconciler.found() {
                let now = classes(&owned, found, |name| reconciler.why(name));
                crate::publish(&states, now);
            }
        }
        log_problem(&mut logged, problem, "DeviceClasses");
        let acts = *leads.borrow_and_update() && is_known;
        tokio::select! {
            () = changed(&mut configurations) => {}
            () = changed(&mut names) => {}
            () = changed(&mut leads) => {}
            due = reconciler.due(acts) => {
                if let Some((name, write)) = due {
                    reconciler.write(name, write).await;
                }
            }
        }
    }
}

/// Returns the Configurations whose devices the scheduler allocates; each with true if it owns its name and so gets the class.
fn owned(
    configurations: &ConfigurationStates,
    names: &NameSet,
) -> BTreeMap<ConfigurationKey, bool> {
    let all = configurations.configurations.iter();
    let live = oldest_first(all.filter(|(_, state)| !state.is_deleting));
    let owners = NameOwners::new(&names.names, live);
    let owned = configurations.dra().map(|(key, _)| {
        let owns = owners.owner(key.name()).is_some_and(|owner| {
            owner.namespace == key.namespace() && owner.configuration == key.name()
        });
        (key.clone(), owns)
    });
    owned.collect()
}

/// Returns the state of each Configuration's class; `why` returns the problem of a class.
fn classes(
    owned: &BTreeMap<ConfigurationKey, bool>,
    found: &BoundedStore<DeviceClass>,
    why: impl Fn(&str) -> Option<String>,
) -> Classes {
    let state_of = |(key, owns): (&ConfigurationKey, &bool)| {
        let class = class_name(key.name());
        let problem = match found.get(&class) {
            _ if !owns => Some("another namespace has the name".to_owned()),
            _ if class.len() > MAX_NAME => Some(format!(
                "its name would have more than {MAX_NAME} characters; give the Configuration a shorter one"
            )),
            Some(one) if !one.labels().contains_key(LABEL) => Some(format!(
                "one of that name belongs to another owner, as it has no label {LABEL}; delete it, or give the Configuration another name"
            )),
            Some(_) => None,
            // The class is being created.
            None => Some(why(&class)?),
        };
        let state = match problem {
            None => Ok(()),
            Some(why) => Err(Problem::ClassNotMade {
                configuration: key.clone(),
                class,
                why,
            }),
        };
        Some((key.clone(), state))
    };
    owned.iter().filter_map(state_of).collect()
}

fn class(name: &str, key: &ConfigurationKey) -> DeviceClass {
    let attribute = |name: &str, value: &str| {
        let value = name_attribute(value);
        format!("device.attributes[\"{DRIVER}\"].{name} == \"{value}\"")
    };
    let expression = [
        format!("device.driver == \"{DRIVER}\""),
        attribute("configuration", key.name()),
        attribute("namespace", key.namespace()),
    ]
    .join(" && ");
    let label = (LABEL.to_owned(), label_value(key.name()));
    let annotation = (NAMESPACE.to_owned(), key.namespace().to_owned());
    DeviceClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([label].into()),
            annotations: Some([annotation].into()),
            ..ObjectMeta::default()
        },
        spec: Some(DeviceClassSpec {
            selectors: Some(vec![DeviceSelector {
                cel: Some(CELDeviceSelector { expression }),
            }]),
            extended_resource_name: (key.name().len() <= MAX_RESOURCE)
                .then(|| resource(key.name())),
            ..DeviceClassSpec::default()
        }),
    }
}

struct Ours;

impl Reconcile for Ours {
    type Object = DeviceClass;

    const LOST: &'static str = "it is deleted again and again; find out who deletes it";

    fn is_own(&self, found: &DeviceClass) -> bool {
        found.labels().contains_key(LABEL)
    }

    fn corrected(&self, found: &DeviceClass, wanted: &DeviceClass) -> Option<DeviceClass> {
        if !self.is_own(found) {
            return None;
        }
        let mut right = found.clone();
        right.labels_mut().extend(wanted.labels().clone());
        right.annotations_mut().extend(wanted.annotations().clone());
        right.spec.clone_from(&wanted.spec);
        // An API server without extended resources in classes drops the field.
        let kept = found
            .spec
            .as_ref()
            .and_then(|spec| spec.extended_resource_name.as_ref());
        if let Some(spec) = right.spec.as_mut().filter(|_| kept.is_none()) {
            spec.extended_resource_name = None;
        }
        (right != *found).then_some(right)
    }

    fn hold(&self, held: &mut BoundedStore<DeviceClass>, is_wanted: bool, object: DeviceClass) {
        if is_wanted || self.is_own(&object) {
            hold_alone(held, object);
        }
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::configuration::Backend;
    use leafhost_core::resource_names::{Reservation, ResourceNames};
    use leafhost_core::status_store::ConfigurationState;

    use super::*;
    use crate::reconciler::Write;

    fn mk_states(all: &[(&str, &str, i64, Backend)]) -> ConfigurationStates {
        let state = |(namespace, name, created, backend): &(&str, &str, i64, Backend)| {
            let state = ConfigurationState {
                created: jiff::Timestamp::from_second(*created).ok(),
                backend: *backend,
                ..ConfigurationState::default()
            };
            let key = ConfigurationKey::new(namespace, name).unwrap();
            (key, Arc::new(state))
        };
        ConfigurationStates {
            complete: true,
            configurations: all.iter().map(state).collect(),
        }
    }

    #[test]
    fn the_owner_of_a_name_has_its_class() {
        let all = mk_states(&[
            ("b", "cams", 1, Backend::Dra),
            ("a", "cams", 2, Backend::Dra),
            ("a", "gpu", 2, Backend::DevicePlugin),
        ]);
        let owned_now = owned(&all, &NameSet::default());
        let shown = |owned: &BTreeMap<ConfigurationKey, bool>| {
            let owned = owned.iter().map(|(key, owns)| format!("{key} {owns}"));
            owned.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(shown(&owned_now), "a/cams false, b/cams true");
        let reservation = Reservation {
            namespace: "a".to_owned(),
            created: None,
        };
        let names: ResourceNames = [("cams".to_owned(), reservation)].into_iter().collect();
        let names = NameSet {
            names: Arc::new(names),
            ..NameSet::default()
        };
        assert_eq!(shown(&owned(&all, &names)), "a/cams true, b/cams false");
    }

    #[test]
    fn a_class_selects_the_devices_of_its_configuration_and_has_its_resource() {
        let key = ConfigurationKey::new("b", "cams").unwrap();
        let class_of = |key: &ConfigurationKey| class(&class_name(key.name()), key).spec.unwrap();
        let spec = class_of(&key);
        assert_eq!(spec.extended_resource_name.as_deref(), Some("akri.sh/cams"));
        let selectors = spec.selectors.unwrap();
        let expression = &selectors[0].cel.as_ref().unwrap().expression;
        assert!(
            expression.contains("device.attributes[\"leafhost.dev\"].namespace == \"b\""),
            "{expression}"
        );
        let long = ConfigurationKey::new("a", &"c".repeat(64)).unwrap();
        assert_eq!(class_of(&long).extended_resource_name, None);
    }

    #[test]
    fn who_has_no_class_is_told_why() {
        let key = ConfigurationKey::new("a", "cams").unwrap();
        let ours = class("cams.akri.sh", &key);
        let mut foreign = ours.clone();
        foreign.metadata.labels = None;
        let of = |owns, found: Option<&DeviceClass>, why: Option<&str>| {
            let mut store = BoundedStore::default();
            if let Some(found) = found {
                Ours.hold(&mut store, true, found.clone());
            }
            let owned = BTreeMap::from([(key.clone(), owns)]);
            let states = classes(&owned, &store, |_| why.map(str::to_owned));
            let shown = states.into_values().map(|state| match state {
                Ok(()) => "made".to_owned(),
                Err(problem) => problem.to_string(),
            });
            shown.collect::<String>()
        };
        assert!(of(true, Some(&foreign), None).contains("belongs to another owner"));
        assert!(of(false, None, None).contains("another namespace"));
        assert!(of(true, None, Some("no right")).contains("no right"));
        assert_eq!(of(true, None, None), "", "it is being made");
        assert_eq!(of(true, Some(&ours), None), "made");
        let mut store = BoundedStore::default();
        Ours.hold(&mut store, false, foreign);
        assert!(
            store.get("cams.akri.sh").is_none(),
            "no Configuration wants it"
        );
    }

    #[test]
    fn a_class_that_is_not_ours_is_left_alone_and_one_that_differs_is_put_right() {
        let key = ConfigurationKey::new("a", "cams").unwrap();
        let right = class("cams.akri.sh", &key);
        let write = |found: &DeviceClass, wanted| Ours.write(Some(found), wanted);
        assert_eq!(write(&right, Some(&right)), None);
        let mut edited = right.clone();
        edited.spec.as_mut().unwrap().selectors = None;
        assert!(matches!(
            write(&edited, Some(&right)),
            Some(Write::Replace(_))
        ));
        // The class as an API server of version 1.35 stores it.
        let mut older = right.clone();
        older.spec.as_mut().unwrap().extended_resource_name = None;
        assert_eq!(write(&older, Some(&right)), None);
        assert!(matches!(write(&right, None), Some(Write::Delete(_))));
        let mut foreign = edited;
        foreign.metadata.labels = None;
        assert_eq!(write(&foreign, Some(&right)), None);
        assert_eq!(write(&foreign, None), None);
    }
}
