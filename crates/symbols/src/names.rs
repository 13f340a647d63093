//! Names as in the source.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longer mangled names are shown as they are.
const MAX_MANGLED: usize = 16 << 10;
/// A demangled name may grow exponentially; longer ones are not shown.
const MAX_SHOWN: usize = 64 << 10;
/// How deep names may nest, so that hostile ones can't exhaust the stack.
const MAX_DEPTH: u32 = 64;

/// Collects text up to a limit.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len().saturating_add(text.len()) > MAX_SHOWN {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The name looks mangled.
pub(crate) fn is_mangled(raw: &str) -> bool {
    raw.len() <= MAX_MANGLED && (raw.starts_with("_Z") || raw.starts_with("_R"))
}

/// The name to show, without the hash of Rust names.
pub(crate) fn demangle(raw: &str) -> Cow<'_, str> {
    if !is_mangled(raw) {
        return raw.into();
    }
    rust(raw, false)
        .or_else(|| cpp(raw, DemangleOptions::new()))
        .map_or(raw.into(), Cow::Owned)
}

/// Every text by which a user may mean a mangled name: the whole one, without the return
/// type, and without argument list.
pub(crate) fn spellings(raw: &str) -> Vec<String> {
    if !is_mangled(raw) {
        return Vec::new();
    }
    if let Some(short) = rust(raw, false) {
        return std::iter::once(short).chain(rust(raw, true)).collect();
    }
    let options = DemangleOptions::new;
    [
        options(),
        options().no_return_type(),
        options().no_return_type().no_params(),
    ]
    .into_iter()
    .map_while(|options| cpp(raw, options))
    .map(|name| tight(&name))
    .collect()
}

/// A name as it is compared: no blank behind a comma.
pub(crate) fn tight(name: &str) -> String {
    name.replace(", ", ",")
}

fn rust(raw: &str, with_hash: bool) -> Option<String> {
    let name = rustc_demangle::try_demangle(raw).ok()?;
    let mut text = Limited(String::new());
    if with_hash {
        write!(text, "{name}")
    } else {
        write!(text, "{name:#}")
    }
    .ok()?;
    Some(text.0)
}

fn cpp(raw: &str, options: DemangleOptions) -> Option<String> {
    let parse = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(raw.as_bytes(), &parse).ok()?;
    let mut text = Limited(String::new());
    symbol
        .structured_demangle(&mut text, &options.recursion_limit(MAX_DEPTH))
        .ok()?;
    Some(text.0)
}
