//! Characters as the locale has them. The C library is asked only for those that are not ASCII.

use std::sync::OnceLock;

/// One character at the start of a text.
pub(crate) enum Character {
    /// Printed as it is: so many bytes in so many columns.
    Printable { bytes: usize, columns: usize },
    /// So many bytes that are no printable character.
    Other { bytes: usize },
}

/// The characters of the environment's locale.
#[derive(Clone, Copy)]
pub(crate) struct Characters {
    utf8: bool,
}

unsafe extern "C" {
    fn mbtowc(
        wide: *mut libc::wchar_t,
        text: *const libc::c_char,
        length: libc::size_t,
    ) -> libc::c_int;
    fn iswprint(wide: u32) -> libc::c_int;
    fn wcwidth(wide: libc::wchar_t) -> libc::c_int;
}

impl Characters {
    /// Those of the environment.
    pub(crate) fn of_environment() -> Self {
        static UTF8: OnceLock<bool> = OnceLock::new();
        let utf8 = *UTF8.get_or_init(|| {
            // SAFETY: the string is static; no other thread of this process uses the locale.
            unsafe {
                if libc::setlocale(libc::LC_CTYPE, c"".as_ptr()).is_null() {
                    return false;
                }
                let set = libc::nl_langinfo(libc::CODESET);
                !set.is_null() && std::ffi::CStr::from_ptr(set) == c"UTF-8"
            }
        });
        Self { utf8 }
    }

    /// How far the text can be one of the locale, by the first bytes of its characters alone.
    pub(crate) fn valid_up_to(self, text: &[u8]) -> usize {
        let mut at = 0;
        while self.utf8 && at < text.len() {
            let length = match text[at] {
                0..0x80 => 1,
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => break,
            };
            if at + length > text.len() {
                break;
            }
            at += length;
        }
        at
    }

    /// The character that a text begins with; the text is not empty.
    pub(crate) fn first(self, text: &[u8]) -> Character {
        let mut wide: libc::wchar_t = 0;
        // SAFETY: the text is live and its length is told. The call's hidden state is of UTF-8, which has none between
        // calls; it is set back after an error.
        let length = unsafe {
            let length = mbtowc(&mut wide, text.as_ptr().cast(), text.len());
            if length < 0 {
                mbtowc(std::ptr::null_mut(), std::ptr::null(), 0);
            }
            length
        };
        let Ok(bytes) = usize::try_from(length) else {
            return Character::Other { bytes: 1 };
        };
        // SAFETY: plain questions about a number.
        let (printable, columns) = unsafe { (iswprint(wide.cast_unsigned()) != 0, wcwidth(wide)) };
        let bytes = bytes.max(1);
        if printable {
            Character::Printable {
                bytes,
                columns: usize::try_from(columns).unwrap_or(0),
            }
        } else {
            Character::Other { bytes }
        }
    }
}
