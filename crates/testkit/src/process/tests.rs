use std::fs::OpenOptions;

use super::*;
use crate::Running;

fn sleeper() -> Running {
    Running::spawn(
        Path::new("/bin/sh"),
        &["-c", "echo ready $$; read w; echo $w"],
    )
    .unwrap()
}

#[test]
fn untouched_text_equals_its_files() {
    let running = sleeper();
    text_equals_file(running.pid(), "").unwrap();
    text_equals_file(running.pid(), "libc.so.6").unwrap();
    let error = text_equals_file(running.pid(), "no-such-library.so").unwrap_err();
    assert!(matches!(error, Error::NotMapped { .. }), "{error}");
}

#[test]
fn one_changed_byte_is_found_and_told() {
    let running = sleeper();
    let pid = running.pid();
    let mapping = text_mappings(pid).unwrap().into_iter().next().unwrap();
    let address = mapping.end.minus(1);
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(proc_file(pid, "mem"))
        .unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, address.0).unwrap();
    let before = smaps_summary(pid).unwrap();
    memory.write_all_at(&[byte[0] ^ 0xff], address.0).unwrap();
    let name = mapping.path.to_string_lossy().into_owned();
    match text_equals_file(pid, &name).unwrap_err() {
        Error::TextDiffers {
            address: told,
            found,
            expected,
            bytes,
            ..
        } => {
            assert_eq!((told, bytes), (address, 1));
            assert_eq!((found[0], expected[0]), (byte[0] ^ 0xff, byte[0]));
        }
        other => panic!("{other}"),
    }
    assert!(smaps_summary(pid).unwrap().text_copied_kib >= before.text_copied_kib + 4);
    memory.write_all_at(&byte, address.0).unwrap();
    text_equals_file(pid, &name).unwrap();
}

#[test]
fn counts_of_a_plain_process() {
    let running = sleeper();
    assert_eq!(thread_count(running.pid()).unwrap(), 1);
    assert!(fd_count(running.pid()).unwrap() >= 3);
    let summary = smaps_summary(running.pid()).unwrap();
    assert_eq!(summary, smaps_summary(running.pid()).unwrap());
    assert!(summary.mappings > 5 && summary.rss_kib > 100, "{summary:?}");
    assert_eq!(summary.writable_and_executable, 0);
}

#[test]
fn smaps_are_summed_by_kind_of_mapping() {
    let smaps = "\
1000-2000 r-xp 00000000 08:01 7          /usr/bin/it
Rss:                   8 kB
Private_Dirty:         4 kB
VmFlags: rd ex mr
2000-3000 rw-p 00000000 08:01 7          /usr/bin/it
Rss:                   4 kB
Private_Dirty:         4 kB
3000-4000 rwxp 00000000 00:00 0 
Rss:                   4 kB
7000-8000 r-xp 00000000 00:00 0          [vdso]
Rss:                   4 kB
";
    let expected = SmapsSummary {
        mappings: 4,
        rss_kib: 20,
        text_copied_kib: 4,
        writable_and_executable: 1,
        anonymous_executable: 1,
    };
    assert_eq!(summarise(smaps), expected);
}

#[test]
fn a_process_that_is_gone_is_an_error() {
    let running = sleeper();
    let pid = running.pid();
    drop(running);
    assert!(matches!(thread_count(pid), Err(Error::Io { .. })));
    assert!(matches!(text_equals_file(pid, ""), Err(Error::Io { .. })));
}
