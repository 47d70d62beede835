//! A network namespace for a test.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

/// Runs the test on a thread with a network namespace of its own, which ends with it. Without root the test is skipped with a message;
/// with `CI=true` that is a failure.
pub(crate) fn with_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "needs root");
        eprintln!("skipped: needs root");
        return;
    }
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        // A single thread: a socket belongs to the namespace of the thread that opens it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments in the namespace of the calling thread.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// A second namespace, for the other hosts.
pub(crate) struct Far {
    home: File,
    far: File,
}

impl Far {
    /// Creates a namespace without any interface but `lo`, which is down.
    pub(crate) fn new() -> Self {
        let this = || File::open("/proc/thread-self/ns/net").unwrap();
        let home = this();
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let far = this();
        setns(&home, CloneFlags::CLONE_NEWNET).unwrap();
        Self { home, far }
    }

    /// Connects an interface of that name here with one of the same name there, both up, with these networks.
    pub(crate) fn cable(&self, name: &str, here: &[&str], there: &[&str]) {
        let far = format!("/proc/{}/fd/{}", std::process::id(), self.far.as_raw_fd());
        ip(&format!(
            "link add {name} type veth peer name {name} netns {far}"
        ));
        let prepare = |networks: &[&str]| {
            for network in networks {
                let flags = if network.contains(':') { "nodad" } else { "" };
                ip(&format!("address add {network} dev {name} {flags}"));
            }
            ip(&format!("link set {name} up"));
        };
        prepare(here);
        self.run(|| prepare(there));
    }

    /// Runs `work` in the namespace; a socket opened there stays there.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        setns(&self.far, CloneFlags::CLONE_NEWNET).unwrap();
        let result = work();
        setns(&self.home, CloneFlags::CLONE_NEWNET).unwrap();
        result
    }
}
