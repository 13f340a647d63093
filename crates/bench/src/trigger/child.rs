//! The child's side: obeys orders, calls, counts.

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use rustix::thread::ClockId;

use super::crowd::Crowd;
use super::{ThreadSample, forks, targets};

/// Calls between two looks at the stop flag: enough that the look costs nothing, few enough that
/// the slowest probe (tens of microseconds) still lets go within milliseconds.
const BLOCK: u64 = 256;

/// The trigger's whole life: reads orders from standard input until it is closed.
///
/// `args` are those behind [`TRIGGER_ARGUMENT`](super::TRIGGER_ARGUMENT): files that are removed
/// in the end, however the parent ended; a folder with all that is in it.
pub fn run_trigger(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = serve(&mut io::stdin().lock(), &mut io::stdout().lock());
    for file in args {
        remove(Path::new(&file));
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trigger: the parent no longer listens: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Removes a file, or a folder with all that is in it. Whoever is ending at this moment may still
/// put something there, so that it is tried for a while.
fn remove(path: &Path) {
    let end = Instant::now() + Duration::from_secs(2);
    let is_gone = || {
        let removed = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
        // The parent may have removed it.
        matches!(removed, Err(error) if error.kind() == io::ErrorKind::NotFound)
    };
    while !is_gone() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
}

fn serve(orders: &mut dyn BufRead, answers: &mut dyn Write) -> io::Result<()> {
    writeln!(answers, "ready {}", std::process::id())?;
    answers.flush()?;
    let mut crowd = None;
    for order in orders.lines() {
        let order = order?;
        if let Some(result) = obey_for_many(&order, &mut crowd) {
            match result {
                Ok(members) => {
                    for member in members {
                        writeln!(answers, "member {member}")?;
                    }
                    writeln!(answers, "done")?;
                }
                Err(reason) => writeln!(answers, "error {reason}")?,
            }
            answers.flush()?;
            continue;
        }
        if let Some(function) = order.strip_prefix("forks ") {
            answer_forks(function, answers)?;
            continue;
        }
        // It ended the forks, which are answered for by now.
        if order == "stop" {
            continue;
        }
        match obey(&order) {
            Ok(samples) => {
                for ThreadSample {
                    calls,
                    cpu_ns,
                    wall_ns,
                } in samples
                {
                    writeln!(answers, "thread {calls} {cpu_ns} {wall_ns}")?;
                }
                writeln!(answers, "done")?;
            }
            Err(reason) => writeln!(answers, "error {reason}")?,
        }
        answers.flush()?;
    }
    Ok(())
}

/// Forks until the next order, which is not read here.
fn answer_forks(function: &str, answers: &mut dyn Write) -> io::Result<()> {
    let index = targets::NAMED
        .iter()
        .position(|(name, _)| *name == function);
    match index.map(forks::until_ordered) {
        None => writeln!(answers, "error unknown")?,
        Some(Err(error)) => writeln!(answers, "error fork: {error}")?,
        Some(Ok(sample)) => {
            let [median, p999, longest] =
                [sample.median, sample.p999, sample.longest].map(|time| time.as_nanos());
            writeln!(answers, "forks {} {median} {p999} {longest}", sample.forks)?;
            writeln!(answers, "done")?;
        }
    }
    answers.flush()
}

/// Orders about a crowd or about threads that stay; `None` when it is another one.
fn obey_for_many(order: &str, crowd: &mut Option<Crowd>) -> Option<Result<Vec<Pid>, &'static str>> {
    let words: Vec<&str> = order.split_whitespace().collect();
    let number = |word: &str| word.parse::<usize>().map_err(|_| "number");
    let all = match words[..] {
        ["crowd", count] => {
            *crowd = None;
            number(count).and_then(|count| {
                let new = Crowd::gather(count).map_err(|_| "fork")?;
                Ok(crowd.insert(new).members().to_vec())
            })
        }
        ["each", function, calls] => number(calls).and_then(|calls| {
            let index = targets::NAMED
                .iter()
                .position(|(name, _)| *name == function)
                .ok_or("unknown")?;
            let crowd = crowd.as_mut().ok_or("crowd")?;
            crowd.each(index, calls as u64).map_err(|_| "pipe")?;
            Ok(Vec::new())
        }),
        ["hold", "sleeping", count] => number(count).map(|count| hold(count, thread::park)),
        ["hold", "running", count] => number(count).map(|count| hold(count, std::hint::spin_loop)),
        ["hold", "mapping", bytes] => number(bytes).map(|bytes| {
            thread::spawn(move || forks::map_and_unmap(bytes));
            Vec::new()
        }),
        _ => return None,
    };
    Some(all)
}

/// Starts threads that do one thing for ever, and waits until all have begun.
fn hold(threads: usize, act: fn()) -> Vec<Pid> {
    let begun = std::sync::Arc::new(Barrier::new(threads + 1));
    for _ in 0..threads {
        let begun = std::sync::Arc::clone(&begun);
        thread::spawn(move || {
            begun.wait();
            loop {
                act();
            }
        });
    }
    begun.wait();
    Vec::new()
}

fn obey(order: &str) -> Result<Vec<ThreadSample>, &'static str> {
    let words: Vec<&str> = order.split_whitespace().collect();
    let [verb, function, threads, amount] = words[..] else {
        return Err("order");
    };
    let body = Body::named(function).ok_or("unknown")?;
    let threads: usize = threads.parse().map_err(|_| "threads")?;
    let amount: u64 = amount.parse().map_err(|_| "amount")?;
    let samples = match verb {
        "run" => in_threads(body, threads, Limit::Time(Duration::from_millis(amount))),
        "calls" => in_threads(body, threads, Limit::Calls(amount)),
        _ => return Err("verb"),
    };
    samples.ok_or("wrong-result")
}

/// What is called.
#[derive(Clone, Copy)]
enum Body {
    /// One function.
    One(extern "C" fn()),
    /// All of the thousand, in turn.
    Many,
}

impl Body {
    fn named(function: &str) -> Option<Self> {
        if function == targets::MANY {
            return Some(Self::Many);
        }
        let (_, target) = targets::NAMED.iter().find(|(name, _)| *name == function)?;
        Some(Self::One(*target))
    }

    /// At most `limit` calls, or one whole turn; returns how many, or nothing when a result was
    /// wrong.
    fn block(self, limit: u64) -> Option<u64> {
        match self {
            Self::One(function) => {
                let calls = limit.min(BLOCK);
                for _ in 0..calls {
                    function();
                }
                Some(calls)
            }
            Self::Many => {
                let mut sum = 0;
                for function in targets::many() {
                    sum += u64::from(function());
                }
                (sum == targets::MANY_SUM).then_some(targets::MANY_COUNT as u64)
            }
        }
    }
}

/// When a thread stops.
#[derive(Clone, Copy)]
enum Limit {
    Time(Duration),
    Calls(u64),
}

/// Runs `body` in `threads` new threads that start together; nothing when a result was wrong.
fn in_threads(body: Body, threads: usize, limit: Limit) -> Option<Vec<ThreadSample>> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(threads + 1);
    let opened = OnceLock::new();
    let calls = match limit {
        Limit::Time(_) => u64::MAX,
        Limit::Calls(calls) => calls,
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    loop_until(body, calls, &stop, *opened.get_or_init(Instant::now))
                })
            })
            .collect();
        start.wait();
        if let Limit::Time(duration) = limit {
            thread::sleep(duration);
            stop.store(true, Ordering::Relaxed);
        }
        // A thread that panicked has no result, which counts as a wrong one.
        handles
            .into_iter()
            .map(|handle| handle.join().ok().flatten())
            .collect()
    })
}

/// `wall` is when the first thread began: one that had to wait for a CPU shows no higher rate.
fn loop_until(body: Body, most: u64, stop: &AtomicBool, wall: Instant) -> Option<ThreadSample> {
    let cpu = thread_cpu_ns();
    let mut calls = 0;
    while calls < most && !stop.load(Ordering::Relaxed) {
        calls += body.block(most - calls)?;
    }
    let cpu_ns = thread_cpu_ns() - cpu;
    let wall_ns = u64::try_from(wall.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Some(ThreadSample {
        calls,
        cpu_ns,
        wall_ns,
    })
}

/// CPU time of the calling thread. It leaves out the time in which others had the CPU, so that a
/// busy machine or more threads than CPUs do not change what a call is seen to cost.
fn thread_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(orders: &str) -> Vec<String> {
        let mut out = Vec::new();
        serve(&mut orders.as_bytes(), &mut out).unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn exact_calls_are_exact_in_each_thread() {
        let lines = answers("calls uprobe_target_push 2 1000\n");
        assert_eq!(lines[0], format!("ready {}", std::process::id()));
        assert!(lines[1].starts_with("thread 1000 "));
        assert!(lines[2].starts_with("thread 1000 "));
        assert_eq!(lines[3], "done");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn many_come_in_whole_turns() {
        assert!(answers("calls uprobe_many 1 1500\n")[1].starts_with("thread 2000 "));
    }

    #[test]
    fn orders_that_can_not_be_obeyed_are_answered_and_survived() {
        let lines = answers(
            "calls nothing 1 1\nrun\nfly uprobe_target_nop 1 1\ncalls uprobe_target_ret 1 1\n",
        );
        assert_eq!(lines[1..4], ["error unknown", "error order", "error verb"]);
        assert_eq!(lines.last().map(String::as_str), Some("done"));
    }

    #[test]
    fn a_timed_run_calls_and_uses_cpu_time() {
        let samples = obey("run uprobe_target_nop5 2 5").unwrap();
        assert_eq!(samples.len(), 2);
        for sample in samples {
            assert!(sample.calls >= BLOCK && sample.calls % BLOCK == 0);
            assert!(sample.cpu_ns > 0 && sample.wall_ns > 0);
        }
    }
}
