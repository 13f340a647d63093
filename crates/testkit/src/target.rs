//! Compiling the programs of `tests/targets/` when a test first asks for them.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, have};

/// The program built from `tests/targets/NAME.*`.
///
/// Sources of the same name are linked into one program (`NAME.c` with `NAME.S`). A first line
/// `// cc: -O2 -pthread` gives the compiler's flags. The result is kept in the target folder
/// under a hash of sources, headers and flags; parallel callers do not disturb each other.
///
/// # Panics
/// When it can't be built; [`try_target`] lets the caller skip where a compiler is missing.
#[must_use]
pub fn target(name: &str) -> PathBuf {
    try_target(name).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`target`], but says why it can't.
///
/// # Errors
/// When source or compiler is missing, or the source does not compile.
pub fn try_target(name: &str) -> Result<PathBuf, Error> {
    build(&sources_folder(), name, &output_folder())
}

fn build(folder: &Path, name: &str, output: &Path) -> Result<PathBuf, Error> {
    let sources: Vec<PathBuf> = ["c", "cpp", "S", "rs", "go"]
        .iter()
        .map(|extension| folder.join(format!("{name}.{extension}")))
        .filter(|path| path.is_file())
        .collect();
    let Some(main) = sources.first() else {
        return Err(Error::NoSource {
            name: name.to_owned(),
            folder: folder.to_owned(),
        });
    };
    let flags = flags(&read(main)?);
    let compiler = compiler(main);
    let key = key(folder, &sources, compiler, &flags)?;
    let program = output.join(format!("{name}-{key:016x}")).join(name);
    if program.is_file() {
        return Ok(program);
    }
    if !have(compiler[0]) {
        return Err(Error::NoCompiler {
            name: name.to_owned(),
            compiler: compiler[0].to_owned(),
        });
    }
    compile(name, &sources, compiler, &flags, &program)?;
    Ok(program)
}

/// Compiles beside the final place and links there, so that nobody ever sees half a program.
fn compile(
    name: &str,
    sources: &[PathBuf],
    compiler: &[&str],
    flags: &[String],
    program: &Path,
) -> Result<(), Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = program.with_extension(format!("{}-{number}.new", std::process::id()));
    let folder = program.parent().unwrap_or(program);
    fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).arg("-o").arg(&scratch);
    // Go wants its flags before the files; linkers want libraries behind them.
    if compiler[0] == "go" {
        command.args(flags).args(sources);
    } else {
        command.args(sources).args(flags);
    }
    let result = command
        .output()
        .map_err(|source| io_error(Path::new(compiler[0]), source))?;
    if !result.status.success() {
        return Err(Error::Compile {
            name: name.to_owned(),
            command: format!("{command:?}"),
            output: String::from_utf8_lossy(&result.stderr).into_owned(),
        });
    }
    // Who comes second keeps the first one's: a process may run it already, and a file that took
    // its name would be another one.
    let kept = fs::hard_link(&scratch, program);
    fs::remove_file(&scratch).map_err(|source| io_error(&scratch, source))?;
    match kept {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error(program, source))
        }
        _ => Ok(()),
    }
}

fn compiler(source: &Path) -> &'static [&'static str] {
    match source.extension().and_then(|extension| extension.to_str()) {
        Some("cpp") => &["c++"],
        Some("rs") => &["rustc", "--edition=2024", "-g"],
        Some("go") => &["go", "build"],
        _ => &["cc"],
    }
}

/// The words behind `// cc:` in the first line.
fn flags(source: &[u8]) -> Vec<String> {
    let line = source
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(line)
        .strip_prefix("// cc:")
        .map(|flags| flags.split_whitespace().map(str::to_owned).collect())
        .unwrap_or_default()
}

fn key(
    folder: &Path,
    sources: &[PathBuf],
    compiler: &[&str],
    flags: &[String],
) -> Result<u64, Error> {
    let mut hasher = DefaultHasher::new();
    (compiler, flags).hash(&mut hasher);
    let mut headers: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(|source| io_error(folder, source))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    headers.sort();
    for file in headers.iter().chain(sources) {
        (file.file_name(), read(file)?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Without symbolic links and dots where possible: some compilers shorten paths by their text.
fn sources_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/targets");
    folder.canonicalize().unwrap_or(folder)
}

/// `test-targets` in cargo's target folder: the one that the running test lies in.
fn output_folder() -> PathBuf {
    let from_test = env::current_exe().ok().and_then(|exe| {
        let folder = exe
            .ancestors()
            .find(|folder| folder.join("CACHEDIR.TAG").is_file())?;
        Some(folder.to_owned())
    });
    let folder = from_test.or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
    folder
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
        .join("test-targets")
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = env::temp_dir().join(format!("testkit-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn flags_come_from_the_first_line_only() {
        assert_eq!(flags(b"// cc: -O2 -pthread\nint x;"), ["-O2", "-pthread"]);
        assert!(flags(b"int x;\n// cc: -O2\n").is_empty());
        assert!(flags(b"").is_empty());
    }

    #[test]
    fn a_changed_source_or_header_is_a_new_program_and_an_unchanged_one_is_kept() {
        let folder = Folder::new("rebuild");
        let build = || build(&folder.0, "t", &folder.0.join("out")).unwrap();
        folder.write(
            "t.c",
            "// cc: -O0\n#include \"t.h\"\nint main(void) { return R; }\n",
        );
        folder.write("t.h", "#define R 3\n");
        let first = build();
        assert_eq!(Command::new(&first).status().unwrap().code(), Some(3));
        assert_eq!(build(), first);
        folder.write("t.h", "#define R 4\n");
        let second = build();
        assert_ne!(second, first);
        assert_eq!(Command::new(&second).status().unwrap().code(), Some(4));
        let left: Vec<_> = fs::read_dir(second.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "scratch files stay behind: {left:?}");
    }

    #[test]
    fn sources_of_one_name_are_one_program() {
        let folder = Folder::new("pair");
        folder.write(
            "t.c",
            "int five(void);\nint main(void) { return five(); }\n",
        );
        folder.write(
            "t.S",
            ".globl five\nfive: mov $5, %eax\nret\n.section .note.GNU-stack,\"\",@progbits\n",
        );
        let program = build(&folder.0, "t", &folder.0.join("out")).unwrap();
        assert_eq!(Command::new(program).status().unwrap().code(), Some(5));
    }

    #[test]
    fn parallel_builds_agree() {
        let folder = Folder::new("parallel");
        folder.write("t.c", "int main(void) { return 6; }\n");
        let programs: Vec<PathBuf> = std::thread::scope(|scope| {
            let builds: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| build(&folder.0, "t", &folder.0.join("out")).unwrap()))
                .collect();
            builds
                .into_iter()
                .map(|build| build.join().unwrap())
                .collect()
        });
        assert!(programs.iter().all(|program| *program == programs[0]));
        assert_eq!(Command::new(&programs[0]).status().unwrap().code(), Some(6));
    }

    #[test]
    fn what_can_not_be_built_says_so() {
        let folder = Folder::new("broken");
        folder.write("t.c", "this is not C\n");
        let build = |name| build(&folder.0, name, &folder.0.join("out")).unwrap_err();
        assert!(matches!(build("none"), Error::NoSource { .. }));
        let Error::Compile { output, .. } = build("t") else {
            panic!("it compiled")
        };
        assert!(output.contains("t.c"), "{output}");
    }
}
