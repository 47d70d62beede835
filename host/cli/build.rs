//! Has the program laid out so that it takes little memory.
//!
//! Its relative relocations are packed where the machine's C library can read them so: a megabyte less that every start
//! reads and holds. `LEAFHOST_OLDER_GLIBC=1` leaves them as every C library reads them. And a release has the functions that
//! `LEAFHOST_ORDER` names one after another, in that order: the kernel holds a program by pieces of 64 KiB and more, and
//! those that an agent needs would be all over it. Names that there are no more do no harm.

use std::path::Path;
use std::process::Command;

/// The first glibc that reads them.
const READS: (u32, u32) = (2, 36);
/// Says that the program is for machines with an older one.
const OLDER: &str = "LEAFHOST_OLDER_GLIBC";

/// A file with functions' names, one a line; only LLVM's linker, which is the toolchain's own on x86-64, can do so.
const ORDER: &str = "LEAFHOST_ORDER";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={OLDER}");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    let is_here = of("HOST") == of("TARGET") && of("CARGO_CFG_TARGET_ENV") == "gnu";
    if is_here && of(OLDER) != "1" && glibc().is_some_and(|version| version >= READS) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    if of("PROFILE") == "release" {
        println!("cargo:rerun-if-env-changed={ORDER}");
        let order = of(ORDER);
        if !order.is_empty() {
            lay_out(&order, is_here && of("CARGO_CFG_TARGET_ARCH") == "x86_64");
        }
    }
}

/// Has the functions that a file names one after another.
fn lay_out(order: &str, can_be: bool) {
    println!("cargo:rerun-if-changed={order}");
    if !can_be || !Path::new(order).is_file() {
        println!("cargo:warning={ORDER}={order} is not used: no such file, or not on x86-64");
        return;
    }
    for part in ["--symbol-ordering-file", order, "--no-warn-symbol-ordering"] {
        println!("cargo:rustc-link-arg-bins=-Xlinker");
        println!("cargo:rustc-link-arg-bins={part}");
    }
}

/// The version of the machine's glibc.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let said = String::from_utf8(said.ok()?.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    // `2.36`, elsewhere `2.36.9000`.
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
