//! What the guardian must know when the tracer dies: shared memory, made before the tracer is.
//!
//! The tracer writes an entry before it touches a process, and into it each fact before the act
//! that needs it for undoing. Most undo information lies in the process itself (the registry of
//! its [arena](crate::arena)); here is only how to get there.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use lancet_abi::units::{Pid, RuntimeAddr, Tid};

use crate::sys::Registers;

/// Arenas that one process may have: one for each cluster of text within reach of a jump.
pub const MOST_ARENAS: usize = 8;
/// Processes that one session may hold.
pub const MOST_PROCESSES: usize = 16_384;
/// Regions (trust domains) that one session may hold.
pub const MOST_REGIONS: usize = 256;

/// Programs that are known apart.
pub const MOST_PROGRAMS: usize = 1024;

/// In place of a pid or a descriptor: the entry is taken, and still empty.
const CLAIMED: i32 = -1;
const REGISTER_WORDS: usize = size_of::<Registers>() / 8;
const STUB_WORDS: usize = 32;

/// Where one arena lies.
#[repr(C)]
#[derive(Default)]
pub struct ArenaRecord {
    /// writer: tracer, before the mapping is made / reader: guardian / Release
    start: AtomicU64,
    length: AtomicU64,
}

/// A thread that was sent through a stub, and how it was before.
#[repr(C)]
pub struct StubRecord {
    /// 0: none. writer: tracer, Release, after all below / reader: guardian, Acquire
    tid: AtomicI32,
    covered: AtomicU32,
    mask: AtomicU64,
    at: AtomicU64,
    registers: [AtomicU64; REGISTER_WORDS],
    bytes: [AtomicU64; STUB_WORDS],
}

impl Default for StubRecord {
    fn default() -> Self {
        Self {
            tid: AtomicI32::new(0),
            covered: AtomicU32::new(0),
            mask: AtomicU64::new(0),
            at: AtomicU64::new(0),
            registers: [const { AtomicU64::new(0) }; REGISTER_WORDS],
            bytes: [const { AtomicU64::new(0) }; STUB_WORDS],
        }
    }
}

/// What a [`StubRecord`] holds.
pub struct BorrowedThread {
    /// The thread.
    pub tid: Tid,
    /// Its registers before.
    pub registers: Registers,
    /// Its signal mask before.
    pub mask: u64,
    /// Bytes that the first stub covers, and where.
    pub covered: Option<(RuntimeAddr, Vec<u8>)>,
}

impl StubRecord {
    pub(crate) fn begin(&self, tid: Tid, registers: &Registers, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
        // SAFETY: the registers are a struct of 64-bit integers without padding.
        let words: [u64; REGISTER_WORDS] = unsafe { std::mem::transmute_copy(registers) };
        for (slot, word) in self.registers.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.tid.store(tid.0, Ordering::Release);
    }

    pub(crate) fn covers(&self, at: RuntimeAddr, bytes: &[u8]) {
        self.at.store(at.0, Ordering::Relaxed);
        for (slot, chunk) in self.bytes.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            slot.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        let length = bytes.len().min(STUB_WORDS * 8) as u32;
        self.covered.store(length, Ordering::Release);
    }

    pub(crate) fn uncovered(&self) {
        self.covered.store(0, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.tid.store(0, Ordering::Release);
    }

    /// Nothing is away any more.
    pub fn clear(&self) {
        self.uncovered();
        self.end();
    }

    /// What is recorded, if a thread is away.
    #[must_use]
    pub fn read(&self) -> Option<BorrowedThread> {
        let tid = self.tid.load(Ordering::Acquire);
        let length = (self.covered.load(Ordering::Acquire) as usize).min(STUB_WORDS * 8);
        if tid == 0 && length == 0 {
            return None;
        }
        let words: [u64; REGISTER_WORDS] =
            std::array::from_fn(|i| self.registers[i].load(Ordering::Relaxed));
        // SAFETY: a struct of 64-bit integers; every bit pattern is valid.
        let registers: Registers = unsafe { std::mem::transmute_copy(&words) };
        let mut bytes: Vec<u8> = self
            .bytes
            .iter()
            .flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length);
        Some(BorrowedThread {
            tid: Tid(tid),
            registers,
            mask: self.mask.load(Ordering::Relaxed),
            covered: (length > 0).then(|| (RuntimeAddr(self.at.load(Ordering::Relaxed)), bytes)),
        })
    }
}

/// What a process runs. Its forked children run the same until they exec, which is found out
/// without a look into anybody's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Device of the executable.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// One process that the tracer holds.
#[repr(C)]
#[derive(Default)]
pub struct ProcessRecord {
    /// 0: unused or finished. writer: tracer, Release, last / reader: guardian, Acquire
    pid: AtomicI32,
    pidfd: AtomicI32,
    memory: AtomicI32,
    /// Whether it was forked with probes, which are none of this entry's.
    inherited: AtomicU32,
    arenas_used: AtomicU32,
    arenas: [ArenaRecord; MOST_ARENAS],
    /// The thread that makes the mappings.
    pub stub: StubRecord,
}

impl ProcessRecord {
    /// Where its arenas lie: start and length in bytes.
    #[must_use]
    pub fn arenas(&self) -> Vec<(RuntimeAddr, u64)> {
        let used = (self.arenas_used.load(Ordering::Acquire) as usize).min(MOST_ARENAS);
        self.arenas[..used]
            .iter()
            .map(|a| {
                (
                    RuntimeAddr(a.start.load(Ordering::Relaxed)),
                    a.length.load(Ordering::Relaxed),
                )
            })
            .collect()
    }

    /// Notes an arena before it is mapped. `false`: there is no room for one more.
    pub fn add_arena(&self, start: RuntimeAddr, length: u64) -> bool {
        let used = self.arenas_used.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.arenas.get(used) else {
            return false;
        };
        slot.start.store(start.0, Ordering::Relaxed);
        slot.length.store(length, Ordering::Relaxed);
        self.arenas_used.store(used as u32 + 1, Ordering::Release);
        true
    }

    /// Takes the arena that was noted last back: it could not be mapped.
    pub fn drop_last_arena(&self) {
        let used = self.arenas_used.load(Ordering::Relaxed);
        self.arenas_used
            .store(used.saturating_sub(1), Ordering::Release);
    }

    /// The process, with the descriptors (shared with the guardian) of its pidfd and memory.
    #[must_use]
    pub fn process(&self) -> Option<(Pid, i32, i32)> {
        let pid = self.pid.load(Ordering::Acquire);
        (pid > 0).then(|| {
            (
                Pid(pid),
                self.pidfd.load(Ordering::Relaxed),
                self.memory.load(Ordering::Relaxed),
            )
        })
    }

    /// It was forked with probes.
    pub fn inherit(&self) {
        self.inherited.store(1, Ordering::Release);
    }

    /// Whether it has probes that this entry tells nothing of.
    #[must_use]
    pub fn has_inherited(&self) -> bool {
        self.inherited.load(Ordering::Acquire) != 0
    }

    /// The process is clean, or gone.
    pub fn finish(&self) {
        self.pid.store(0, Ordering::Release);
    }
}

/// One region's file. Its name is noted before the file is made.
#[repr(C)]
#[derive(Default)]
pub struct RegionRecord {
    /// 0: unused. Descriptor number plus one, or [`CLAIMED`] while there is no file yet.
    file: AtomicI32,
    /// Descriptor of the folder, plus one; 0 when the file has no name.
    folder: AtomicI32,
    name: AtomicU64,
}

impl RegionRecord {
    /// A file with the name that is made from this number may be in this folder from now on.
    pub fn may_be_in(&self, folder: i32, name: u64) {
        self.name.store(name, Ordering::Relaxed);
        self.folder.store(folder + 1, Ordering::Release);
    }

    /// The file is there and open.
    pub fn is_open(&self, file: i32) {
        self.file.store(file + 1, Ordering::Release);
    }

    /// The region is given up: its descriptors will be other files', and the record another's.
    pub fn forget(&self) {
        self.folder.store(0, Ordering::Release);
        self.file.store(0, Ordering::Release);
    }

    /// Takes an unused record.
    fn claim(&self) -> bool {
        self.file
            .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Descriptor of the region's file.
    #[must_use]
    pub fn file(&self) -> Option<i32> {
        let file = self.file.load(Ordering::Acquire);
        (file > 0).then(|| file - 1)
    }

    /// Folder and name to unlink.
    #[must_use]
    pub fn named(&self) -> Option<(i32, u64)> {
        let folder = self.folder.load(Ordering::Acquire);
        let name = self.name.load(Ordering::Relaxed);
        (folder != 0).then(|| (folder - 1, name))
    }
}

#[repr(C)]
struct Shared {
    processes_next: AtomicU32,
    processes_used: AtomicU32,
    regions_used: AtomicU32,
    programs_used: AtomicU32,
    /// Whether processes have been forgotten whose children may have probes.
    buried: AtomicU32,
    programs: [[AtomicU64; 2]; MOST_PROGRAMS],
    session: [AtomicU64; 2],
    regions: [RegionRecord; MOST_REGIONS],
    processes: [ProcessRecord; MOST_PROCESSES],
}

/// The journal of one session.
pub struct Journal {
    shared: *const Shared,
}

// SAFETY: all shared state is atomic.
unsafe impl Send for Journal {}
// SAFETY: all shared state is atomic.
unsafe impl Sync for Journal {}

impl Journal {
    /// Makes an empty journal, shared with processes that are cloned from this one afterwards.
    /// Pages that are never written take no memory.
    pub fn create() -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            shared: memory.cast(),
        })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is as large as the struct, zeroed (valid for atomics) and lives as
        // long as `self`.
        unsafe { &*self.shared }
    }

    /// Notes a process that is about to be touched; returns the entry's number. `None`: the journal
    /// is full.
    pub fn process(&self, pid: Pid, pidfd: i32, memory: i32, program: Program) -> Option<usize> {
        let shared = self.shared();
        // Entries of finished processes are used again only when all others have been.
        let free = (0..MOST_PROCESSES).find_map(|_| {
            let next = shared.processes_next.fetch_add(1, Ordering::AcqRel) as usize;
            let index = next % MOST_PROCESSES;
            let claim = shared.processes[index].pid.compare_exchange(
                0,
                CLAIMED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            claim.ok().map(|_| index)
        });
        let index = free?;
        shared
            .processes_used
            .fetch_max(index as u32 + 1, Ordering::AcqRel);
        let record = &shared.processes[index];
        record.pidfd.store(pidfd, Ordering::Relaxed);
        record.memory.store(memory, Ordering::Relaxed);
        record.inherited.store(0, Ordering::Relaxed);
        self.note(program);
        record.arenas_used.store(0, Ordering::Relaxed);
        record.pid.store(pid.0, Ordering::Release);
        Some(index)
    }

    /// The entry with this number.
    #[must_use]
    pub fn entry(&self, index: usize) -> &ProcessRecord {
        &self.shared().processes[index]
    }

    /// The number of a record for a region, which tells of nothing yet. Those that are given up
    /// are used again.
    pub fn region(&self) -> Option<usize> {
        let shared = self.shared();
        let index = (0..MOST_REGIONS).find(|&i| shared.regions[i].claim())?;
        shared
            .regions_used
            .fetch_max(index as u32 + 1, Ordering::AcqRel);
        Some(index)
    }

    /// The region's record with this number.
    #[must_use]
    pub fn region_entry(&self, index: usize) -> &RegionRecord {
        &self.shared().regions[index]
    }

    /// Whether there is a process with something of ours in it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.processes()
            .any(|record| record.process().is_some() && !record.arenas().is_empty())
    }

    fn used(&self) -> usize {
        (self.shared().processes_used.load(Ordering::Acquire) as usize).min(MOST_PROCESSES)
    }

    /// All processes that were ever noted; finished ones answer `None` to
    /// [`process`](ProcessRecord::process).
    pub fn processes(&self) -> impl Iterator<Item = &ProcessRecord> {
        self.shared().processes[..self.used()].iter()
    }

    /// Keeps a program for good: a process that has finished may have left children.
    fn note(&self, program: Program) {
        if self.programs().is_none_or(|all| all.contains(&program)) {
            return;
        }
        let shared = self.shared();
        // Two that note the same one at once take a place each.
        let index = shared.programs_used.fetch_add(1, Ordering::AcqRel) as usize;
        if let Some(place) = shared.programs.get(index) {
            place[0].store(program.device, Ordering::Relaxed);
            place[1].store(program.inode, Ordering::Release);
        }
    }

    /// What all processes that were ever noted run. `None`: more than are known apart.
    #[must_use]
    pub fn programs(&self) -> Option<Vec<Program>> {
        let shared = self.shared();
        let used = shared.programs_used.load(Ordering::Acquire) as usize;
        let places = shared.programs.get(..used)?.iter();
        let programs = places.map(|place| Program {
            inode: place[1].load(Ordering::Acquire),
            device: place[0].load(Ordering::Relaxed),
        });
        Some(programs.collect())
    }

    /// A process is forgotten, with what tells where its children have their probes.
    pub fn bury(&self) {
        self.shared().buried.store(1, Ordering::Release);
    }

    /// Whether that has happened.
    #[must_use]
    pub fn has_buried(&self) -> bool {
        self.shared().buried.load(Ordering::Acquire) != 0
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = &RegionRecord> {
        let used = (self.shared().regions_used.load(Ordering::Acquire) as usize).min(MOST_REGIONS);
        self.shared().regions[..used].iter()
    }

    /// The session's random number, which marks its arenas.
    #[must_use]
    pub fn session(&self) -> [u64; 2] {
        let session = &self.shared().session;
        [0, 1].map(|i| session[i].load(Ordering::Relaxed))
    }

    /// Sets the session's number, before the tracer is cloned.
    pub fn set_session(&self, session: [u64; 2]) {
        for (slot, word) in self.shared().session.iter().zip(session) {
            slot.store(word, Ordering::Relaxed);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this size; no reference outlives `self`.
        unsafe { libc::munmap(self.shared.cast_mut().cast(), size_of::<Shared>()) };
    }
}
