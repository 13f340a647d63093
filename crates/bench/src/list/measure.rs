//! One measurement: so many clients at once.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_procs::{Proc, Wanted, of_pids};

use super::Lister;
use super::crowd::{Service, failed};
use crate::Error;

/// Rounds of clients go on until so much time has passed, at least one.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// What a query cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) rate: f64,
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) slowest: f64,
}

/// CPU milliseconds so far.
#[derive(Debug, Clone, Copy)]
struct Spent {
    user: f64,
    system: f64,
}

pub(super) fn measure(
    exe: &Path,
    lister: Lister,
    clients: usize,
    service: &Service,
) -> Result<Cost, Error> {
    let (before, served_before) = (of_children()?, of_process(service.pid())?);
    let began = Instant::now();
    let mut queries = 0_u32;
    let mut slowest = Duration::ZERO;
    while queries == 0 || began.elapsed() < LONG_ENOUGH {
        let round = Instant::now();
        let started: Result<Vec<_>, Error> = (0..clients)
            .map(|_| {
                let mut command = command(exe, lister, service);
                command.spawn().map_err(|e| failed(exe, e))
            })
            .collect();
        for mut client in started? {
            client.wait().map_err(|e| failed(exe, e))?;
            slowest = slowest.max(round.elapsed());
            queries += 1;
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    let (after, served_after) = (of_children()?, of_process(service.pid())?);
    let queries = f64::from(queries);
    Ok(Cost {
        rate: queries / elapsed,
        user: (after.user - before.user + served_after.user - served_before.user) / queries,
        system: (after.system - before.system + served_after.system - served_before.system)
            / queries,
        slowest: slowest.as_secs_f64() * 1000.0,
    })
}

fn command(exe: &Path, lister: Lister, service: &Service) -> Command {
    let mut command = match lister {
        Lister::Ps => Command::new("ps"),
        Lister::Alone | Lister::Served => Command::new(exe),
    };
    match lister {
        Lister::Ps => command.arg("-ef"),
        Lister::Alone => command.args(["ps", "-ef", "--alone"]),
        Lister::Served => command
            .args(["ps", "-ef"])
            .env("LANCET_INDEX", service.socket()),
    };
    // What is late is said there, and expected.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Of the children that have been waited for, as the kernel counts it.
fn of_children() -> Result<Spent, Error> {
    let own = Pid(std::process::id().cast_signed());
    spent(own, |stat| {
        (stat.children_user_time, stat.children_system_time)
    })
}

fn of_process(pid: Pid) -> Result<Spent, Error> {
    spent(pid, |stat| (stat.user_time, stat.system_time))
}

fn spent(pid: Pid, of: fn(&lancet_procs::Stat) -> (u64, u64)) -> Result<Spent, Error> {
    let root = Proc::open().map_err(|e| failed("/proc", std::io::Error::other(e)))?;
    let table = of_pids(&root, &[(pid, 0)], Wanted::default());
    let gone = || failed("/proc", std::io::ErrorKind::NotFound.into());
    let (user, system) = of(&table.rows.first().ok_or_else(gone)?.stat);
    // Clock ticks of ten milliseconds; a measurement takes a hundred at least.
    let milliseconds =
        |ticks: u64| ticks as f64 * 1000.0 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Spent {
        user: milliseconds(user),
        system: milliseconds(system),
    })
}
