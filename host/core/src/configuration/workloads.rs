//! What a Configuration says of workloads and services, which this version does not create.

use super::{FieldProblem, Spec};

impl Spec {
    /// The fields that are there and have no effect, with what is said of them.
    pub fn without_effect(&self) -> impl Iterator<Item = FieldProblem> + use<> {
        let fields = [
            (
                self.broker_spec.is_some(),
                "brokerSpec",
                "starts no brokers",
            ),
            (
                self.instance_service_spec.is_some(),
                "instanceServiceSpec",
                "creates no services",
            ),
            (
                self.configuration_service_spec.is_some(),
                "configurationServiceSpec",
                "creates no services",
            ),
        ];
        let present = fields.into_iter().filter(|(present, _, _)| *present);
        present.map(|(_, name, why)| {
            let message = format!("this version {why}: {name} is ignored");
            FieldProblem::new(format!("spec.{name}"), message)
        })
    }
}
