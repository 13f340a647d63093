use super::*;

fn text_of(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    joined(bytes, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn arguments_are_joined() {
    assert_eq!(text_of(b"a\0b\nc\0\0d\0"), "a b c  d");
    assert_eq!(text_of(b"title "), "title");
    assert_eq!(text_of(b"a\0 \0"), "a  ");
    assert_eq!(text_of(b"\0\0"), "");
    assert_eq!(text_of(b""), "");
}

#[test]
fn containers_are_found_in_the_names_of_every_runtime() {
    let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for line in [
        format!("0::/system.slice/docker-{id}.scope\n"),
        format!("12:cpu:/docker/{id}\n11:x:/\n"),
        format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope\n"),
        format!("0::/kubepods/besteffort/pod1/{id}\n"),
        format!("0::/machine.slice/libpod-{id}.scope/container\n"),
        format!("0::/x/kubepods-burstable-pod.slice:cri-containerd:{id}\n"),
    ] {
        assert_eq!(container(line.as_bytes()), b"0123456789ab", "{line}");
    }
    assert_eq!(container(b"0::/lxc.payload.web/init.scope\n"), b"web");
    assert_eq!(container(b"0::/user.slice/user-1000.slice\n"), b"-");
    assert_eq!(container(b""), b"-");
}

#[test]
fn names_of_kernel_functions() {
    assert_eq!(sleeps_in(b"__x64_sys_pause"), b"x64_sys_pause");
    assert_eq!(sleeps_in(b"0"), b"-");
    assert_eq!(sleeps_in(b""), b"-");
}

#[test]
fn texts_are_cut_and_cleaned() {
    let mut out = Vec::new();
    let characters = Characters::of_environment();
    assert_eq!(clean(characters, b"a\x1b[2Jb", 4, &mut out), 4);
    assert_eq!(out.len(), 4);
    assert!(!out.contains(&0x1b));
}
