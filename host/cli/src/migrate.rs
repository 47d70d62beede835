//! `leafhost migrate`: shows the planned changes to a cluster, asks, and makes them.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use leafhost_k8s::migrate::{self, Direction, Error, Plan};

use crate::args::MigrateCommand;
use crate::check;
use crate::failure::Usage;
use crate::runtime::block_on;
use crate::terminal::{self, Paint, Tone};

/// Maximum number of passes over the plan; a pass repeats steps whose objects others have changed since they were read.
const ROUNDS: usize = 5;

/// Text that is printed once Akri is stopped.
const AFTER_FROM: &str = "\
Akri is stopped. Install Leafhost now; until its agents run no new pod gets a device:
  helm install leafhost deploy/chart --namespace leafhost --create-namespace --set agent.image.repository=REGISTRY/leafhost
Do not use helm upgrade or helm uninstall on Akri's release: docs/from-akri.md says how to remove Akri, and how to go back.
";
/// Text that is printed once Akri runs again.
const AFTER_TO: &str = "\
Akri continues. Its agents create the Instances of their nodes again:
  kubectl get akrii --all-namespaces --watch
The definitions are still those of Leafhost, which have all fields of Akri's.
";

pub fn run(command: MigrateCommand) -> Result<()> {
    block_on(move_on(command))
}

async fn move_on(command: MigrateCommand) -> Result<()> {
    let (direction, args, checked, after) = match command {
        MigrateCommand::FromAkri(args) => {
            let checked = Some((args.folders.handlers_dir, args.compiler));
            (Direction::FromAkri, args.common, checked, AFTER_FROM)
        }
        MigrateCommand::ToAkri(args) => (Direction::ToAkri, args, None, AFTER_TO),
    };
    let client = leafhost_k8s::connect_as_user().await?;
    let mut plan = migrate::plan(&client, direction).await?;
    if let Some((folders, compiler)) = checked.filter(|_| !plan.steps.is_empty()) {
        let texts = std::mem::take(&mut plan.configurations);
        let found = check::details(texts, &folders, &compiler).await?;
        plan.notes.extend(found);
    }
    terminal::print(&shown(&plan, Paint::stdout()))?;
    if plan.steps.is_empty() && plan.blockers.is_empty() {
        // An earlier run may have been interrupted just before printing this.
        let text = if plan.is_akri_stopped { after } else { "" };
        return Ok(terminal::print(text)?);
    }
    if args.dry_run {
        return Ok(());
    }
    if !plan.blockers.is_empty() {
        bail!("nothing was done; remove the obstacles above, and run this again");
    }
    if !args.yes && !confirmed()? {
        bail!("nothing was done");
    }
    for _ in 0..ROUNDS {
        for step in &plan.steps {
            terminal::print(&format!("{} …\n", step.text))?;
            match migrate::run(&client, step).await {
                Err(Error::Changed(what)) => {
                    terminal::print(&format!(
                        "{what} has changed since it was read; reading again\n"
                    ))?;
                    break;
                }
                done => done?,
            }
        }
        plan = migrate::plan(&client, direction).await?;
        if plan.steps.is_empty() {
            terminal::print("Done.\n\n")?;
            return Ok(terminal::print(after)?);
        }
    }
    let left: Vec<&str> = plan.steps.iter().map(|step| step.text.as_str()).collect();
    bail!(
        "these steps are left after {ROUNDS} rounds, because something else changes the same objects: {}; suspend the tool that changes them, such as Argo CD or Flux, and run this again",
        left.join("; ")
    )
}

/// Formats the plan as text.
fn shown(plan: &Plan, paint: Paint) -> String {
    let mut text = String::new();
    let mut line = |tone, line: &str| {
        text.push_str(&paint.apply(tone, line));
        text.push('\n');
    };
    for found in &plan.found {
        line(Tone::Plain, found);
    }
    for note in &plan.notes {
        line(Tone::Warning, &format!("note: {note}."));
    }
    for blocker in &plan.blockers {
        line(Tone::Bad, &format!("in the way: {blocker}"));
    }
    if plan.steps.is_empty() {
        line(Tone::Plain, "Nothing to do.");
        return text;
    }
    line(Tone::Heading, "Steps:");
    for (number, step) in (1..).zip(&plan.steps) {
        line(Tone::Plain, &format!("  {number}. {}.", step.text));
    }
    text
}

/// Asks for confirmation on the terminal.
fn confirmed() -> Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = "cannot ask for confirmation: standard input is not a terminal; use --yes to skip the question";
        bail!(Usage(why.to_owned()));
    }
    eprint!("Continue? [y/N] ");
    std::io::stderr().flush().context("cannot ask")?;
    let mut line = String::new();
    stdin
        .read_line(&mut line)
        .context("cannot read the answer")?;
    Ok(is_yes(&line))
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_a_yes() {
        for (answer, yes) in [
            ("y\n", true),
            ("Yes\n", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yep\n", false),
        ] {
            assert_eq!(is_yes(answer), yes, "{answer:?}");
        }
    }

    #[test]
    fn a_plan_without_steps_says_so_and_one_with_blockers_shows_them() {
        let mut plan = Plan {
            found: vec!["0 Configurations, 0 Instances".to_owned()],
            ..Plan::default()
        };
        assert_eq!(
            shown(&plan, Paint::PLAIN),
            "0 Configurations, 0 Instances\nNothing to do.\n"
        );
        plan.blockers.push("Leafhost runs".into());
        assert!(shown(&plan, Paint::PLAIN).contains("in the way: Leafhost runs\n"));
    }
}
