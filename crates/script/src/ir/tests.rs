use super::*;

fn count(insts: Vec<Inst>, term: Term) -> Program {
    let action = Action {
        points: vec![PointId(0)],
        blocks: vec![Block { insts, term }],
        regs: 2,
        buffers: vec![8],
        fuel: 1,
        hoist: vec![],
    };
    let field = Field {
        offset: 0,
        size: 8,
        ty: FieldType::Int {
            bytes: 4,
            signed: false,
        },
    };
    let value = MapValue::Agg {
        agg: Agg::Count,
        signed: true,
    };
    let map = Map {
        name: "@".into(),
        key: vec![field],
        key_size: 8,
        value,
        capacity: 16,
        kind: MapKind::Hash,
    };
    let function = Function::Symbol {
        name: "f".into(),
        offset: 0,
        demangled: false,
    };
    let point = Point::Uprobe {
        file: "x".into(),
        function,
        spelling: "uprobe:x:f".into(),
    };
    Program {
        maps: vec![map],
        points: vec![point],
        actions: vec![action],
        ..Program::default()
    }
}

fn by_tid() -> Vec<Inst> {
    let tid = Inst::Fact {
        dst: Reg(0),
        fact: Fact::Tid,
    };
    vec![
        tid,
        Inst::Aggregate {
            map: MapId(0),
            key: Key::Word(Value::Reg(Reg(0))),
            agg: Agg::Count,
            value: Value::Imm(1),
        },
    ]
}

#[test]
fn a_count_by_thread_is_accepted_and_cheap() {
    let program = count(by_tid(), Term::Return);
    assert_eq!(verify(&program), Ok(()));
    let cheap = program.actions[0].cheap().expect("cheap");
    assert_eq!(cheap.key, CheapKey::Fact(Fact::Tid));
    assert_eq!(cheap.value, CheapKey::Constant(1));
}

#[test]
fn broken_rules_are_found() {
    let rule = |program: &Program| verify(program).expect_err("accepted").rule;
    let mut insts = by_tid();
    insts.remove(0);
    assert!(rule(&count(insts, Term::Return)).contains("%0 is read before it is assigned"));
    let load = Inst::Load {
        dst: Reg(0),
        src: Place {
            buf: BufId(0),
            offset: 0,
        },
    };
    assert!(rule(&count(vec![load], Term::Return)).contains("before it is filled"));
    let store = Inst::Store {
        dst: Place {
            buf: BufId(0),
            offset: 8,
        },
        src: Value::Imm(1),
    };
    assert!(rule(&count(vec![store], Term::Return)).contains("outside 8 bytes"));
    assert!(rule(&count(vec![], Term::Jump(BlockId(0)))).contains("entry"));
    let mut program = count(vec![], Term::Jump(BlockId(1)));
    program.actions[0].blocks.push(Block {
        insts: vec![],
        term: Term::Jump(BlockId(1)),
    });
    assert!(rule(&program).contains("without loop bound"));
    program.actions[0].blocks[1].term = Term::Loop(BlockId(1));
    assert_eq!(verify(&program), Ok(()));
}

#[test]
fn operators_never_trap() {
    assert_eq!(BinOp::SDiv.eval(5, 0), 1);
    assert_eq!(BinOp::URem.eval(5, 0), 1);
    assert_eq!(BinOp::SDiv.eval(i64::MIN, -1), i64::MIN);
    assert_eq!(BinOp::SRem.eval(i64::MIN, -1), 0);
    assert_eq!(BinOp::SDiv.eval(-7, 2), -3);
    assert_eq!(BinOp::UDiv.eval(-1, 2), i64::MAX);
    assert_eq!(BinOp::Shl.eval(1, 64), 1);
    assert_eq!(BinOp::AShr.eval(-8, 1), -4);
    assert_eq!(BinOp::LShr.eval(-8, 60), 15);
    assert_eq!(BinOp::ULt.eval(1, -1), 1);
    assert_eq!(BinOp::SLt.eval(1, -1), 0);
    assert_eq!(
        Width {
            bytes: 1,
            signed: true
        }
        .extend(0x180),
        -128
    );
    assert_eq!(
        Width {
            bytes: 4,
            signed: false
        }
        .extend(-1),
        0xffff_ffff
    );
}
