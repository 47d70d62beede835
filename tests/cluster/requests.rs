//! Audit log of the cluster, the basis of tests of the agents' requests.

use anyhow::Result;
use leafhost_tests::cluster;
use leafhost_tests::wait::eventually;
use serde_json::json;

#[test]
fn the_audit_log_counts_each_request_by_user_verb_and_object() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let space = cluster.namespace("audit")?;
    let (all, start) = (space.collection("configmaps"), cluster.audit().now()?);
    cluster
        .api()
        .create(&all, &json!({"metadata": {"name": "counted"}}))?;
    for _ in 0..3 {
        cluster.get(&format!("{all}/counted"))?;
    }
    cluster.get(&format!("{all}/absent")).unwrap_err();
    eventually("all requests are in the log", || {
        let requests = cluster.audit().since(start)?;
        let counted: Vec<_> = requests
            .iter()
            .filter(|(request, _)| request.namespace == space.name() && request.user == "admin")
            .map(|(request, count)| (&*request.verb, &*request.name, request.code, *count))
            .collect();
        let expected = [
            ("create", "counted", 201, 1),
            ("get", "absent", 404, 1),
            ("get", "counted", 200, 3),
        ];
        anyhow::ensure!(counted == expected, "{counted:?}");
        Ok(())
    })
}
