//! Extended regular expressions, those of POSIX as pgrep understands them.

use std::{ffi::CString, fmt, ptr};

use crate::PsError;

/// A compiled expression.
pub struct Pattern {
    compiled: Box<libc::regex_t>,
}

// SAFETY: after `regcomp` the C library only reads the expression.
unsafe impl Send for Pattern {}
// SAFETY: as above; POSIX wants `regexec` to be safe to call from several threads.
unsafe impl Sync for Pattern {}

impl Pattern {
    /// Compiles one.
    ///
    /// # Errors
    /// [`PsError::Pattern`] with what the C library says.
    pub fn new(pattern: &str) -> Result<Self, PsError> {
        let failed = |message: String| PsError::Pattern {
            pattern: pattern.to_owned(),
            message,
        };
        let text = CString::new(pattern).map_err(|e| failed(e.to_string()))?;
        // SAFETY: all zero is a valid value to be filled.
        let mut compiled: Box<libc::regex_t> = Box::new(unsafe { std::mem::zeroed() });
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: both point to live values, and the string has its closing zero.
        let code = unsafe { libc::regcomp(&mut *compiled, text.as_ptr(), flags) };
        if code != 0 {
            let mut message = [0_u8; 128];
            // SAFETY: the buffer is live and its length is told.
            unsafe {
                libc::regerror(code, &*compiled, message.as_mut_ptr().cast(), message.len());
            }
            let end = message.iter().position(|&b| b == 0).unwrap_or(0);
            return Err(failed(
                String::from_utf8_lossy(&message[..end]).into_owned(),
            ));
        }
        Ok(Self { compiled })
    }

    /// Whether it is found in the text, up to its first zero byte.
    #[must_use]
    pub fn is_in(&self, text: &[u8]) -> bool {
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        let Ok(text) = CString::new(&text[..end]) else {
            return false;
        };
        // SAFETY: the expression is compiled, the string has its closing zero, no matches are asked for.
        unsafe { libc::regexec(&*self.compiled, text.as_ptr(), 0, ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        // SAFETY: it was compiled, and is not used any more.
        unsafe { libc::regfree(&mut *self.compiled) };
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pattern")
    }
}
