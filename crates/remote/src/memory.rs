//! The memory of one process through a descriptor of `/proc/PID/mem` that is held.
//!
//! A held descriptor goes on working when the process drops its dumpable flag, and it stays
//! bound to the process's address space at the time of opening: after an exec, and for a reused
//! pid, it reads nothing rather than something else.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use lancet_abi::units::{Pid, RuntimeAddr, Tid};

use crate::error::RemoteError;
use crate::sys;

/// Reads and writes the memory of one process.
#[derive(Debug)]
pub struct Memory {
    pid: Pid,
    file: File,
}

impl Memory {
    /// Opens the memory of a process; ptrace rules decide.
    pub fn open(pid: Pid) -> Result<Self, RemoteError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", lancet_procs::face(pid)))
            .map_err(|source| match source.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => RemoteError::Gone { pid },
                _ => RemoteError::Denied { pid, source },
            })?;
        Ok(Self { pid, file })
    }

    /// A `Memory` over a descriptor of `/proc/PID/mem` that is already open.
    #[must_use]
    pub fn from_file(pid: Pid, file: File) -> Self {
        Self { pid, file }
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The descriptor, for the journal.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn error(
        &self,
        what: &'static str,
        address: RuntimeAddr,
        length: usize,
        source: io::Error,
    ) -> RemoteError {
        RemoteError::Memory {
            pid: self.pid,
            what,
            address,
            length,
            source,
        }
    }

    /// Fills `buffer` from `address`.
    pub fn read(&self, address: RuntimeAddr, buffer: &mut [u8]) -> Result<(), RemoteError> {
        self.file
            .read_exact_at(buffer, address.0)
            .map_err(|source| self.error("read", address, buffer.len(), source))
    }

    /// Reads as much as there is, up to the buffer's length, and says how much.
    pub fn read_some(&self, address: RuntimeAddr, buffer: &mut [u8]) -> usize {
        self.file.read_at(buffer, address.0).unwrap_or(0)
    }

    /// Reads `length` bytes.
    pub fn bytes(&self, address: RuntimeAddr, length: usize) -> Result<Vec<u8>, RemoteError> {
        let mut buffer = vec![0; length];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// Reads one 64-bit word.
    pub fn word(&self, address: RuntimeAddr) -> Result<u64, RemoteError> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Reads one 32-bit word.
    pub fn word32(&self, address: RuntimeAddr) -> Result<u32, RemoteError> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Writes, whatever the page's protection is: the page becomes a private copy.
    pub fn write(&self, address: RuntimeAddr, bytes: &[u8]) -> Result<(), RemoteError> {
        self.file
            .write_all_at(bytes, address.0)
            .map_err(|source| self.error("write", address, bytes.len(), source))
    }

    /// Writes text while `tid` is stopped under this thread. Where the kernel does not let
    /// `/proc/PID/mem` write read-only pages, it goes word by word through ptrace.
    pub fn write_text(
        &self,
        tid: Tid,
        address: RuntimeAddr,
        bytes: &[u8],
    ) -> Result<(), RemoteError> {
        match self.file.write_all_at(bytes, address.0) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EACCES)) => {
                self.poke(tid, address, bytes)
            }
            Err(source) => Err(self.error("write", address, bytes.len(), source)),
        }
    }

    fn poke(&self, tid: Tid, address: RuntimeAddr, bytes: &[u8]) -> Result<(), RemoteError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.plus(done as u64);
            let base = RuntimeAddr(at.0 & !7);
            let skip = at.offset_from(base) as usize;
            let take = (8 - skip).min(bytes.len() - done);
            let mut word = [0; 8];
            self.read(base, &mut word)?;
            word[skip..skip + take].copy_from_slice(&bytes[done..done + take]);
            sys::poke(tid, base.0, u64::from_le_bytes(word))
                .map_err(|source| RemoteError::ptrace(self.pid, tid, "PTRACE_POKETEXT", source))?;
            done += take;
        }
        Ok(())
    }
}
