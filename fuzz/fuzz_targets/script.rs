//! Compiles any text as a script: it is an error, or a program that every verifier accepts.
#![no_main]

use lancet_jit::JitError;
use lancet_jit::script::{Scripts, Shared};
use lancet_script::{Options, Source, ir};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let source = Source { name: "fuzz", text };
    let options = Options { params: vec!["7".into(), "word".into()], ..Options::default() };
    let program = match lancet_script::compile(source, &options) {
        Ok(program) => program,
        Err(diagnostics) => {
            assert!(!diagnostics.is_empty());
            diagnostics.iter().for_each(|one| assert!(!one.render(source).is_empty()));
            return;
        }
    };
    if let Err(error) = ir::verify(&program) {
        panic!("{error}\n{program}");
    }
    let in_target = |number: usize| {
        program.actions[number].points.iter().any(|p| program.points[p.index()].in_target())
    };
    // Maps without room have the same code.
    let Some(shared) = Shared::new(&program, |_| false, in_target, 4) else { return };
    match Scripts::compile(&program, in_target, shared, 4) {
        Ok(_) | Err(JitError::Script { .. }) => {}
        Err(error) => panic!("{error}\n{program}"),
    }
});
