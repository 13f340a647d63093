//! `status`: what lancet has in processes.

use anyhow::Result;

use crate::scope;

pub(crate) fn status() -> Result<u8> {
    let looked = lancet_engine::status()?;
    for &pid in &looked.locked {
        scope::say_locked(pid, "run `lancet status` again later");
    }
    let all = looked.leftovers;
    if all.is_empty() {
        println!("no process has anything of lancet in it (of those that this user may look into)");
        return Ok(0);
    }
    println!(
        "{:>8}  {:<16} {:>18} {:>9} {:>7} {:>7}  STATE",
        "PID", "NAME", "AT", "KB", "LIVE", "INERT"
    );
    for one in &all {
        let state = match (one.in_session, one.live) {
            (false, _) if one.is_stub => {
                "left by a session that was killed; `lancet clean` wipes it"
            }
            (true, 0) => "session is starting or ending",
            (true, _) => "probed",
            (false, 0) => "inert; `lancet clean --purge` unmaps it",
            (false, _) => "left by a session that was killed; `lancet clean` takes it out",
        };
        println!(
            "{:>8}  {:<16} {:>18} {:>9} {:>7} {:>7}  {state}",
            one.pid,
            one.name,
            one.start,
            one.bytes / 1024,
            one.live,
            one.inert
        );
    }
    Ok(0)
}
