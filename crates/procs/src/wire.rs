//! A table as bytes, for a snapshot. Numbers are 64 bits of this machine's order; what is read may be anything.

use lancet_abi::units::{Pid, Tid};

use crate::{Name, Owner, Reading, Row, Stat, Status, Table};

/// Writes a table. Of `status` only what lists show.
#[must_use]
pub(crate) fn encode(table: &Table) -> Vec<u8> {
    let mut out = Vec::with_capacity(512 * (table.rows.len() + 1));
    for number in [
        table.rows.len(),
        table.late,
        table.denied,
        usize::from(table.hidden),
    ] {
        put(&mut out, number as u64);
    }
    for row in &table.rows {
        put(&mut out, row.pid.0 as u64);
        put(&mut out, row.folder);
        put(
            &mut out,
            u64::from(row.owner.uid) << 32 | u64::from(row.owner.gid),
        );
        put_bytes(&mut out, row.stat.name.as_bytes());
        stat_numbers(&row.stat)
            .iter()
            .for_each(|&n| put(&mut out, n));
        match &row.arguments {
            Reading::Nothing => put(&mut out, 0),
            Reading::Late => put(&mut out, 1),
            Reading::Read(bytes) => {
                put(&mut out, 2);
                put_bytes(&mut out, bytes);
            }
        }
        put_bytes(&mut out, &row.cgroup);
        match &row.status {
            None => put(&mut out, 0),
            Some(status) => {
                put(&mut out, 1);
                status_numbers(status)
                    .iter()
                    .for_each(|&n| put(&mut out, n));
                put(&mut out, status.groups.len() as u64);
                status.groups.iter().for_each(|&g| put(&mut out, g.into()));
            }
        }
    }
    out
}

/// Reads a table; `None` for bytes that are none.
#[must_use]
pub(crate) fn decode(bytes: &[u8]) -> Option<Table> {
    let mut from = From(bytes);
    let count = usize::try_from(from.number()?).ok()?;
    // A row has at least this many bytes: no count makes us take memory that its bytes do not.
    if count > bytes.len() / 64 {
        return None;
    }
    let mut table = Table {
        rows: Vec::with_capacity(count),
        late: from.number()? as usize,
        denied: from.number()? as usize,
        hidden: from.number()? != 0,
    };
    for _ in 0..count {
        table.rows.push(from.row()?);
    }
    Some(table)
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_ne_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

struct From<'a>(&'a [u8]);

impl<'a> From<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*number))
    }

    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Some(numbers)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn row(&mut self) -> Option<Row> {
        let (pid, folder, ids) = (self.number()? as i32, self.number()?, self.number()?);
        let name = Name::new(self.bytes()?);
        let mut row = Row::new(Pid(pid), folder, stat_of(name, self.numbers()?));
        row.tid = Tid(pid);
        row.owner = Owner {
            uid: (ids >> 32) as u32,
            gid: ids as u32,
            folder,
        };
        row.arguments = match self.number()? {
            0 => Reading::Nothing,
            1 => Reading::Late,
            _ => Reading::Read(self.bytes()?.into()),
        };
        row.cgroup = self.bytes()?.into();
        if self.number()? != 0 {
            let mut status = status_of(self.numbers()?);
            let groups = usize::try_from(self.number()?).ok()?;
            if groups > self.0.len() / 8 {
                return None;
            }
            for _ in 0..groups {
                status.groups.push(self.number()? as u32);
            }
            row.status = Some(Box::new(status));
        }
        Some(row)
    }
}

/// What a client may see of a line is what `/proc` would show anybody: no addresses.
fn stat_numbers(s: &Stat) -> [u64; 26] {
    [
        s.state.into(),
        s.parent.0 as u64,
        s.group as u64,
        s.session as u64,
        s.tty as u64,
        s.tty_group as u64,
        s.flags,
        s.minor_faults,
        s.children_minor_faults,
        s.major_faults,
        s.children_major_faults,
        s.user_time,
        s.system_time,
        s.children_user_time,
        s.children_system_time,
        s.priority as u64,
        s.nice as u64,
        s.threads as u64,
        s.start_time,
        s.virtual_size,
        s.resident,
        s.resident_limit,
        s.processor as u64,
        s.realtime_priority.into(),
        s.policy.into(),
        0,
    ]
}

fn stat_of(name: Name, n: [u64; 26]) -> Stat {
    Stat {
        name,
        state: n[0] as u8,
        parent: Pid(n[1] as i32),
        group: n[2] as i32,
        session: n[3] as i32,
        tty: n[4] as i32,
        tty_group: n[5] as i32,
        flags: n[6],
        minor_faults: n[7],
        children_minor_faults: n[8],
        major_faults: n[9],
        children_major_faults: n[10],
        user_time: n[11],
        system_time: n[12],
        children_user_time: n[13],
        children_system_time: n[14],
        priority: n[15] as i32,
        nice: n[16] as i32,
        threads: n[17] as i32,
        start_time: n[18],
        virtual_size: n[19],
        resident: n[20],
        resident_limit: n[21],
        processor: n[22] as i32,
        realtime_priority: n[23] as u32,
        policy: n[24] as u32,
        ..Stat::default()
    }
}

fn status_numbers(s: &Status) -> [u64; 18] {
    let two = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    [
        two(s.uids[0], s.uids[1]),
        two(s.uids[2], s.uids[3]),
        two(s.gids[0], s.gids[1]),
        two(s.gids[2], s.gids[3]),
        s.sig_blocked,
        s.sig_caught,
        s.sig_ignored,
        s.sig_pending,
        s.sig_shared_pending,
        s.capabilities,
        s.resident_kib,
        s.locked_kib,
        s.data_kib,
        s.stack_kib,
        s.threads.into(),
        s.tgid as u64,
        s.ppid as u64,
        s.tracer_pid as u64,
    ]
}

fn status_of(n: [u64; 18]) -> Status {
    let four = |a: u64, b: u64| [(a >> 32) as u32, a as u32, (b >> 32) as u32, b as u32];
    Status {
        uids: four(n[0], n[1]),
        gids: four(n[2], n[3]),
        sig_blocked: n[4],
        sig_caught: n[5],
        sig_ignored: n[6],
        sig_pending: n[7],
        sig_shared_pending: n[8],
        capabilities: n[9],
        resident_kib: n[10],
        locked_kib: n[11],
        data_kib: n[12],
        stack_kib: n[13],
        threads: n[14] as u32,
        tgid: n[15] as i32,
        ppid: n[16] as i32,
        tracer_pid: n[17] as i32,
        ..Status::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Proc, Wanted, table};

    use super::*;

    #[test]
    fn a_table_comes_back_as_it_was() {
        let root = Proc::open().unwrap();
        let wanted = Wanted {
            owner: true,
            status: true,
            arguments: true,
            cgroup: true,
            ..Wanted::default()
        };
        let table = table(&root, wanted).unwrap();
        let bytes = encode(&table);
        let again = decode(&bytes).unwrap();
        assert_eq!(again.rows.len(), table.rows.len());
        for (one, other) in table.rows.iter().zip(&again.rows) {
            assert_eq!((one.pid, &one.arguments), (other.pid, &other.arguments));
            let plain = Stat {
                start_code: 0,
                end_code: 0,
                start_stack: 0,
                ..one.stat
            };
            assert_eq!(plain, other.stat);
            assert_eq!(one.cgroup, other.cgroup);
            let (one, other) = (one.status.as_ref().unwrap(), other.status.as_ref().unwrap());
            assert_eq!((one.uids, &one.groups), (other.uids, &other.groups));
            assert_eq!(
                (one.resident_kib, one.gids),
                (other.resident_kib, other.gids)
            );
        }
        // Cut anywhere, it is refused and nothing panics.
        for end in (0..bytes.len()).step_by(97) {
            assert!(decode(&bytes[..end]).is_none());
        }
    }
}
