//! From a target to probe sites.

use lancet_abi::units::{FileOffset, LinkAddr};

use crate::error::SymbolError;
use crate::function::Function;
use crate::module::Module;
use crate::pattern::Pattern;
use crate::spec::Target;
use crate::table::region_end;
use crate::{boundary, names, near};

/// How many examples a message holds.
const MAX_EXAMPLES: usize = 4;

/// One instruction to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The shown name: function (demangled), `function+offset` or `0xaddress`.
    pub name: String,
    /// The instruction.
    pub link: LinkAddr,
    /// The instruction's place in the file.
    pub offset: FileOffset,
    /// Where the function around it starts.
    pub function_start: LinkAddr,
    /// One past the function's last byte.
    pub function_end: LinkAddr,
    /// Where the next known code starts; bytes between are padding.
    pub next_start: LinkAddr,
}

/// The sites of `target` in `module`, by address, each once; never an empty list.
///
/// Resolvers of indirect functions are skipped by patterns with `*` and refused by name, as
/// are untyped symbols that no unwind entry proves to be code.
///
/// # Errors
/// No function matches, an offset or address is not an instruction of the code.
pub fn select(module: &Module, target: &Target) -> Result<Vec<Site>, SymbolError> {
    match target {
        Target::Functions(pattern) => functions(module, pattern),
        Target::Offset { function, offset } => at_offset(module, function, *offset),
        Target::Address(link) => at_address(module, *link),
    }
}

fn functions(module: &Module, pattern: &Pattern) -> Result<Vec<Site>, SymbolError> {
    let chosen = matching(module, pattern)?;
    Ok(chosen
        .chunk_by(|a, b| a.link == b.link)
        .filter_map(|aliases| {
            let function = shown(aliases, pattern)?;
            let name = function.demangled().into_owned();
            Some(site(module, name, function.link, function.offset, function))
        })
        .collect())
}

/// The functions that a pattern means, by address.
fn matching<'m>(module: &'m Module, pattern: &Pattern) -> Result<Vec<&'m Function>, SymbolError> {
    let all = module.functions();
    let matched: Vec<&Function> = all.iter().filter(|f| pattern.matches(&f.name)).collect();
    let direct: Vec<&Function> = matched
        .iter()
        .copied()
        .filter(|f| !f.is_ifunc)
        .filter(|f| pattern.is_exact() || !f.is_untyped || is_proven(module, f))
        .collect();
    // An old version of the same name may be an ordinary function that nobody calls.
    let resolver = matched.iter().find(|f| f.is_ifunc);
    let named = resolver.is_some() && pattern.is_exact();
    if !direct.is_empty() && !named {
        return Ok(direct);
    }
    let (name, path) = (pattern.as_str().to_owned(), module.path().into());
    if let Some(resolver) = resolver {
        let hint = implementations(all, &resolver.name);
        return Err(SymbolError::Indirect {
            name,
            path,
            resolver: resolver.link,
            hint,
        });
    }
    let near = near::near(module, &name);
    let hint = near::hint(module, &name, &near);
    Err(SymbolError::NoFunction {
        name,
        path,
        near,
        hint,
    })
}

/// An unwind entry starts there: it is code and not data among code.
fn is_proven(module: &Module, function: &Function) -> bool {
    let frames = module.frames();
    frames
        .binary_search_by_key(&function.link.0, |frame| frame.start)
        .is_ok()
}

/// The text about what an indirect function may resolve to.
fn implementations(all: &[Function], resolver: &str) -> String {
    let start = format!("__{}_", resolver.trim_start_matches('_'));
    let names: Vec<&str> = all
        .iter()
        .filter(|f| !f.is_ifunc && f.name.starts_with(&start))
        .map(|f| f.name.as_str())
        .collect();
    match names.split_at_checked(MAX_EXAMPLES) {
        _ if names.is_empty() => {
            "its implementations have no names in the file; install its debug symbols".to_owned()
        }
        Some((some, rest)) if !rest.is_empty() => format!(
            "probe its implementations, such as `{}` ({} more; `{start}*` names them all)",
            some.join("`, `"),
            rest.len()
        ),
        _ => format!("probe its implementations: `{}`", names.join("`, `")),
    }
}

/// Of several names at one address: the one that was asked for, else the plainest.
fn shown<'f>(aliases: &[&'f Function], pattern: &Pattern) -> Option<&'f Function> {
    let exact = aliases.iter().find(|f| f.name == pattern.as_str());
    let plainest = || {
        aliases.iter().min_by_key(|f| {
            let underscores = f.name.bytes().take_while(|&b| b == b'_').count();
            let underscores = if names::is_mangled(&f.name) {
                0
            } else {
                underscores
            };
            (f.size == 0, underscores, f.name.len(), &f.name)
        })
    };
    exact.or_else(plainest).copied()
}

fn at_offset(module: &Module, name: &str, offset: u64) -> Result<Vec<Site>, SymbolError> {
    let pattern = Pattern::new(name);
    let chosen = matching(module, &pattern)?;
    let groups: Vec<&[&Function]> = chosen.chunk_by(|a, b| a.link == b.link).collect();
    let path = || module.path().into();
    if groups.len() > 1 {
        let examples: Vec<String> = groups
            .iter()
            .take(MAX_EXAMPLES)
            .map(|group| format!("`{}` ({})", group[0].demangled(), group[0].link))
            .collect();
        return Err(SymbolError::Ambiguous {
            name: name.to_owned(),
            path: path(),
            count: groups.len(),
            examples: examples.join(", "),
        });
    }
    let missing = || SymbolError::NotCode {
        path: path(),
        at: LinkAddr(0),
    };
    let function = shown(groups.first().ok_or_else(missing)?, &pattern).ok_or_else(missing)?;
    if offset >= function.size.max(1) {
        return Err(SymbolError::OutsideFunction {
            name: name.to_owned(),
            path: path(),
            offset,
            size: function.size,
        });
    }
    let link = function.link.plus(offset);
    boundary::check(module, function.link, link)?;
    let shown = function.demangled();
    let name = if offset == 0 {
        shown.into_owned()
    } else {
        format!("{shown}+{offset:#x}")
    };
    let place = module.offset_of(link).ok_or_else(|| SymbolError::NotCode {
        path: path(),
        at: link,
    })?;
    Ok(vec![site(module, name, link, place, function)])
}

fn at_address(module: &Module, link: LinkAddr) -> Result<Vec<Site>, SymbolError> {
    let not_code = || SymbolError::NotCode {
        path: module.path().into(),
        at: link,
    };
    let elf = module.elf();
    let in_code = elf.sections.is_empty() || elf.code_around(link.0).is_some();
    if !elf.is_code(link.0) || !in_code {
        return Err(not_code());
    }
    let offset = module.offset_of(link).ok_or_else(not_code)?;
    let around = module.function_range(link);
    // Where no name or unwind entry is near, code is read from its section's start: x86
    // code falls back into step within a few instructions.
    let start = around
        .as_ref()
        .map_or_else(|| region_start(module, link), |range| range.start);
    boundary::check(module, start, link)?;
    let next_start = module.next_start(link);
    let range = around.unwrap_or(link..next_start);
    Ok(vec![Site {
        name: link.to_string(),
        link,
        offset,
        function_start: range.start,
        function_end: range.end,
        next_start: module.next_start(LinkAddr(range.end.0.saturating_sub(1)).max(link)),
    }])
}

/// Where the code around an address starts, when nothing better is known.
fn region_start(module: &Module, link: LinkAddr) -> LinkAddr {
    let elf = module.elf();
    let section = elf.code_around(link.0).map(|range| range.start);
    let segment = || elf.segment_of(link.0).map(|s| s.link.0);
    LinkAddr(section.or_else(segment).unwrap_or(link.0))
}

fn site(
    module: &Module,
    name: String,
    link: LinkAddr,
    offset: FileOffset,
    function: &Function,
) -> Site {
    // A size may be wrong, but code never reaches beyond its section.
    let end = function
        .end()
        .0
        .min(region_end(module.elf(), function.link.0));
    let end = LinkAddr(end.max(link.0.saturating_add(1)));
    Site {
        name,
        link,
        offset,
        function_start: function.link,
        function_end: end,
        next_start: module.next_start(LinkAddr(end.0 - 1)),
    }
}
