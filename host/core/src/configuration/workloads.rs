//! Fields of a Configuration for brokers and services, which only the controller of a cluster creates.

use super::{FieldProblem, Spec};

impl Spec {
    /// Returns a problem for each field that is set but has an effect only in a cluster.
    pub fn only_in_clusters(&self) -> impl Iterator<Item = FieldProblem> + use<> {
        let fields = [
            (self.broker_spec.is_some(), "brokerSpec", "brokers"),
            (
                self.instance_service_spec.is_some(),
                "instanceServiceSpec",
                "services",
            ),
            (
                self.configuration_service_spec.is_some(),
                "configurationServiceSpec",
                "services",
            ),
        ];
        let present = fields.into_iter().filter(|(present, _, _)| *present);
        present.map(|(_, name, what)| {
            let message = format!(
                "{what} are created in a cluster, by its controller; a standalone agent creates none"
            );
            FieldProblem::new(format!("spec.{name}"), message)
        })
    }
}
