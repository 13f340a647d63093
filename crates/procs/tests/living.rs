//! Against processes that live: this one, and children that it starts.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lancet_abi::units::{Pid, RuntimeAddr, Tid};
use lancet_procs::*;

fn own() -> Pid {
    Pid(std::process::id().cast_signed())
}

/// A child that is killed and reaped when the test ends.
struct Sleeper(Child);

impl Sleeper {
    /// A `cat` that has answered once, so that it is loaded to the end.
    fn new() -> Self {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat starts");
        let mut byte = [0];
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        Self(child)
    }
    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn query_and_text_give_the_same() {
    let libc = mappings(own())
        .unwrap()
        .into_iter()
        .find(|m| m.execute && m.path.windows(4).any(|w| w == b"libc"))
        .unwrap();
    for only in [true, false] {
        let query = file_mappings(own(), libc.dev, libc.inode, only).unwrap();
        assert_eq!(
            query,
            file_mappings_text(own(), libc.dev, libc.inode, only).unwrap()
        );
        assert!(query.contains(&libc));
    }
    assert_eq!(mapping_at(own(), libc.start).unwrap(), Some(libc.clone()));
    assert_eq!(
        mapping_at(own(), RuntimeAddr(libc.end.0 - 1)).unwrap(),
        Some(libc)
    );
    assert_eq!(mapping_at(own(), RuntimeAddr(0)).unwrap(), None);
}

#[test]
fn maps_agree_with_the_oracle() {
    let sleeper = Sleeper::new();
    let oracle = procfs::process::Process::new(sleeper.pid().0)
        .unwrap()
        .maps()
        .unwrap();
    let ours = mappings(sleeper.pid()).unwrap();
    let theirs: Vec<_> = oracle
        .iter()
        .map(|m| (m.address.0, m.address.1, m.offset, m.inode))
        .collect();
    assert_eq!(
        ours.iter()
            .map(|m| (m.start.0, m.end.0, m.offset.0, m.inode))
            .collect::<Vec<_>>(),
        theirs
    );
}

#[test]
fn a_zombie_is_gone_for_maps_but_still_the_same_process() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = Pid(child.id().cast_signed());
    let of = identity(pid).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while status(pid).unwrap().state != 'Z' {
        assert!(Instant::now() < deadline, "the child does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(mappings(pid).unwrap_err().is_gone());
    assert!(file_mappings(pid, 1, 1, true).unwrap_err().is_gone());
    assert!(same(&of));
    child.wait().unwrap();
    assert!(!same(&of));
    assert!(status(pid).unwrap_err().is_gone());
    assert!(identity(pid).unwrap_err().is_gone());
    assert!(tids(pid).unwrap_err().is_gone());
}

#[test]
fn who_maps_finds_each_sleeper_quickly() {
    let sleepers: Vec<_> = (0..5).map(|_| Sleeper::new()).collect();
    let id = exe(sleepers[0].pid()).unwrap();
    let file = File::open(format!("/proc/{}/exe", sleepers[0].pid())).unwrap();
    assert_eq!(file.metadata().unwrap().ino(), id.inode);
    let shown = shown_id(&file).unwrap();
    let started = Instant::now();
    let scan = who_maps(shown.dev, shown.inode).unwrap();
    println!("{} processes in {:?}", scan.scanned, started.elapsed());
    for sleeper in &sleepers {
        let mapper = scan
            .mappers
            .iter()
            .find(|m| m.identity.pid == sleeper.pid())
            .expect("every sleeper is found");
        assert_eq!(mapper.identity, identity(sleeper.pid()).unwrap());
        assert!(
            mapper
                .mappings
                .iter()
                .all(|m| m.execute && m.inode == shown.inode)
        );
    }
}

#[test]
fn relatives_threads_and_status() {
    let sleeper = Sleeper::new();
    assert!(children(own()).unwrap().contains(&sleeper.pid()));
    assert_eq!(ancestors(sleeper.pid()).unwrap().first(), Some(&own()));
    assert_eq!(tids(sleeper.pid()).unwrap(), [Tid(sleeper.pid().0)]);
    assert!(pids().unwrap().contains(&sleeper.pid()));
    assert_eq!(
        namespaces(sleeper.pid()).unwrap(),
        namespaces(own()).unwrap()
    );
    let seen = thread_status(sleeper.pid(), Tid(sleeper.pid().0)).unwrap();
    assert_eq!(
        (seen.tgid, seen.ppid, seen.threads),
        (sleeper.pid().0, own().0, 1)
    );
    assert_eq!(seen.nspid.first(), Some(&sleeper.pid().0));
}
