//! What it costs to start and end a program, with and without a box.

use rollhouse::runtime::{Child, Limits, Program, Sandbox, block_on};

fn main() {
    divan::main();
}

fn to_its_end(program: &Program) {
    let program = program.clone();
    let status = block_on(async { Child::start(program).await.expect("it starts").wait().await.expect("it ends") });
    assert!(status.expect("the thread of the processes lives").success());
}

fn program() -> Program {
    Program { arguments: vec!["-c".into(), "exit 0".into()], ..Program::new("/bin/sh") }
}

#[divan::bench(sample_count = 50)]
fn subprocess(bencher: divan::Bencher<'_, '_>) {
    bencher.bench_local(|| to_its_end(&program()));
}

/// With control groups for each kind of limit, where this user may make them, and a route.
#[divan::bench(sample_count = 50)]
fn sandbox(bencher: divan::Bencher<'_, '_>) {
    let sandbox = Sandbox {
        rollhouse: env!("CARGO_BIN_EXE_rollhouse").into(),
        limits: Limits { memory: Some(1 << 30), cpus: Some(1.0), ..Limits::default() },
        routes: vec!["127.0.0.1:8000".parse().expect("a route")],
        ..Sandbox::new()
    };
    let program = sandbox.enclose(program());
    bencher.bench_local(|| to_its_end(&program));
}
