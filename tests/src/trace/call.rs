//! Decoder of a system call at its entry: finds out if it would change a file system, and which file.
//!
//! Knows system calls and nothing of kills.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Length of the longest path that the kernel accepts.
const PATH: usize = 4096;

/// Effect of a call on the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Writes bytes into an open file.
    Write {
        /// Path of the file, or `pipe`.
        to: PathBuf,
        /// File descriptor.
        descriptor: i32,
        /// Address and length of the bytes in the caller, if they are contiguous.
        bytes: Option<(u64, usize)>,
    },
    /// Creates or truncates a file.
    Create(PathBuf),
    /// Syncs a file or folder.
    Sync(PathBuf),
    /// Renames a file.
    Rename(PathBuf, PathBuf),
    /// Removes a file or folder.
    Remove(PathBuf),
    /// Any other change of a file or folder.
    Other(PathBuf),
}

/// Call that would change a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// Effect of the call.
    pub act: Act,
}

/// Decodes the call at which the thread is stopped; `None` if it changes no file.
pub fn at_entry(thread: Pid) -> Result<Option<Call>> {
    let registers = Registers::of(thread)?;
    let caller = Caller(thread);
    let arguments = &registers.arguments;
    let number = |index: usize| arguments.get(index).copied().unwrap_or_default();
    let path = |index| caller.path(number(index));
    let at = |folder: usize| caller.path_at(descriptor(number(folder)), number(folder + 1));
    let open = |index: usize| caller.opened(descriptor(number(index)));
    let write = |in_one_piece: bool| {
        let length = usize::try_from(number(2)).unwrap_or_default();
        Ok::<_, anyhow::Error>(caller.written(descriptor(number(0)))?.map(|to| Act::Write {
            to,
            descriptor: descriptor(number(0)),
            bytes: in_one_piece.then_some((number(1), length)),
        }))
    };
    let makes = |flags: u64| {
        let making = u64::from((libc::O_CREAT | libc::O_TRUNC).unsigned_abs());
        let nameless = u64::from(libc::O_TMPFILE.unsigned_abs());
        flags & making != 0 || flags & nameless == nameless
    };
    let (name, act) = match registers.number {
        libc::SYS_write => ("write", write(true)?),
        libc::SYS_pwrite64 => ("pwrite", write(false)?),
        libc::SYS_writev => ("writev", write(false)?),
        libc::SYS_pwritev => ("pwritev", write(false)?),
        libc::SYS_pwritev2 => ("pwritev2", write(false)?),
        libc::SYS_sendfile => ("sendfile", write(false)?),
        libc::SYS_copy_file_range => {
            let to = caller.written(descriptor(number(2)))?;
            ("copy_file_range", to.map(Act::Other))
        }
        libc::SYS_openat if makes(number(2)) => ("open", Some(Act::Create(at(0)?))),
        libc::SYS_openat2 => ("open", Some(Act::Create(at(0)?))),
        libc::SYS_ftruncate => ("ftruncate", open(0)?.map(Act::Other)),
        libc::SYS_fallocate => ("fallocate", open(0)?.map(Act::Other)),
        libc::SYS_truncate => ("truncate", Some(Act::Other(path(0)?))),
        libc::SYS_fsync => ("fsync", open(0)?.map(Act::Sync)),
        libc::SYS_fdatasync => ("fdatasync", open(0)?.map(Act::Sync)),
        libc::SYS_renameat | libc::SYS_renameat2 => ("rename", Some(Act::Rename(at(0)?, at(2)?))),
        libc::SYS_unlinkat => ("unlink", Some(Act::Remove(at(0)?))),
        libc::SYS_mkdirat => ("mkdir", Some(Act::Other(at(0)?))),
        libc::SYS_mknodat => ("mknod", Some(Act::Other(at(0)?))),
        libc::SYS_linkat => ("link", Some(Act::Other(at(2)?))),
        libc::SYS_symlinkat => ("symlink", Some(Act::Other(at(1)?))),
        libc::SYS_fchmod => ("chmod", open(0)?.map(Act::Other)),
        libc::SYS_fchmodat => ("chmod", Some(Act::Other(at(0)?))),
        libc::SYS_fchown => ("chown", open(0)?.map(Act::Other)),
        libc::SYS_fchownat => ("chown", Some(Act::Other(at(0)?))),
        libc::SYS_utimensat if number(1) == 0 => ("utimens", open(0)?.map(Act::Other)),
        libc::SYS_utimensat => ("utimens", Some(Act::Other(at(0)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open if makes(number(1)) => ("open", Some(Act::Create(path(0)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => ("open", Some(Act::Create(path(0)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => ("rename", Some(Act::Rename(path(0)?, path(1)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink | libc::SYS_rmdir => ("unlink", Some(Act::Remove(path(0)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => ("mkdir", Some(Act::Other(path(0)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link | libc::SYS_symlink => ("link", Some(Act::Other(path(1)?))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => ("chmod", Some(Act::Other(path(0)?))),
        _ => return Ok(None),
    };
    Ok(act.map(|act| Call { name, act }))
}

/// Performs the first half of a write for the caller, as a full disk or a power failure would leave it.
pub fn write_half(thread: Pid, act: &Act) -> Result<()> {
    let Act::Write {
        descriptor,
        bytes: Some((address, length)),
        ..
    } = act
    else {
        return Ok(());
    };
    let mut half = vec![0; length / 2];
    Caller(thread).memory(*address, &mut half)?;
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{descriptor}"))?;
    let position = info.lines().find_map(|line| line.strip_prefix("pos:"));
    let position: u64 = position.context("no position")?.trim().parse()?;
    let file = File::options()
        .write(true)
        .open(format!("/proc/{thread}/fd/{descriptor}"))?;
    file.write_all_at(&half, position)?;
    Ok(())
}

struct Registers {
    number: libc::c_long,
    arguments: Vec<u64>,
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn of(thread: Pid) -> Result<Self> {
        let held = ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(thread)?;
        Ok(Self {
            number: held.orig_rax.cast_signed(),
            arguments: vec![held.rdi, held.rsi, held.rdx, held.r10, held.r8, held.r9],
        })
    }

    #[cfg(target_arch = "aarch64")]
    fn of(thread: Pid) -> Result<Self> {
        let held = ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(thread)?;
        let number = held.regs.get(8).copied().unwrap_or_default();
        Ok(Self {
            number: number.cast_signed(),
            arguments: held.regs.iter().take(6).copied().collect(),
        })
    }
}

/// Converts an argument to a file descriptor: the lower half of the register.
fn descriptor(argument: u64) -> i32 {
    u32::try_from(argument & u64::from(u32::MAX)).map_or(-1, u32::cast_signed)
}

struct Caller(Pid);

impl Caller {
    fn memory(&self, address: u64, into: &mut [u8]) -> Result<usize> {
        let memory = File::open(format!("/proc/{}/mem", self.0))?;
        Ok(memory.read_at(into, address)?)
    }

    fn path(&self, address: u64) -> Result<PathBuf> {
        self.path_at(libc::AT_FDCWD, address)
    }

    fn path_at(&self, folder: i32, address: u64) -> Result<PathBuf> {
        let mut bytes = vec![0; PATH];
        let read = self
            .memory(address, &mut bytes)
            .context("cannot read a path")?;
        bytes.truncate(read);
        let end = bytes.iter().position(|byte| *byte == 0);
        bytes.truncate(end.context("a path without an end")?);
        let path = PathBuf::from(OsString::from_vec(bytes));
        if path.is_absolute() {
            return Ok(path);
        }
        let folder = match folder {
            libc::AT_FDCWD => fs::read_link(format!("/proc/{}/cwd", self.0))?,
            folder => self.opened(folder)?.unwrap_or_default(),
        };
        Ok(folder.join(path))
    }

    /// Returns the path of a descriptor; `None` if it is closed.
    fn opened(&self, descriptor: i32) -> Result<Option<PathBuf>> {
        match fs::read_link(format!("/proc/{}/fd/{descriptor}", self.0)) {
            Ok(path) => Ok(Some(path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("cannot tell what is open"),
        }
    }

    /// Returns the path of a descriptor if it is a file or a pipe; sockets and events are not files.
    fn written(&self, descriptor: i32) -> Result<Option<PathBuf>> {
        let path = self.opened(descriptor)?;
        Ok(path.and_then(|path| match path.to_str() {
            Some(text) if text.starts_with("pipe:") => Some(PathBuf::from("pipe")),
            _ if path.is_absolute() && !path.starts_with(Path::new("/dev")) => Some(path),
            _ => None,
        }))
    }
}
