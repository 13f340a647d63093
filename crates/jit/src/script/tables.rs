//! Entries of maps: `lancet_abi::table`, step by step, on the same bytes.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, Block, InstBuilder, Value as Ssa, types};
use lancet_abi::table::{
    ABSENT, FULL, HASH_MULTIPLIER, LEN, LIVE, LOCKED_OUT, SPINS, TableLayout, YIELDS,
};
use lancet_script::ir::{Key, MapId};

use super::function::{Maker, PLAIN};
use super::{facts, frame};

/// A table while an operation is made; the addresses of key and bucket are in the slot, since what
/// lives across a system call is spilled to the target's stack.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) table: TableLayout,
    /// Where to go on.
    pub(super) out: Block,
}

impl Spot {
    pub(super) fn values(&self) -> u64 {
        8 + 8 * u64::from(self.table.key_words)
    }
}

impl Maker<'_> {
    /// An operation on the entry of a key, which is made if there is none and `insert` says so.
    /// `body` works on the entry; under the bucket's lock where the table is a locked one. What
    /// it leaves in the slot's result is the operation's; 0 where there is no entry.
    pub(super) fn with_entry(
        &mut self,
        map: MapId,
        key: Key,
        insert: bool,
        body: impl FnOnce(&mut Self, &Spot, Ssa),
    ) -> Ssa {
        let table = *self.shared.table(map);
        let zero = self.imm(0);
        self.put(frame::RESULT, zero);
        let key = self.key(key);
        self.put(frame::KEY_AT, key);
        let bucket = self.bucket(&table, key);
        self.put(frame::BUCKET, bucket);
        let out = self.block(0);
        let spot = Spot { table, out };
        if table.key_words == 0 {
            let entry = self.b.ins().iadd_imm_s(bucket, 8);
            body(self, &spot, entry);
            self.jump(out);
        } else if table.locked {
            self.lock(&spot);
            let live = self.look(&spot);
            self.missing_locked(&spot, insert, live);
            self.enter(live);
            let entry = self.b.block_params(live)[0];
            body(self, &spot, entry);
            self.unlock();
            self.jump(out);
        } else {
            let live = self.look(&spot);
            self.missing(&spot, insert, live);
            self.enter(live);
            let entry = self.b.block_params(live)[0];
            body(self, &spot, entry);
            self.jump(out);
        }
        self.enter(out);
        self.word(frame::RESULT)
    }

    fn key(&mut self, key: Key) -> Ssa {
        match key {
            Key::None => self.imm(0),
            Key::Word(value) => {
                let value = self.value(value);
                self.put(frame::KEY, value);
                self.address(frame::KEY)
            }
            Key::Bytes(place) => self.place(place),
        }
    }

    fn bucket(&mut self, table: &TableLayout, key: Ssa) -> Ssa {
        let first = self.region(table.bucket(0));
        if table.buckets == 1 {
            return first;
        }
        let zero = self.imm(0);
        self.put(frame::HASH, zero);
        let words = self.imm(table.key_words.into());
        let mix = |maker: &mut Self, index| {
            let at = maker.nth(key, index);
            let word = maker.b.ins().load(types::I64, PLAIN, at, 0);
            let hash = maker.word(frame::HASH);
            let hash = maker.b.ins().bxor(hash, word);
            let hash = maker
                .b
                .ins()
                .imul_imm_s(hash, HASH_MULTIPLIER.cast_signed());
            let high = maker.b.ins().ushr_imm_s(hash, 32);
            let hash = maker.b.ins().bxor(hash, high);
            maker.put(frame::HASH, hash);
        };
        if table.key_words <= 4 {
            for index in 0..table.key_words {
                let index = self.imm(index.into());
                mix(self, index);
            }
        } else {
            self.each(words, mix);
        }
        let hash = self.word(frame::HASH);
        let low = self.b.ins().band_imm_s(hash, 0xffff_ffff);
        let scaled = self.b.ins().imul_imm_s(low, i64::from(table.buckets));
        let index = self.b.ins().ushr_imm_s(scaled, 32);
        let stride = table.bucket(1) - table.bucket(0);
        let offset = self.b.ins().imul_imm_s(index, stride as i64);
        self.b.ins().iadd(first, offset)
    }

    /// Takes the bucket's lock, or gives the operation up and counts it: at once where this thread
    /// has the lock, which it took before a signal's handler ran.
    pub(super) fn lock(&mut self, spot: &Spot) {
        let yields = self.imm(YIELDS.into());
        self.until(yields, |maker, _| {
            let spins = maker.imm(SPINS.into());
            let (bucket, who) = (maker.word(frame::BUCKET), maker.who());
            let zero = maker.imm(0);
            maker.put(frame::WORD, who);
            maker.until(spins, |maker, _| {
                let was = maker.b.ins().atomic_cas(PLAIN, bucket, zero, who);
                maker.put(frame::WORD, was);
                let taken = maker.b.ins().icmp_imm_s(IntCC::Equal, was, 0);
                let own = maker.b.ins().icmp(IntCC::Equal, was, who);
                maker.b.ins().bor(taken, own)
            });
            let (was, who) = (maker.word(frame::WORD), maker.who());
            let taken = maker.b.ins().icmp_imm_s(IntCC::Equal, was, 0);
            let own = maker.b.ins().icmp(IntCC::Equal, was, who);
            let done = maker.b.ins().bor(taken, own);
            let done = maker.b.ins().uextend(types::I64, done);
            maker.put(frame::RESULT, done);
            let held = maker.b.ins().icmp_imm_s(IntCC::Equal, done, 0);
            maker.when(held, |maker| {
                maker.system_call(facts::SCHED_YIELD, &[]);
            });
            maker.word(frame::RESULT)
        });
        let zero = self.imm(0);
        self.put(frame::RESULT, zero);
        let (taken, not) = (self.block(0), self.block(0));
        let was = self.word(frame::WORD);
        self.branch(was, not, taken);
        self.enter(not);
        self.dropped(spot, LOCKED_OUT);
        self.jump(spot.out);
        self.enter(taken);
    }

    /// What this thread's locks hold.
    fn who(&mut self) -> Ssa {
        let tid = self.word(frame::TID);
        self.b.ins().bor_imm_s(tid, 1 << 32)
    }

    pub(super) fn unlock(&mut self) {
        let (free, bucket) = (self.imm(0), self.word(frame::BUCKET));
        self.b.ins().atomic_store(PLAIN, free, bucket);
    }

    /// Counts a dropped update in the table's header.
    fn dropped(&mut self, spot: &Spot, word: u64) {
        let at = self.region(spot.table.at + word);
        let one = self.imm(1);
        self.add(at, one);
    }

    /// Looks for the key; goes to the returned block with its entry, or on, where there is none.
    fn look(&mut self, spot: &Spot) -> Block {
        let live = self.block(1);
        self.search(spot);
        let found = self.word(frame::FOUND);
        let on = self.block(0);
        self.b.ins().brif(found, live, &[found.into()], on, &[]);
        self.enter(on);
        live
    }

    /// Leaves in the slot the entry with the key, and one that is free.
    fn search(&mut self, spot: &Spot) {
        let table = spot.table;
        let (key, bucket) = (self.word(frame::KEY_AT), self.word(frame::BUCKET));
        let zero = self.imm(0);
        self.put(frame::FOUND, zero);
        self.put(frame::FREE, zero);
        let entries = self.imm(table.entries.into());
        self.until(entries, |maker, index| {
            let offset = maker.b.ins().imul_imm_s(index, table.stride() as i64);
            let entry = maker.b.ins().iadd(bucket, offset);
            let entry = maker.b.ins().iadd_imm_s(entry, 8);
            let state = maker.load(entry, 0);
            let (taken, free, done) = (maker.block(0), maker.block(0), maker.block(1));
            maker.branch(state, taken, free);
            maker.enter(free);
            if table.locked {
                let before = maker.word(frame::FREE);
                let first = maker.b.ins().icmp_imm_s(IntCC::Equal, before, 0);
                let kept = maker.b.ins().select(first, entry, before);
                maker.put(frame::FREE, kept);
                let more = maker.imm(0);
                maker.jump_with(done, &[more]);
            } else {
                // Entries are filled in order and stay: behind this one there is none.
                maker.put(frame::FREE, entry);
                let stop = maker.imm(1);
                maker.jump_with(done, &[stop]);
            }
            maker.enter(taken);
            let there = maker.b.ins().iadd_imm_s(entry, 8);
            let same = maker.words_equal(key, there, table.key_words);
            maker.when(same, |maker| maker.put(frame::FOUND, entry));
            maker.jump_with(done, &[same]);
            maker.enter(done);
            maker.b.block_params(done)[0]
        });
    }

    /// No entry was seen: makes one and goes to `live`, or gives up.
    fn missing(&mut self, spot: &Spot, insert: bool, live: Block) {
        if !insert {
            self.jump(spot.out);
            return;
        }
        self.lock(spot);
        self.search(spot);
        let (others, mine, none, make) =
            (self.block(0), self.block(0), self.block(0), self.block(0));
        let found = self.word(frame::FOUND);
        self.branch(found, others, mine);
        self.enter(others);
        self.unlock();
        self.jump_with(live, &[found]);
        self.enter(mine);
        let free = self.word(frame::FREE);
        self.branch(free, make, none);
        self.enter(none);
        self.dropped(spot, FULL);
        self.unlock();
        self.jump(spot.out);
        self.enter(make);
        let to = self.b.ins().iadd_imm_s(free, 8);
        let key = self.word(frame::KEY_AT);
        self.copy_words(to, key, spot.table.key_words);
        let absent = self.imm(ABSENT.cast_signed());
        self.b.ins().atomic_store(PLAIN, absent, free);
        self.unlock();
        self.jump_with(live, &[free]);
    }

    /// The same where the bucket's lock is held.
    fn missing_locked(&mut self, spot: &Spot, insert: bool, live: Block) {
        if !insert {
            self.unlock();
            self.jump(spot.out);
            return;
        }
        let free = self.word(frame::FREE);
        let below = self.has_room(spot);
        let zero = self.imm(0);
        let place = self.b.ins().select(below, free, zero);
        let (make, full) = (self.block(0), self.block(0));
        self.branch(place, make, full);
        self.enter(full);
        self.dropped(spot, FULL);
        self.unlock();
        self.jump(spot.out);
        self.enter(make);
        let to = self.b.ins().iadd_imm_s(place, 8);
        let key = self.word(frame::KEY_AT);
        self.copy_words(to, key, spot.table.key_words);
        let values = self.b.ins().iadd_imm_s(place, spot.values() as i64);
        self.zero_words(values, spot.table.value_words);
        let live_state = self.imm(LIVE.cast_signed());
        self.b.ins().atomic_store(PLAIN, live_state, place);
        self.change_length(spot, 1);
        self.jump_with(live, &[place]);
    }

    fn has_room(&mut self, spot: &Spot) -> Ssa {
        let at = self.region(spot.table.at + LEN);
        let length = self.load(at, 0);
        self.b.ins().icmp_imm_s(
            IntCC::UnsignedLessThan,
            length,
            i64::from(spot.table.capacity),
        )
    }

    pub(super) fn change_length(&mut self, spot: &Spot, by: i64) {
        let at = self.region(spot.table.at + LEN);
        let by = self.imm(by);
        self.add(at, by);
    }

    /// Changes an entry's values by `change`, and makes it live where it is not.
    pub(super) fn live_by(&mut self, spot: &Spot, entry: Ssa, change: impl FnOnce(&mut Self, Ssa)) {
        let values = self.b.ins().iadd_imm_s(entry, spot.values() as i64);
        if spot.table.locked && spot.table.key_words > 0 {
            change(self, values);
            return;
        }
        if spot.table.key_words > 0 {
            let state = self.load(entry, 0);
            let absent = self
                .b
                .ins()
                .icmp_imm_s(IntCC::NotEqual, state, LIVE.cast_signed());
            let out = spot.out;
            self.when(absent, |maker| {
                let (room, full) = (maker.block(0), maker.block(0));
                let below = maker.has_room(spot);
                // The last place may have been given to this very entry meanwhile.
                let again = maker.load(entry, 0);
                let live = maker
                    .b
                    .ins()
                    .icmp_imm_s(IntCC::Equal, again, LIVE.cast_signed());
                let goes_on = maker.b.ins().bor(below, live);
                maker.branch(goes_on, room, full);
                maker.enter(full);
                maker.dropped(spot, FULL);
                maker.jump(out);
                maker.enter(room);
            });
        }
        change(self, values);
        let state = self.load(entry, 0);
        let absent = self
            .b
            .ins()
            .icmp_imm_s(IntCC::NotEqual, state, LIVE.cast_signed());
        self.when(absent, |maker| {
            let live = maker.imm(LIVE.cast_signed());
            let was = maker.b.ins().atomic_cas(PLAIN, entry, state, live);
            let mine = maker.b.ins().icmp(IntCC::Equal, was, state);
            maker.when(mine, |maker| maker.change_length(spot, 1));
        });
    }

    /// Runs `part` where the entry is live.
    pub(super) fn where_live(&mut self, entry: Ssa, part: impl FnOnce(&mut Self)) {
        let state = self.load(entry, 0);
        let live = self
            .b
            .ins()
            .icmp_imm_s(IntCC::Equal, state, LIVE.cast_signed());
        self.when(live, part);
    }

    /// Takes the entry away: for good in a locked table, else until it is written again.
    pub(super) fn take_away(&mut self, spot: &Spot, entry: Ssa) {
        let one = self.imm(1);
        if spot.table.locked && spot.table.key_words > 0 {
            let unused = self.imm(0);
            self.b.ins().atomic_store(PLAIN, unused, entry);
            self.change_length(spot, -1);
            self.put(frame::RESULT, one);
            return;
        }
        let (live, absent) = (self.imm(LIVE.cast_signed()), self.imm(ABSENT.cast_signed()));
        let was = self.b.ins().atomic_cas(PLAIN, entry, live, absent);
        let mine = self.b.ins().icmp(IntCC::Equal, was, live);
        self.when(mine, |maker| {
            maker.change_length(spot, -1);
            let values = maker.b.ins().iadd_imm_s(entry, spot.values() as i64);
            let words = maker.imm(spot.table.value_words.into());
            maker.each(words, |maker, index| {
                let (at, zero) = (maker.nth(values, index), maker.imm(0));
                maker
                    .b
                    .ins()
                    .atomic_rmw(types::I64, PLAIN, AtomicRmwOp::Xchg, at, zero);
            });
            maker.put(frame::RESULT, one);
        });
    }
}
