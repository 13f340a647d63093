//! The `config` block.

use crate::ast::{Expr, ExprKind, Setting};
use crate::diag::{Diagnostic, Span, nearest};
use crate::ir::{Config, MissingProbes};

const KEYS: &[&str] = &[
    "missing_probes",
    "max_strlen",
    "str_trunc_trailer",
    "max_map_keys",
    "print_maps_on_exit",
    "max_probes",
    "max_cat_bytes",
    "perf_rb_pages",
    "cpp_demangle",
    "show_debug_info",
    "lazy_symbolication",
];
/// Known to the language; of no meaning here, so any value does.
const WITHOUT_MEANING: &[&str] = &[
    "on_stack_limit",
    "log_size",
    "max_bpf_progs",
    "license",
    "cache_user_symbols",
    "stack_mode",
    "max_type_res_iterations",
];

/// Whether a name stands for a setting.
pub fn is_setting(name: &str) -> bool {
    const OLD: &[&str] = &["strlen", "map_keys_max", "cat_bytes_max"];
    KEYS.contains(&name) || OLD.contains(&name)
}

/// A setting from outside the program, as a word.
pub(super) fn apply_text(config: &mut Config, key: &str, value: &str) -> Result<(), Diagnostic> {
    let kind = match value.parse() {
        Ok(number) => ExprKind::Int(number),
        Err(_) => match value {
            "true" => ExprKind::Bool(true),
            "false" => ExprKind::Bool(false),
            text => ExprKind::Str(text.to_owned()),
        },
    };
    let span = Span::default();
    let setting = Setting {
        key: key.to_owned(),
        value: Expr {
            kind,
            span,
            depth: 0,
        },
        span,
    };
    apply(config, &setting)
}

/// Largest text, so that scratch memory stays small.
const MAX_STRLEN: u64 = 4096;

pub(super) fn apply(config: &mut Config, setting: &Setting) -> Result<(), Diagnostic> {
    let wrong =
        |what: &str| Diagnostic::error(setting.value.span, format!("{} takes {what}", setting.key));
    let number = |least: u64, most: u64| match setting.value.kind {
        ExprKind::Int(value) if (least..=most).contains(&value) => Ok(value as u32),
        _ => Err(wrong(&format!("a number from {least} to {most}"))),
    };
    let flag = || match setting.value.kind {
        ExprKind::Int(value @ 0..=1) => Ok(value == 1),
        ExprKind::Bool(value) => Ok(value),
        _ => Err(wrong("true or false")),
    };
    let text = || match &setting.value.kind {
        ExprKind::Str(text) | ExprKind::Ident(text) => Ok(text.as_str()),
        _ => Err(wrong("a text")),
    };
    match setting
        .key
        .to_ascii_lowercase()
        .trim_start_matches("bpftrace_")
    {
        "missing_probes" => {
            config.missing_probes = match text()? {
                "error" => MissingProbes::Error,
                "warn" => MissingProbes::Warn,
                "ignore" => MissingProbes::Ignore,
                _ => return Err(wrong("error, warn or ignore")),
            };
        }
        "max_strlen" | "strlen" => config.max_strlen = number(8, MAX_STRLEN)?,
        "str_trunc_trailer" => config.str_trunc_trailer = text()?.to_owned(),
        "max_map_keys" | "map_keys_max" => config.max_map_keys = number(1, 1 << 24)?,
        "print_maps_on_exit" => config.print_maps_on_exit = flag()?,
        "max_probes" => config.max_probes = number(1, 1 << 24)?,
        "max_cat_bytes" | "cat_bytes_max" => config.max_cat_bytes = number(1, 1 << 30)?,
        "perf_rb_pages" => config.perf_rb_pages = number(1, 1 << 20)?,
        "cpp_demangle" => config.cpp_demangle = flag()?,
        "show_debug_info" => config.show_debug_info = flag()?,
        "lazy_symbolication" => config.lazy_symbolication = flag()?,
        key if WITHOUT_MEANING.contains(&key) || key.starts_with("unstable_") => {}
        key => {
            let error =
                Diagnostic::error(setting.span, format!("unknown setting `{}`", setting.key));
            return Err(match nearest(key, KEYS.iter().copied()) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error.hint(format!("known: {}", KEYS.join(", "))),
            });
        }
    }
    Ok(())
}
