use super::*;

fn parse(line: &str) -> Result<Command, clap::Error> {
    super::parse(line.split_whitespace())
}

fn agent(line: &str) -> Box<AgentArgs> {
    match parse(line) {
        Ok(Command::Agent(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_definition_is_valid() {
    definition().debug_assert();
}

#[test]
fn every_flag_has_a_variable_of_its_name_and_a_help_text() {
    fn look(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path} has no help");
        for arg in command.get_arguments() {
            let Some(long) = arg
                .get_long()
                .filter(|long| !matches!(*long, "help" | "version"))
            else {
                continue;
            };
            let variable = |words: &str| words.to_uppercase().replace(['-', ' '], "_");
            let common = variable(&format!("leafhost {long}"));
            let own = variable(&format!("{path} {long}"));
            let expected = match (path, long) {
                (
                    "leafhost agent"
                    | "leafhost controller"
                    | "leafhost handler serve"
                    | "leafhost scheduler"
                    | "leafhost webhook",
                    _,
                )
                | (
                    _,
                    "agent"
                    | "compile-timeout"
                    | "compiler"
                    | "handlers-dir"
                    | "node-name"
                    | "properties-namespaces"
                    | "sdk"
                    | "state-dir",
                ) => &common,
                _ => &own,
            };
            assert_eq!(
                arg.get_env().and_then(|env| env.to_str()),
                Some(expected.as_str()),
                "{path} --{long}"
            );
            assert!(arg.get_help().is_some(), "{path} --{long} has no help");
        }
        for sub in command.get_subcommands() {
            look(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    look(&definition(), "leafhost");
}

#[test]
fn a_variable_of_an_agent_changes_a_status_only_by_the_place_of_the_agent() {
    let variables = |command: &str| -> Vec<String> {
        let definition = definition();
        let command = definition.find_subcommand(command).unwrap();
        let variables = command.get_arguments().filter_map(clap::Arg::get_env);
        let variables = variables.map(|name| name.to_string_lossy().into_owned());
        variables.collect()
    };
    let status = variables("status");
    for (name, is_known) in [
        ("LEAFHOST_READY", false),
        ("LEAFHOST_WATCH", false),
        ("LEAFHOST_OUTPUT", false),
        ("LEAFHOST_STATUS_READY", true),
        ("LEAFHOST_STATUS_WATCH", true),
        ("LEAFHOST_AGENT", true),
    ] {
        assert_eq!(status.iter().any(|one| one == name), is_known, "{name}");
    }
    let agent = variables("agent");
    let both: Vec<&String> = status.iter().filter(|name| agent.contains(name)).collect();
    assert_eq!(both, ["LEAFHOST_STATE_DIR"]);
}

#[test]
fn an_address_without_a_port_is_refused_with_an_example() {
    for flag in ["--listen", "--metrics-listen"] {
        let refused = super::parse(["leafhost", "agent", flag, "localhost"]);
        let refused = refused.unwrap_err().to_string();
        let words = "must be ADDR:PORT, such as 127.0.0.1:9478";
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn standalone_takes_a_folder_or_none() {
    for (line, expected) in [
        ("leafhost agent", None),
        ("leafhost agent --standalone", Some("1")),
        ("leafhost agent --standalone /x", Some("/x")),
        ("leafhost agent --standalone --no-cdi", Some("1")),
    ] {
        assert_eq!(agent(line).standalone.as_deref(), expected, "{line}");
    }
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let args = agent("leafhost agent");
    assert_eq!(args.listen.to_string(), "127.0.0.1:9478");
    assert_eq!(
        args.handler_eviction,
        leafhost_core::timeouts::HANDLER_EVICTION
    );
    assert_eq!(args.compiler.compile_timeout, Duration::from_mins(1));
    assert_eq!(args.slot_grace, Duration::from_mins(5));
    assert_eq!(args.instance_resources, 256);
    assert_eq!(args.log.log_format, LogFormat::Auto);
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    for line in [
        "leafhost agent --listen nonsense",
        "leafhost agent --handler-eviction 5",
        "leafhost agent --handler-eviction -5m",
        "leafhost agent --no-cdi --cdi-dir /x",
        "leafhost agent --no-kubelet --kubelet-dir /x",
        "leafhost agent --slot-grace 0s",
        "leafhost agent --instance-resources 10001",
        "leafhost status nothing",
        "leafhost check",
        "leafhost handler run",
        "leafhost handler run a.wasm --details a --configuration b",
        "leafhost handler run a.wasm --property x",
        "leafhost handler run a.wasm --log-level loud",
        "leafhost scheduler --tls-secret a",
        "leafhost scheduler --tls-service a",
        "leafhost scheduler --tls-secret a/b/c --tls-service d",
        "leafhost scheduler --tls-secret /b --tls-service d",
        "leafhost scheduler --listen 127.0.0.1:1 config",
        "leafhost scheduler config --valid-days 0",
        "leafhost completions klingon",
        "leafhost crash",
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn views_flags_and_formats_are_accepted_in_any_order() {
    for line in [
        "leafhost status configuration cams -o json --watch",
        "leafhost status --watch -o json configuration cams",
        "leafhost status -w configuration --output=json cams",
    ] {
        let Ok(Command::Status(args)) = parse(line) else {
            panic!("{line}");
        };
        assert_eq!(
            (args.view, args.name.as_deref(), args.watch, args.output),
            (Some(View::Configuration), Some("cams"), true, Output::Json),
            "{line}"
        );
    }
}

#[test]
fn an_address_with_a_port_may_be_that_of_a_pod_without_brackets() {
    for (text, expected) in [
        ("10.0.0.1:8081", "10.0.0.1:8081"),
        ("[fd00::5]:8081", "[fd00::5]:8081"),
        ("fd00::5:8081", "[fd00::5]:8081"),
    ] {
        assert_eq!(socket_address(text), Ok(expected.parse().unwrap()));
    }
    for text in ["", "8081", "10.0.0.1", "host:1", "10.0.0.1:65536"] {
        assert!(socket_address(text).is_err(), "{text}");
    }
}

#[test]
fn the_secret_of_the_extender_may_say_its_namespace() {
    let line = "leafhost scheduler --tls-secret plant/own --tls-service extender";
    let Ok(Command::Scheduler(args)) = parse(line) else {
        panic!("{line}");
    };
    let named = |namespace: Option<&str>, name: &str| ObjectName {
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    };
    assert_eq!(args.tls_secret, Some(named(Some("plant"), "own")));
    assert!(args.command.is_none());
    let Ok(Command::Scheduler(args)) = parse("leafhost scheduler config") else {
        panic!("config");
    };
    let Some(SchedulerCommand::Config(args)) = args.command else {
        panic!("{args:?}");
    };
    assert_eq!(args.secret, named(None, "leafhost-scheduler-certificate"));
    assert_eq!(
        (&*args.service, args.valid_days),
        ("leafhost-scheduler", 365)
    );
}
