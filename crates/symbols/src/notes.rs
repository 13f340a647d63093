//! ELF notes: size of the name, size of the content, kind (u32 each), then both, padded to 4.

/// The content of the first GNU note of that kind.
pub(crate) fn gnu_note(mut bytes: &[u8], wanted: u32) -> Option<&[u8]> {
    loop {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, content) = (word(0) as usize, word(4) as usize);
        let padded = |size: usize| size.checked_next_multiple_of(4);
        let after = rest.get(padded(name)?..)?;
        if word(8) == wanted && rest.get(..name)? == b"GNU\0" {
            return after.get(..content);
        }
        bytes = after.get(padded(content)?..)?;
    }
}

/// The linker's build id (`NT_GNU_BUILD_ID`).
pub(crate) fn build_id(bytes: &[u8]) -> Option<&[u8]> {
    gnu_note(bytes, 3).filter(|id| !id.is_empty() && id.len() <= 64)
}
