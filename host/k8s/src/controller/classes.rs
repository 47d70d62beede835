//! Device classes: one for each Configuration whose devices the scheduler gives. A class of the same name that is not ours is left alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector,
};
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::configuration::{Backend, Configuration};
use leafhost_core::names::{ConfigurationKey, GROUP, label_value};
use leafhost_core::resource_names::{NameOwners, NameSet};
use leafhost_core::slice_device::name_attribute;
use leafhost_core::slices::DRIVER;
use leafhost_core::unit::resource;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::answers::{self, Kind};
use crate::backoff;
use crate::index::{TRIES_AGAIN, follow};
use crate::keeper::{Keep, Keeper, Write};
use crate::manifest;
use crate::shelf::Shelf;
use crate::watch::Watch;

/// The label of our classes, which names the Configuration.
pub const LABEL: &str = "leafhost.dev/configuration";
/// The annotation with the namespace of the Configuration.
const NAMESPACE: &str = "leafhost.dev/namespace";
/// The longest part of an extended resource's name behind the slash.
const MAX_RESOURCE: usize = 63;
/// The longest name of a class.
const MAX_NAME: usize = 253;

/// Limits the time of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Holds a Configuration, since when it is there, and whether the scheduler gives its devices.
type Read = (ConfigurationKey, (Option<String>, String), bool);

/// Keeps the classes without end. Nothing is written while this process does not lead.
pub async fn keep(
    client: Client,
    mut leads: watch::Receiver<bool>,
    mut names: watch::Receiver<Arc<NameSet>>,
) {
    let (sender, mut configurations) = watch::channel(None);
    let watched = follow(
        Api::<DynamicObject>::all_with(client.clone(), &manifest::resource()),
        ("Configurations", TRIES_AGAIN),
        |object: &DynamicObject| (object.namespace(), object.name_any()),
        |object, _: Option<&Read>| read(&object),
        move |all: &BTreeMap<_, Read>| {
            sender.send_replace(Some(all.values().cloned().collect::<Vec<_>>()));
        },
    );
    let keeping = async {
        let api: Api<DeviceClass> = Api::all(client);
        // A cluster whose Configurations want no class need not have the API.
        let some_left = has_some(&api).await;
        let is_wanted = |known: &Option<Vec<Read>>| {
            some_left || known.iter().flatten().any(|(_, _, is_dra)| *is_dra)
        };
        if configurations.wait_for(is_wanted).await.is_err() {
            return;
        }
        let watch = Watch::new(api.clone()).labels(LABEL);
        let mut keeper = Keeper::new(Classes, api, watch);
        let mut told = None;
        loop {
            let known = configurations.borrow_and_update().clone();
            let names_now = Arc::clone(&names.borrow_and_update());
            let is_known = known.is_some() && names_now.is_known;
            if let Some(known) = known.filter(|_| names_now.is_known) {
                keeper.want(wanted(known, &names_now));
            }
            let problem = keeper.problem();
            if problem != told {
                if let Some(problem) = &problem {
                    tracing::warn!(problem, "DeviceClasses are not what they should be");
                }
                told = problem;
            }
            let acts = *leads.borrow_and_update() && is_known;
            let changed = tokio::select! {
                changed = configurations.changed() => changed.is_ok(),
                changed = names.changed() => changed.is_ok(),
                changed = leads.changed() => changed.is_ok(),
                due = keeper.due(acts) => {
                    if let Some((name, write)) = due {
                        keeper.write(name, write).await;
                    }
                    true
                }
            };
            if !changed {
                // The others end together with this one.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::join!(watched, keeping);
}

/// Tells that there are classes of an earlier run. A failure that may pass is waited out.
async fn has_some(api: &Api<DeviceClass>) -> bool {
    let ours = ListParams::default().labels(LABEL);
    let mut failures = 0;
    loop {
        match answers::within(REQUEST, api.list_metadata(&ours)).await {
            Ok(found) => return !found.items.is_empty(),
            Err(failure) if matches!(failure.kind, Kind::Undefined | Kind::Denied) => return false,
            Err(_) => {
                failures += 1;
                sleep(backoff(failures)).await;
            }
        }
    }
}

/// Reads a Configuration. One that is being deleted has no class, and none that cannot be used has.
fn read(object: &DynamicObject) -> Option<Read> {
    if object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let configuration = Configuration::try_from(manifest::read(object).ok()?).ok()?;
    let seniority = (configuration.created.clone(), configuration.uid.clone());
    let is_dra = configuration.backend == Backend::Dra;
    Some((configuration.key, seniority, is_dra))
}

/// Returns the classes by name: each name's is its owner's.
fn wanted(mut configurations: Vec<Read>, names: &NameSet) -> BTreeMap<String, DeviceClass> {
    configurations.sort_by(|(one, age, _), (two, other, _)| (age, one).cmp(&(other, two)));
    let keys = configurations.iter().map(|(key, ..)| key);
    let owners = NameOwners::new(&names.names, keys);
    let mut wanted = BTreeMap::new();
    for (key, _, is_dra) in &configurations {
        let owns = owners.owner(key.name()).is_some_and(|owner| {
            owner.namespace == key.namespace() && owner.configuration == key.name()
        });
        let name = class_name(key);
        if *is_dra && owns && name.len() <= MAX_NAME {
            wanted
                .entry(name)
                .or_insert_with_key(|name| class(name, key));
        }
    }
    wanted
}

fn class_name(key: &ConfigurationKey) -> String {
    format!("{}.{GROUP}", key.name())
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

struct Classes;

impl Keep for Classes {
    type Object = DeviceClass;

    const LOST: &'static str = "it is deleted again and again; see who deletes it";

    fn write(
        &self,
        found: Option<&DeviceClass>,
        wanted: Option<&DeviceClass>,
    ) -> Option<Write<DeviceClass>> {
        let Some(found) = found else {
            return wanted.map(|wanted| Write::Create(Box::new(wanted.clone())));
        };
        let is_ours = found.labels().contains_key(LABEL);
        if !is_ours || found.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let Some(wanted) = wanted else {
            return Some(Write::Delete(found.uid().unwrap_or_default()));
        };
        let mut right = found.clone();
        right.labels_mut().extend(wanted.labels().clone());
        right.annotations_mut().extend(wanted.annotations().clone());
        right.spec.clone_from(&wanted.spec);
        // An API server that does not know extended resources of classes drops it.
        let kept = found
            .spec
            .as_ref()
            .and_then(|spec| spec.extended_resource_name.as_ref());
        if let Some(spec) = right.spec.as_mut().filter(|_| kept.is_none()) {
            spec.extended_resource_name = None;
        }
        (right != *found).then(|| Write::Replace(Box::new(right)))
    }

    fn hold(&self, held: &mut Shelf<DeviceClass>, is_wanted: bool, object: DeviceClass) {
        let bytes = serde_json::to_vec(&object).map_or(usize::MAX, |bytes| bytes.len());
        let name = object.name_any();
        let place = if is_wanted { "wanted" } else { "other" };
        if held.put(&name, place, bytes, object).is_err() && held.is_news() {
            tracing::warn!(class = name, "there are more DeviceClasses than are read");
        }
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::resource_names::{Reservation, ResourceNames};

    use super::*;

    fn mk_read(namespace: &str, name: &str, created: &str, is_dra: bool) -> Read {
        let key = ConfigurationKey::new(namespace, name).unwrap();
        (key, (Some(created.to_owned()), "u".to_owned()), is_dra)
    }

    #[test]
    fn the_owner_of_a_name_has_its_class() {
        let all = vec![
            mk_read("b", "cams", "2026-01-01T00:00:00Z", true),
            mk_read("a", "cams", "2026-01-02T00:00:00Z", true),
            mk_read("a", "gpu", "2026-01-02T00:00:00Z", false),
        ];
        let classes = wanted(all.clone(), &NameSet::default());
        let [(name, class)]: [_; 1] = classes.into_iter().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(name, "cams.akri.sh");
        let spec = class.spec.unwrap();
        assert_eq!(spec.extended_resource_name.as_deref(), Some("akri.sh/cams"));
        let selectors = spec.selectors.unwrap();
        let expression = &selectors[0].cel.as_ref().unwrap().expression;
        assert!(
            expression.contains("device.attributes[\"leafhost.dev\"].namespace == \"b\""),
            "{expression}"
        );
        let reservation = Reservation {
            namespace: "a".to_owned(),
            created: None,
        };
        let names: ResourceNames = [("cams".to_owned(), reservation)].into_iter().collect();
        let names = NameSet {
            names: Arc::new(names),
            ..NameSet::default()
        };
        let classes = wanted(all, &names);
        assert_eq!(classes["cams.akri.sh"].annotations()[NAMESPACE], "a");
        let long = mk_read("a", &"c".repeat(64), "2026-01-02T00:00:00Z", true);
        let class = wanted(vec![long], &NameSet::default())
            .into_values()
            .next()
            .unwrap();
        assert_eq!(class.spec.unwrap().extended_resource_name, None);
    }

    #[test]
    fn a_class_that_is_not_ours_is_left_alone_and_one_that_differs_is_put_right() {
        let key = ConfigurationKey::new("a", "cams").unwrap();
        let right = class("cams.akri.sh", &key);
        let write = |found: &DeviceClass, wanted| Classes.write(Some(found), wanted);
        assert_eq!(write(&right, Some(&right)), None);
        let mut edited = right.clone();
        edited.spec.as_mut().unwrap().selectors = None;
        assert!(matches!(
            write(&edited, Some(&right)),
            Some(Write::Replace(_))
        ));
        // As an API server of 1.35 keeps it.
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
