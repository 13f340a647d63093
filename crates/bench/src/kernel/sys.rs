//! The system calls of the kernel engine: `bpf(2)`, `perf_event_open(2)` and one ioctl.
//!
//! Layouts and numbers are those of the kernel's user API (`linux/bpf.h`, `linux/perf_event.h`);
//! of each structure only the leading part that is used is stated, which the kernel accepts.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use lancet_abi::units::{FileOffset, Pid};

use crate::Error;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;

const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;

const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// One BPF instruction, as the kernel encodes it.
pub(super) type Instruction = u64;

/// What a program is loaded for; `uprobe_multi` links take only programs that say so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachType {
    Perf,
    Multi,
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct MapLookup {
    map_fd: u32,
    padding: u32,
    key: *const u32,
    value: *mut u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: *const Instruction,
    license: *const libc::c_char,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreateMulti {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: *const libc::c_char,
    offsets: *const u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

/// The second published size of `perf_event_attr`, which ends behind `config2`.
#[repr(C)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    uprobe_path: *const libc::c_char,
    probe_offset: u64,
}

const _: () = assert!(size_of::<PerfEventAttr>() == 72);
const _: () = assert!(size_of::<LinkCreateMulti>() == 64);
const _: () = assert!(size_of::<ProgLoad>() == 72);

/// An array map of one eight-byte counter for each possible CPU.
pub(super) fn create_counter_map(pid: Pid) -> Result<OwnedFd, Error> {
    let attributes = MapCreate {
        map_type: BPF_MAP_TYPE_PERCPU_ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        map_flags: 0,
    };
    // SAFETY: the attributes hold no pointer.
    let fd = unsafe { bpf(BPF_MAP_CREATE, &attributes) };
    owned(fd, "bpf(BPF_MAP_CREATE) for the counter", pid)
}

/// Reads the counter of every possible CPU into `values`, whose length is their number.
pub(super) fn read_counters(
    pid: Pid,
    map: BorrowedFd<'_>,
    values: &mut [u64],
) -> Result<(), Error> {
    let key = 0_u32;
    let attributes = MapLookup {
        map_fd: number(map),
        padding: 0,
        key: &raw const key,
        value: values.as_mut_ptr(),
        flags: 0,
    };
    // SAFETY: `key` lives until the call returns; the kernel writes eight bytes for each possible
    // CPU, and the caller sized `values` by that number.
    let result = unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attributes) };
    if result < 0 {
        return Err(last("bpf(BPF_MAP_LOOKUP_ELEM) for the counter", pid));
    }
    Ok(())
}

/// Has the kernel verify and compile `program`.
pub(super) fn load_program(
    pid: Pid,
    program: &[Instruction],
    attach: AttachType,
) -> Result<OwnedFd, Error> {
    let attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr(),
        license: c"Dual MIT/GPL".as_ptr(),
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"lancet_bench\0\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: match attach {
            AttachType::Perf => 0,
            AttachType::Multi => BPF_TRACE_UPROBE_MULTI,
        },
    };
    // SAFETY: the instructions and the licence are readable for their stated lengths and only
    // read; they live until the call returns.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &attributes) };
    owned(fd, "bpf(BPF_PROG_LOAD) for the counting program", pid)
}

/// A uprobe at `offset` of `file` that runs `program`, in one process or in all that map it.
pub(super) fn attach_perf(
    process: Option<Pid>,
    file: &Path,
    offset: FileOffset,
    program: BorrowedFd<'_>,
) -> Result<OwnedFd, Error> {
    const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
    let kind = fs::read_to_string(TYPE)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let kind = kind.ok_or(Error::Unsupported {
        feature: "perf uprobes",
    })?;
    let path = c_path(file)?;
    let attributes = PerfEventAttr {
        kind,
        size: size_of::<PerfEventAttr>() as u32,
        config: 0,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: 0,
        wakeup_events: 0,
        bp_type: 0,
        uprobe_path: path.as_ptr(),
        probe_offset: offset.0,
    };
    // Without a process the event must be of some CPU, but its program runs on every one.
    let (pid, cpu) = process.map_or((Pid(-1), 0), |pid| (pid, -1 as libc::c_int));
    let no_group: libc::c_int = -1;
    // SAFETY: the attributes and the path in them are readable and live until the call returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid.0,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let event = owned(fd, "perf_event_open for a uprobe", pid)?;
    // SAFETY: this ioctl takes a descriptor number, no pointer.
    let result = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_BPF,
            program.as_raw_fd(),
        )
    };
    if result < 0 {
        return Err(last("ioctl(PERF_EVENT_IOC_SET_BPF) on a uprobe", pid));
    }
    Ok(event)
}

/// One link with a uprobe at each of `offsets` of `file`, in one process or in all that map it.
pub(super) fn attach_multi(
    process: Option<Pid>,
    file: &Path,
    offsets: &[FileOffset],
    program: BorrowedFd<'_>,
) -> Result<OwnedFd, Error> {
    let pid = process.unwrap_or(Pid(0));
    let path = c_path(file)?;
    let offsets: Vec<u64> = offsets.iter().map(|offset| offset.0).collect();
    let attributes = LinkCreateMulti {
        prog_fd: number(program),
        target_fd: 0,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        ref_ctr_offsets: 0,
        cookies: 0,
        cnt: u32::try_from(offsets.len()).unwrap_or(u32::MAX),
        multi_flags: 0,
        pid: pid.0.cast_unsigned(),
        padding: 0,
    };
    // SAFETY: path and offsets are readable for their stated lengths and live until the call
    // returns.
    let fd = unsafe { bpf(BPF_LINK_CREATE, &attributes) };
    owned(fd, "bpf(BPF_LINK_CREATE) for uprobe_multi", pid)
}

/// # Safety
/// Every pointer inside `attributes` must be valid for what `command` does with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> libc::c_long {
    // SAFETY: the attributes themselves are readable for the stated size; what they point to is
    // the caller's promise.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(attributes),
            size_of::<T>(),
        )
    }
}

fn owned(fd: libc::c_long, call: &'static str, pid: Pid) -> Result<OwnedFd, Error> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last(call, pid)),
    }
}

fn last(call: &'static str, pid: Pid) -> Error {
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { call },
        Some(libc::ENOSYS) => Error::Unsupported {
            feature: "bpf or perf_event_open system call",
        },
        // What a kernel answers that knows `bpf` but not this kind of link or program.
        Some(libc::EINVAL) if call.contains("uprobe_multi") => Error::Unsupported {
            feature: "uprobe_multi links",
        },
        _ => Error::Kernel { call, pid, source },
    }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn c_path(file: &Path) -> Result<CString, Error> {
    CString::new(file.as_os_str().as_bytes()).map_err(|_| Error::File {
        path: file.to_owned(),
        reason: "the path holds a zero byte".to_owned(),
    })
}
