//! Many processes that map one file: forked by the trigger, they wait for orders to call.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use lancet_abi::units::Pid;

use super::sys;
use super::targets;

/// The members of a crowd. Dropping it ends them.
pub(super) struct Crowd {
    members: Vec<Pid>,
    /// Each order is taken by one member, whichever comes first.
    orders: Option<File>,
    answers: File,
}

/// Which function of [`targets::NAMED`], and how many times.
const ORDER: usize = 16;

impl Crowd {
    /// Forks `count` members. The trigger must have one thread.
    pub(super) fn gather(count: usize) -> io::Result<Self> {
        let (orders, order) = io::pipe()?;
        let (answer, answers) = io::pipe()?;
        let mut crowd = Self {
            members: Vec::with_capacity(count),
            orders: Some(File::from(OwnedFd::from(order))),
            answers: File::from(OwnedFd::from(answer)),
        };
        let mut orders = File::from(OwnedFd::from(orders));
        let mut answers = File::from(OwnedFd::from(answers));
        for _ in 0..count {
            match sys::fork()? {
                Some(pid) => crowd.members.push(pid),
                None => {
                    sys::end_with_parent();
                    // Else the members would keep each other's orders open.
                    crowd.orders = None;
                    serve(&mut orders, &mut answers);
                    sys::end();
                }
            }
        }
        Ok(crowd)
    }

    pub(super) fn members(&self) -> &[Pid] {
        &self.members
    }

    /// As many orders as there are members, and waits until all are obeyed.
    pub(super) fn each(&mut self, function: usize, calls: u64) -> io::Result<()> {
        let Some(orders) = &mut self.orders else {
            return Ok(());
        };
        let mut order = [0; ORDER];
        order[..8].copy_from_slice(&(function as u64).to_ne_bytes());
        order[8..].copy_from_slice(&calls.to_ne_bytes());
        for _ in &self.members {
            orders.write_all(&order)?;
        }
        self.answers.read_exact(&mut vec![0; self.members.len()])
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.orders = None;
        for &member in &self.members {
            sys::reap(member);
        }
    }
}

fn serve(orders: &mut File, answers: &mut File) {
    let mut order = [0; ORDER];
    while orders.read_exact(&mut order).is_ok() {
        let (function, calls) = order.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let Some((_, target)) = targets::NAMED.get(word(function) as usize) else {
            return;
        };
        for _ in 0..word(calls) {
            target();
        }
        if answers.write_all(&[1]).is_err() {
            return;
        }
    }
}
