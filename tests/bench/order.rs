//! The order in which an agent in use reaches its functions, for a program that is laid out by it (`make tuned`).

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use leafhost_tests::agent::Home;
use leafhost_tests::kubelet::Blocking;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::program::build_folder;

use crate::busy_agent::{BusyAgent, one_of_each};
use crate::reached::Watched;

const PORT: u16 = 9482;
/// As many as it takes until hardly anything new is reached.
const CALLS: u32 = 1_500;

/// Writes the functions' names beside the program, one a line: first what every agent needs, then what a kubelet adds.
pub fn write() -> Result<()> {
    let mut agent = BusyAgent::watched(PORT)?;
    agent.configure()?;
    agent.call(CALLS, true)?;
    let mut reached = agent.stop()?;
    let seen: BTreeSet<String> = reached.iter().cloned().collect();
    let more = with_kubelet()?;
    reached.extend(more.into_iter().filter(|name| !seen.contains(name)));
    let path = build_folder()?.join("leafhost.order");
    std::fs::write(&path, reached.join("\n") + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!(
        "{} functions, {} of them for a kubelet alone, in {}",
        reached.len(),
        reached.len() - seen.len(),
        path.display()
    );
    Ok(())
}

/// What an agent reaches whose kubelet has pods that get devices and give them back.
fn with_kubelet() -> Result<Vec<String>> {
    let root = tempfile::tempdir()?;
    let kubelet = Blocking::start(root.path())?;
    let mut home = Home::new()?;
    home.serve_kubelet(root.path());
    home.add_handler("debug-echo")?;
    one_of_each(&home, &["debug-echo"])?;
    let agent = Watched::start(home.command(&[])?, &home.log_file())?;
    kubelet.wait(kubelet.until_capacity("akri.sh/echo", 2, 2))?;
    // The third gets what the first gave back.
    for name in ["first", "second", "third"] {
        let pod = PodSpec::asking(name, "akri.sh/echo", 1);
        let (uid, admitted) = kubelet.wait(kubelet.run_pod(&pod))?;
        admitted?;
        kubelet.end_pod(&uid);
        kubelet.delete_pod(&uid)?;
    }
    agent.stop()
}
