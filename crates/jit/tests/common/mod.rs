//! A region, a private page and room for code in this process, laid out as a
//! target would have them.
#![allow(dead_code, unreachable_pub)]

use std::arch::naked_asm;

use lancet_abi::units::RuntimeAddr;
use lancet_abi::{Invariant, Layout, Region, Shared};
use lancet_jit::{Action, Env, Form, Rseq, emit};

unsafe extern "C" {
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

/// Bytes for code, unless said otherwise.
const ROOM: usize = 1 << 20;

/// Whether this suite's code asserts its invariants.
pub const CHECKED: bool = !matches!(
    env!("CARGO_CRATE_NAME").as_bytes(),
    b"exec" | b"hit_cost" | b"scripts"
);

/// One session in this process. Mapped until the process ends: a thread's rseq
/// pointer may refer to its code for as long.
pub struct World {
    pub env: Env,
    base: *mut u8,
    code: u64,
    used: u64,
    /// Whether invariants are broken on purpose.
    pub breaks: bool,
}

// SAFETY: raw addresses of mappings that stay.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl Drop for World {
    /// Whatever a suite did, its hits found nothing broken, unless it broke something on purpose.
    fn drop(&mut self) {
        if !self.breaks && !std::thread::panicking() {
            assert_eq!(self.broken(), []);
        }
    }
}

pub type Hit = extern "C" fn(u64);

pub fn rseq() -> Rseq {
    // SAFETY: constants of the C library, set before main.
    let (offset, size) = unsafe { (__rseq_offset, __rseq_size) };
    assert!(size > 0, "the C library registers no rseq area here");
    Rseq {
        area_from_fs: offset as i32,
        signature: 0x5305_3053,
    }
}

fn map(hint: usize, bytes: usize, flags: i32) -> *mut u8 {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            hint as *mut _,
            bytes,
            prot,
            libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "{bytes} bytes");
    at.cast()
}

/// A fresh address that is far from where the kernel maps by itself.
fn far_hint() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0x2000_0000);
    NEXT.fetch_add(4096, std::sync::atomic::Ordering::Relaxed)
}

impl World {
    pub fn new(layout: Layout) -> Self {
        Self::with_far_mode(layout, false)
    }

    /// With the private page far from the code, or near it.
    pub fn with_far_mode(layout: Layout, far: bool) -> Self {
        Self::with_room(layout, far, ROOM)
    }

    /// With so many bytes for code; each site takes a page at least.
    pub fn with_room(layout: Layout, far: bool, room: usize) -> Self {
        let size = layout.size() as usize;
        // Code and region in one mapping, so that they are near; a near private page takes the
        // mapping's last one, since by itself it might fall into a hole anywhere.
        let length = room + size.next_multiple_of(4096) + 4096;
        let code = map(0, length, libc::MAP_SHARED);
        let mode = if far {
            map(far_hint(), 4096, libc::MAP_PRIVATE)
        } else {
            let last = code as usize + length - 4096;
            map(last, 4096, libc::MAP_PRIVATE | libc::MAP_FIXED)
        };
        assert_eq!((mode as u64).abs_diff(code as u64) > 1 << 31, far);
        // SAFETY: inside the mapping just made.
        let base = unsafe { code.add(room) };
        // SAFETY: as above; nothing else refers to it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, size) };
        layout.write_header(bytes).unwrap();
        let env = Env {
            rseq: Some(rseq()),
            tid_from_fs: None,
            mode: RuntimeAddr(mode as u64),
            region: RuntimeAddr(base as u64),
            layout,
            script: None,
            check: CHECKED,
        };
        Self {
            env,
            base,
            code: code as u64,
            used: 0,
            breaks: false,
        }
    }

    pub fn region(&self) -> Region<Shared<'static>> {
        let layout = self.env.layout.clone();
        // SAFETY: mapped for good, written by atomics or by emitted code.
        let memory = unsafe { Shared::new(self.base, layout.size() as usize) };
        Region::with_layout(memory, layout).unwrap()
    }

    /// Lets a script's actions run, and gives them memory.
    pub fn set_script(&mut self, scripts: std::sync::Arc<lancet_jit::script::Scripts>) {
        let length = scripts.scratch_size() as usize;
        let at = map(0, length, libc::MAP_PRIVATE);
        let scratch = lancet_jit::Scratch {
            at: RuntimeAddr(at as u64),
        };
        self.env.script = Some((scripts, scratch));
    }

    /// The whole region.
    pub fn memory(&self) -> Shared<'static> {
        // SAFETY: mapped for good, written by atomics or by emitted code.
        unsafe { Shared::new(self.base, self.env.layout.size() as usize) }
    }

    /// The same, to be written.
    pub fn memory_mut(&self) -> lancet_abi::memory::SharedMut<'static> {
        // SAFETY: as above.
        unsafe { lancet_abi::memory::SharedMut::new(self.base, self.env.layout.size() as usize) }
    }

    /// Invariants that hits found broken, and how often.
    pub fn broken(&self) -> Vec<(Invariant, u64)> {
        let region = self.region();
        let each = Invariant::ALL.map(|invariant| (invariant, region.broken(invariant)));
        each.into_iter().filter(|(_, times)| *times != 0).collect()
    }

    /// Emitted code for `actions`, then `behind`; the address of its entry.
    pub fn code(&mut self, actions: &[Action], form: Form, behind: fn(u64) -> Vec<u8>) -> u64 {
        self.changed(actions, form, behind, |_| {})
    }

    /// The same, with the code changed once it is verified.
    pub fn changed(
        &mut self,
        actions: &[Action],
        form: Form,
        behind: fn(u64) -> Vec<u8>,
        change: impl FnOnce(&mut lancet_jit::Code),
    ) -> u64 {
        let at = RuntimeAddr(self.code + self.used);
        let mut code = emit(actions, form, &self.env, at, RuntimeAddr(SITE)).unwrap();
        lancet_jit::verify(&code, &self.env, at).unwrap();
        change(&mut code);
        let behind = behind(at.0 + code.bytes.len() as u64);
        // Pages of its own, so that none is ever writable and executable.
        let len = (code.bytes.len() + behind.len()).next_multiple_of(4096);
        self.used += len as u64;
        assert!(self.code + self.used <= self.env.region.0);
        let out = at.0 as *mut u8;
        // SAFETY: fresh pages of the code mapping, which nothing runs in yet.
        unsafe {
            out.copy_from_nonoverlapping(code.bytes.as_ptr(), code.bytes.len());
            out.add(code.bytes.len())
                .copy_from_nonoverlapping(behind.as_ptr(), behind.len());
            assert_eq!(
                libc::mprotect(out.cast(), len, libc::PROT_READ | libc::PROT_EXEC),
                0
            );
        }
        at.0 + u64::from(code.entry)
    }

    /// A function that hits once and returns.
    pub fn hit(&mut self, actions: &[Action], form: Form) -> Hit {
        let entry = self.code(actions, form, |_| vec![0xc3]);
        // SAFETY: emitted code followed by a ret keeps the C calling convention.
        unsafe { std::mem::transmute::<usize, Hit>(entry as usize) }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.env.layout.size());
        // SAFETY: inside the region.
        unsafe {
            self.base
                .add(offset as usize)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub fn set_mode(&self, byte: u64, value: u8) {
        // SAFETY: inside the private page.
        unsafe {
            (self.env.mode.0 as *mut u8)
                .add(byte as usize)
                .write_volatile(value)
        }
    }

    pub fn mode(&self, byte: u64) -> u8 {
        // SAFETY: inside the private page.
        unsafe {
            (self.env.mode.0 as *const u8)
                .add(byte as usize)
                .read_volatile()
        }
    }

    pub fn write_word(&self, offset: u64, word: u64) {
        self.write(offset, &word.to_ne_bytes());
    }

    pub fn switch_off(&self) {
        let (at, len) = self.env.layout.off_switch();
        self.write(at.0, &vec![0; len]);
    }
}

/// What the tests say the original instruction's address was.
pub const SITE: u64 = 0x1234_5678_9abc;

pub fn cpus() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as u32 }
}

/// Calls `hit` `n` times from a loop without other memory access.
pub fn repeat(hit: Hit, n: u64) {
    for i in 0..n {
        hit(i);
    }
}

/// All that a site can see of a thread: the registers but rsp in encoding
/// order (`gpr[4]` unused), then the flags, then the 128 bytes of red zone.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    pub gpr: [u64; 16],
    pub flags: u64,
    pub red_zone: [u64; 16],
}

/// Runs the code at `entry`, which ends in `jmp` to [`back`], in the given state and returns the state after it. The stack
/// pointer is the same after it, or this does not come back.
pub fn run_in(entry: u64, state: &State) -> State {
    let mut cell = Cell {
        state: state.clone(),
        entry,
        rsp: 0,
        inner: 0,
    };
    // SAFETY: the switch keeps what the convention says and uses only `cell`.
    unsafe {
        CELL.store(&raw mut cell as u64, std::sync::atomic::Ordering::Relaxed);
        switch(&raw mut cell);
    }
    assert_eq!(cell.inner, cell.rsp, "the stack pointer moved");
    cell.state
}

/// Machine code for this address that leaves emitted code towards [`run_in`]:
/// a jump through an aligned word, since AC may be set.
pub fn back(at: u64) -> Vec<u8> {
    let word = (at + 6).next_multiple_of(8);
    let mut code = vec![0xff, 0x25];
    code.extend(((word - at - 6) as u32).to_le_bytes());
    code.resize((word - at) as usize, 0xcc);
    code.extend((resume as *const () as u64).to_le_bytes());
    code
}

#[repr(C)]
struct Cell {
    state: State,
    entry: u64,
    rsp: u64,
    inner: u64,
}

static CELL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

#[unsafe(naked)]
unsafe extern "C" fn switch(cell: *mut Cell) {
    naked_asm!(
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rdi + 272], rsp",
        // The red zone of the site, one word lower than ours.
        "lea rdx, [rsp - 128]",
        "xor ecx, ecx",
        "2: mov rax, [rdi + rcx*8 + 136]",
        "mov [rdx + rcx*8], rax",
        "inc ecx; cmp ecx, 16; jne 2b",
        // Flags first, through a stack below the red zone.
        "lea rsp, [rsp - 128]",
        "push [rdi + 264]",
        "push [rdi + 128]",
        "mov rax, [rdi]; mov rcx, [rdi + 8]; mov rdx, [rdi + 16]; mov rbx, [rdi + 24]",
        "mov rbp, [rdi + 40]; mov rsi, [rdi + 48]; mov r8, [rdi + 64]; mov r9, [rdi + 72]",
        "mov r10, [rdi + 80]; mov r11, [rdi + 88]; mov r12, [rdi + 96]; mov r13, [rdi + 104]",
        "mov r14, [rdi + 112]; mov r15, [rdi + 120]; mov rdi, [rdi + 56]",
        "popfq",
        "lea rsp, [rsp + 136]",
        "jmp [rsp - 136]",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn resume() {
    naked_asm!(
        "lea rsp, [rsp - 136]",
        "pushfq",
        "push rdi",
        "mov rdi, [rip + {cell}]",
        "mov [rdi], rax; mov [rdi + 8], rcx; mov [rdi + 16], rdx; mov [rdi + 24], rbx",
        "mov [rdi + 40], rbp; mov [rdi + 48], rsi; mov [rdi + 64], r8; mov [rdi + 72], r9",
        "mov [rdi + 80], r10; mov [rdi + 88], r11; mov [rdi + 96], r12; mov [rdi + 104], r13",
        "mov [rdi + 112], r14; mov [rdi + 120], r15",
        "pop [rdi + 56]",
        "pop [rdi + 128]",
        "push 0x202; popfq",
        "lea rsp, [rsp + 136]",
        "mov [rdi + 280], rsp",
        "lea rdx, [rsp - 128]",
        "xor ecx, ecx",
        "2: mov rax, [rdx + rcx*8]",
        "mov [rdi + rcx*8 + 136], rax",
        "inc ecx; cmp ecx, 16; jne 2b",
        "mov rsp, [rdi + 272]",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
        cell = sym CELL,
    )
}

impl World {
    /// The word at an offset of the region.
    pub fn word(&self, offset: u64) -> u64 {
        assert!(offset + 8 <= self.env.layout.size());
        // SAFETY: inside the region, aligned.
        unsafe { self.base.add(offset as usize).cast::<u64>().read_volatile() }
    }
}

/// The address of this thread's rseq area.
pub fn rseq_area() -> u64 {
    let base: u64;
    // SAFETY: the thread control block begins with its own address.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) base, options(nostack, readonly)) };
    base.wrapping_add_signed(rseq().area_from_fs.into())
}

/// Memory of a single thread, for the map algorithm in Rust.
pub struct Model(std::cell::RefCell<Vec<u64>>);

impl Model {
    pub fn new(bytes: u64) -> Self {
        Self(vec![0; bytes as usize / 8].into())
    }

    pub fn word(&self, offset: u64) -> u64 {
        self.0.borrow()[offset as usize / 8]
    }
}

impl lancet_abi::Memory for Model {
    fn len(&self) -> u64 {
        8 * self.0.borrow().len() as u64
    }

    fn load(&self, offset: u64) -> Option<u64> {
        Some(self.word(offset))
    }
}

impl lancet_abi::memory::MapMemory for Model {
    fn publish(&self, offset: u64, meta: u64, key: u64) -> bool {
        let mut words = self.0.borrow_mut();
        let at = offset as usize / 8;
        let free = words[at] == 0 && words[at + 1] == 0;
        if free {
            words[at] = meta;
            words[at + 1] = key;
        }
        free
    }

    fn add(&self, offset: u64, addend: u64) {
        self.0.borrow_mut()[offset as usize / 8] += addend;
    }
}

/// SIGALRM to the calling thread alone, until dropped by it: a timer of the
/// process would mostly interrupt the thread that waits for the others.
pub struct Alarms(libc::timer_t);

impl Alarms {
    pub fn start(micros: i64) -> Self {
        // SAFETY: plain data of this frame, filled in as the calls expect.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::ptr::null_mut();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            assert_eq!(made, 0);
            let every = libc::timespec {
                tv_sec: 0,
                tv_nsec: micros * 1000,
            };
            let times = libc::itimerspec {
                it_interval: every,
                it_value: every,
            };
            let set = libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut());
            assert_eq!(set, 0);
            Self(timer)
        }
    }
}

impl Drop for Alarms {
    fn drop(&mut self) {
        // SAFETY: a timer that this value owns.
        unsafe { libc::timer_delete(self.0) };
    }
}
