//! Live table in a real terminal of three sizes.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::program::{self, source_tree};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;

/// Separate tmux server with one window.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open(home: &Home, width: usize, height: usize) -> Result<Self> {
        let socket = home.path().join(format!("tmux-{width}"));
        let terminal = Self {
            socket: socket.to_string_lossy().into_owned(),
        };
        let (width, height) = (width.to_string(), height.to_string());
        let command = format!(
            "{} status --watch --state-dir {}",
            program::leafhost()?.display(),
            home.path().join("state").display()
        );
        let size = ["-x", &width, "-y", &height, &command];
        terminal.tmux(&[&["new-session", "-d"], &size[..]].concat())?;
        Ok(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let server = ["-S", &self.socket, "-f", "/dev/null"];
        program::run("tmux", [&server[..], arguments].concat())?.good()
    }

    fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tmux(&["kill-server"]));
    }
}

/// Starts an agent with the sample of `make run`, more devices than fit, and a missing one.
fn agent() -> Result<Home> {
    let mut home = Home::new()?;
    for handler in ["debug-echo", "mock-gpu", "udev"] {
        home.add_handler(handler)?;
    }
    let samples = source_tree().join("deploy/samples/standalone/configurations");
    for sample in fs::read_dir(samples)? {
        let sample = sample?;
        let name = sample.file_name().to_string_lossy().into_owned();
        home.write(
            &format!("configurations/{name}"),
            &fs::read_to_string(sample.path())?,
        )?;
    }
    home.write("configurations/many.yaml", many(0))?;
    home.start(&[])?;
    home.until("more than forty devices are there", |status| {
        status["instances"]
            .as_array()
            .is_some_and(|all| all.len() > 40)
    })?;
    home.write("configurations/many.yaml", many(1))?;
    home.until("one is missing, and every handler is in use", |status| {
        let active = status.to_string().matches(r#""status":"Active""#).count();
        active == 3 && status.to_string().contains("missingSince")
    })?;
    Ok(home)
}

/// Returns a Configuration of forty devices, without the first `absent` ones.
fn many(absent: usize) -> String {
    let names: Vec<String> = (absent..40)
        .map(|number| format!("sensor{number:02}"))
        .collect();
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: sensors}}\nspec:\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: |\n      descriptions: [{}]\n",
        names.join(", ")
    )
}

#[test]
fn the_live_table_shows_what_is_wrong_first_at_every_size() -> Result<()> {
    let tmux = requirement::files(&["/usr/bin/tmux"], "make setup-test");
    if requirement::lacks(tmux)? {
        return Ok(());
    }
    let home = agent()?;
    for (width, height) in [(80, 24), (120, 40), (200, 60)] {
        let terminal = Terminal::open(&home, width, height)?;
        let screen = eventually("the table is shown", || {
            let screen = terminal.screen()?;
            ensure!(screen.contains("Active"), "{screen}");
            Ok(screen)
        })?;
        let rows: Vec<&str> = screen.lines().collect();
        let at = |wanted: &str| rows.iter().position(|row| row.contains(wanted));
        let first = at("INSTANCE").context("no heading")?;
        ensure!(
            rows.len() == height,
            "{} rows of {height}\n{screen}",
            rows.len()
        );
        ensure!(rows[first + 1].contains("Missing"), "{screen}");
        ensure!(at("Active").is_some(), "handlers do not fit\n{screen}");
        ensure!(at("q: quit").is_some(), "no way out\n{screen}");
        // Every Configuration, and the screen is full of devices.
        for configuration in ["debug-echo ", "mock-gpu ", "sensors ", "udev "] {
            ensure!(at(configuration).is_some(), "no {configuration}\n{screen}");
        }
        let below = rows[first + 1..].iter();
        let devices = below.take_while(|row| !row.is_empty() && !row.starts_with("and "));
        let devices = devices.count();
        ensure!(
            devices + 16 >= height.min(48),
            "{devices} devices\n{screen}"
        );
        let whole = rows.iter().any(|row| row.contains("akri.sh/sensors="));
        ensure!(whole == (width >= 120), "CDI names at {width}\n{screen}");
        let run = home.path().to_string_lossy().into_owned();
        ensure!(!screen.contains(&run), "an absolute path\n{screen}");
        terminal.tmux(&["send-keys", "q"])?;
        eventually("q ends it", || {
            ensure!(terminal.screen().is_err(), "the window is still there");
            Ok(())
        })?;
    }
    Ok(())
}
