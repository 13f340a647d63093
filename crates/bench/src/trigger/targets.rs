//! The functions that are called: a single instruction each, and a thousand distinct ones.
//!
//! Written in assembly, because the first bytes are what is measured: an engine may treat `nop`,
//! a five-byte `nop`, `push` and a lone `ret` quite differently.

use std::arch::global_asm;

/// Name of the pseudo function that calls all of [`many_names`] in turn.
pub const MANY: &str = "uprobe_many";

/// How many distinct functions [`MANY`] calls in one turn.
pub const MANY_COUNT: usize = 1000;

// Every function is followed by padding up to the next boundary, as compilers emit it, so that
// even the lone `ret` has room for a jump.
global_asm!(
    r#"
    .pushsection .text.uprobe_target, "ax", @progbits

    .macro uprobe_target name
    .globl \name
    .type \name, @function
    .p2align 4
    \name:
    .endm

    uprobe_target uprobe_target_nop
    nop
    ret
    .size uprobe_target_nop, . - uprobe_target_nop

    uprobe_target uprobe_target_nop5
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    .size uprobe_target_nop5, . - uprobe_target_nop5

    uprobe_target uprobe_target_push
    push rbp
    mov rbp, rsp
    pop rbp
    ret
    .size uprobe_target_push, . - uprobe_target_push

    uprobe_target uprobe_target_ret
    ret
    .size uprobe_target_ret, . - uprobe_target_ret

    .globl uprobe_target_text
    .type uprobe_target_text, @object
    .p2align 4
    uprobe_target_text:
    .asciz "fifteen letters"
    .size uprobe_target_text, . - uprobe_target_text
    .p2align 4

    .popsection
    "#
);

// uprobe_many_NNN returns 1000 + NNN. The bodies differ in their first instructions and in length
// (by the last digit), as real code does, so that a predictor or a cache can't serve one for all.
global_asm!(
    r#"
    .pushsection .text.uprobe_many, "ax", @progbits

    .macro uprobe_many digits, last
    .globl uprobe_many_0\digits
    .type uprobe_many_0\digits, @function
    .p2align 4
    uprobe_many_0\digits:
    .if (\last % 3) == 0
    push rbp
    mov rbp, rsp
    mov eax, 1\digits
    pop rbp
    .elseif (\last % 3) == 1
    mov eax, 1\digits
    .else
    sub rsp, 24
    xor eax, eax
    add eax, 1\digits
    add rsp, 24
    .endif
    ret
    .size uprobe_many_0\digits, . - uprobe_many_0\digits
    .endm

    .irp hundreds, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    .irp tens, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    .irp units, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    uprobe_many \hundreds\tens\units, \units
    .endr
    .endr
    .endr
    .p2align 4
    .popsection

    .pushsection .data.rel.ro.uprobe_many, "aw", @progbits
    .globl uprobe_many_table
    .type uprobe_many_table, @object
    .p2align 3
    uprobe_many_table:
    .irp hundreds, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    .irp tens, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    .irp units, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    .quad uprobe_many_0\hundreds\tens\units
    .endr
    .endr
    .endr
    .size uprobe_many_table, . - uprobe_many_table
    .popsection
    "#
);

// SAFETY: the assembly above defines each of these with this type. The functions take nothing,
// keep every callee-saved register and touch no memory but their own stack, so any call is sound;
// the table is never written.
unsafe extern "C" {
    safe fn uprobe_target_nop();
    safe fn uprobe_target_nop5();
    safe fn uprobe_target_push();
    safe fn uprobe_target_ret();
    #[cfg(test)]
    safe static uprobe_target_text: [u8; 16];
    safe static uprobe_many_table: [extern "C" fn() -> u32; MANY_COUNT];
}

/// The functions of one instruction: the symbol and where to call it.
pub const NAMED: [(&str, extern "C" fn()); 4] = [
    ("uprobe_target_nop", uprobe_target_nop),
    ("uprobe_target_nop5", uprobe_target_nop5),
    ("uprobe_target_push", uprobe_target_push),
    ("uprobe_target_ret", uprobe_target_ret),
];

/// So many bytes behind `uprobe_target_push` lies a text, for scripts that read one.
pub const TEXT_BEHIND_PUSH: usize = 32;

/// Symbols of the thousand functions, in the order in which they are called.
#[must_use]
pub fn many_names() -> Vec<String> {
    (0..MANY_COUNT)
        .map(|index| format!("{MANY}_{index:04}"))
        .collect()
}

/// The thousand functions; number `n` returns 1000 + `n`.
#[must_use]
pub fn many() -> &'static [extern "C" fn() -> u32; MANY_COUNT] {
    &uprobe_many_table
}

/// What one turn through [`many`] adds up to.
pub const MANY_SUM: u64 = 1_499_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_thousand_returns_its_own_number() {
        for (index, function) in many().iter().enumerate() {
            assert_eq!(function() as usize, 1000 + index);
        }
        assert_eq!(
            many()
                .iter()
                .map(|function| u64::from(function()))
                .sum::<u64>(),
            MANY_SUM
        );
    }

    #[test]
    fn names_are_four_digits_in_order() {
        let names = many_names();
        assert_eq!(names.len(), MANY_COUNT);
        assert_eq!(names[0], "uprobe_many_0000");
        assert_eq!(names[999], "uprobe_many_0999");
    }

    #[test]
    fn the_text_is_where_scripts_look_for_it() {
        let push = uprobe_target_push as *const () as usize;
        let text = uprobe_target_text.as_ptr() as usize;
        assert_eq!(text - push, TEXT_BEHIND_PUSH);
        assert_eq!(&uprobe_target_text, b"fifteen letters\0");
    }

    #[test]
    fn functions_are_apart_by_whole_slots() {
        let mut starts: Vec<usize> = many().iter().map(|function| *function as usize).collect();
        starts.extend(NAMED.iter().map(|(_, function)| *function as usize));
        starts.sort_unstable();
        assert!(starts.iter().all(|start| start % 16 == 0));
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 16));
    }
}
