// cc: -O -C force-frame-pointers=yes
//! rusty: at `go N` calls `rusty_hot` N times and checks the sum; then one that unwinds through it.

use std::io::{BufRead, Write, stdin, stdout};
use std::panic::{catch_unwind, set_hook};

#[inline(never)]
#[unsafe(no_mangle)]
fn rusty_hot(number: u64) -> u64 {
    std::hint::black_box(number.rotate_left(3) ^ 0x5a)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn rusty_unwinds(number: u64) -> u64 {
    if rusty_hot(number) % 2 == 1 {
        panic!("odd");
    }
    number
}

fn main() {
    set_hook(Box::new(|_| {}));
    println!("ready {}", std::process::id());
    let (mut calls, mut wrongs) = (0_u64, 0_u64);
    for line in stdin().lock().lines().map_while(Result::ok) {
        let rounds: u64 = line.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(1);
        for number in 0..rounds {
            calls += 1;
            wrongs += u64::from(rusty_hot(number) != number.rotate_left(3) ^ 0x5a);
        }
        for number in [0, 1 << 61] {
            calls += 1;
            let odd = (number as u64).rotate_left(3) ^ 0x5a;
            let result = catch_unwind(|| rusty_unwinds(number));
            wrongs += u64::from(result.is_err() != (odd % 2 == 1));
        }
        println!("calls {calls}");
        stdout().flush().expect("the test reads on");
    }
    if wrongs > 0 {
        println!("WRONG {wrongs}");
        std::process::exit(1);
    }
    println!("ok {calls}");
}
