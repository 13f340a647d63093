//! A table as bytes, for a snapshot. Numbers take seven bits a byte, lowest first, as most are small; what is read may be
//! anything.

use lancet_abi::units::{Pid, Tid};

use crate::{Name, Owner, Reading, Row, Stat, Status, Table};

/// A row has at least one byte for each of its numbers.
const LEAST_ROW: usize = 32;

/// Writes a table. Of `status` only what lists show.
#[must_use]
pub(crate) fn encode(table: &Table) -> Vec<u8> {
    let mut out = Vec::with_capacity(192 * (table.rows.len() + 1));
    for number in [
        table.rows.len(),
        table.late,
        table.denied,
        usize::from(table.hidden),
    ] {
        put(&mut out, number as u64);
    }
    for row in &table.rows {
        put(&mut out, signed(row.pid.0));
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
    if count > bytes.len() / LEAST_ROW {
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

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Negative numbers near zero stay short.
fn signed(number: i32) -> u64 {
    u64::from((number.wrapping_shl(1) ^ (number >> 31)).cast_unsigned())
}

fn unsigned(number: u64) -> i32 {
    let number = number as u32;
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

struct From<'a>(&'a [u8]);

impl<'a> From<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(number);
            }
        }
        None
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
        let (pid, folder, ids) = (unsigned(self.number()?), self.number()?, self.number()?);
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
            if groups > self.0.len() {
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
        signed(s.parent.0),
        signed(s.group),
        signed(s.session),
        signed(s.tty),
        signed(s.tty_group),
        s.flags,
        s.minor_faults,
        s.children_minor_faults,
        s.major_faults,
        s.children_major_faults,
        s.user_time,
        s.system_time,
        s.children_user_time,
        s.children_system_time,
        signed(s.priority),
        signed(s.nice),
        signed(s.threads),
        s.start_time,
        s.virtual_size,
        s.resident,
        s.resident_limit,
        signed(s.processor),
        s.realtime_priority.into(),
        s.policy.into(),
        0,
    ]
}

fn stat_of(name: Name, n: [u64; 26]) -> Stat {
    Stat {
        name,
        state: n[0] as u8,
        parent: Pid(unsigned(n[1])),
        group: unsigned(n[2]),
        session: unsigned(n[3]),
        tty: unsigned(n[4]),
        tty_group: unsigned(n[5]),
        flags: n[6],
        minor_faults: n[7],
        children_minor_faults: n[8],
        major_faults: n[9],
        children_major_faults: n[10],
        user_time: n[11],
        system_time: n[12],
        children_user_time: n[13],
        children_system_time: n[14],
        priority: unsigned(n[15]),
        nice: unsigned(n[16]),
        threads: unsigned(n[17]),
        start_time: n[18],
        virtual_size: n[19],
        resident: n[20],
        resident_limit: n[21],
        processor: unsigned(n[22]),
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
        signed(s.tgid),
        signed(s.ppid),
        signed(s.tracer_pid),
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
        tgid: unsigned(n[15]),
        ppid: unsigned(n[16]),
        tracer_pid: unsigned(n[17]),
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
