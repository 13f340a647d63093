//! The processes that are listed, the one that is in the way, and the service. All end when their value drops.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use lancet_abi::units::Pid;
use lancet_procs::Proc;

use super::sys::ends_with_us;
use crate::{Error, Trigger};

/// First argument of the binary that makes it [`run_busy`].
pub const BUSY_ARGUMENT: &str = "--busy-memory-map";

/// Filled at once, with the memory map locked meanwhile.
const FILLED: usize = 256 << 20;

/// A shell's subshells, which wait for the end of its input: forked, not started one by one.
pub(super) struct Crowd {
    child: Child,
    input: Option<ChildStdin>,
}

impl Crowd {
    pub(super) fn start(processes: usize) -> Result<Self, Error> {
        let script = format!(
            "exec 3<&0; i=0; while [ $i -lt {processes} ]; do (read x) <&3 & i=$((i+1)); done; echo ready; wait"
        );
        let mut child = start(
            Command::new("sh")
                .args(["-c", &script])
                .stdin(Stdio::piped()),
        )?;
        first_line(&mut child)?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// How many processes the machine has now.
    #[expect(clippy::unused_self, reason = "they are there as long as it is")]
    pub(super) fn all(&self) -> Result<usize, Error> {
        let listed = Proc::open().and_then(|root| root.list());
        listed
            .map(|list| list.len())
            .map_err(|e| failed("/proc", std::io::Error::other(e)))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// A process whose memory map is locked most of the time.
pub(super) struct Busy(Child);

impl Busy {
    pub(super) fn start(exe: &Path) -> Result<Self, Error> {
        let mut child = start(Command::new(exe).arg(BUSY_ARGUMENT).stdin(Stdio::null()))?;
        first_line(&mut child)?;
        Ok(Self(child))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// What the binary does when it is started with [`BUSY_ARGUMENT`]: two threads map and unmap filled memory, so that one
/// fills with the lock held while the other waits to write, and readers wait behind that one.
#[must_use]
pub fn run_busy() -> ExitCode {
    let fill = || {
        loop {
            if memmap2::MmapOptions::new()
                .len(FILLED)
                .populate()
                .map_anon()
                .is_err()
            {
                return;
            }
        }
    };
    std::thread::spawn(fill);
    println!("ready");
    fill();
    ExitCode::FAILURE
}

/// `lancet index` at a socket of its own.
pub(super) struct Service {
    child: Child,
    folder: std::path::PathBuf,
    /// Removes the folder should this process be killed.
    _keeper: Trigger,
}

impl Service {
    pub(super) fn start(exe: &Path) -> Result<Self, Error> {
        let folder = std::env::temp_dir().join(format!("lancet-bench-{}", std::process::id()));
        let keeper = Trigger::spawn_keeper(exe, &folder)?;
        std::fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
        let socket = folder.join("index.sock");
        let mut command = Command::new(exe);
        command.args([
            OsStr::new("index"),
            OsStr::new("--socket"),
            socket.as_os_str(),
        ]);
        let mut child = ends_with_us(&mut command)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed(exe, e))?;
        // It says where it serves.
        let mut line = String::new();
        if let Some(error) = child.stderr.take() {
            let _ = BufReader::new(error).read_line(&mut line);
        }
        Ok(Self {
            child,
            folder,
            _keeper: keeper,
        })
    }

    pub(super) fn socket(&self) -> std::path::PathBuf {
        self.folder.join("index.sock")
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        end(&mut self.child);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn start(command: &mut Command) -> Result<Child, Error> {
    let program = command.get_program().to_owned();
    ends_with_us(command)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(program, e))
}

fn first_line(child: &mut Child) -> Result<(), Error> {
    let mut line = String::new();
    match child
        .stdout
        .take()
        .map(|out| BufReader::new(out).read_line(&mut line))
    {
        Some(Ok(read)) if read > 0 => Ok(()),
        _ => Err(failed(
            "a process",
            std::io::ErrorKind::UnexpectedEof.into(),
        )),
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

pub(super) fn failed(program: impl Into<std::path::PathBuf>, source: std::io::Error) -> Error {
    Error::Run {
        program: program.into(),
        source,
    }
}
