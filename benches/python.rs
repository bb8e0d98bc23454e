//! What a call of a Python function costs beyond the function: `cargo bench --bench python`.
//!
//! Needs a Python interpreter (`ROLLHOUSE_TEST_PYTHON`, else `python3`).

use std::{path::PathBuf, sync::OnceLock, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use futures::future::join_all;
use rollhouse::taskset::python::{Call, Interpreter, Lane, WorkerSettings, Workers};
use serde_json::Value;

const MODULE: &str = "
def open(script, arguments): pass
async def later(body): return 1.0
def handle(op, body): return later(body) if op == 'later' else 1.0
";

fn main() {
    divan::main();
}

fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    WORKERS.get_or_init(|| {
        let folder = std::env::temp_dir();
        let python = std::env::var_os("ROLLHOUSE_TEST_PYTHON").map(PathBuf::from);
        Workers::new(WorkerSettings {
            name: "bench".to_owned(),
            interpreter: Interpreter::find(python.as_deref(), &folder, &[]).unwrap(),
            script: folder.join("taskset.py"),
            module: MODULE,
            arguments: Value::Null,
            count: 2,
            start_deadline: WorkerSettings::START_DEADLINE,
            memory_limit: WorkerSettings::MEMORY_LIMIT,
        })
    })
}

fn call<'a>(op: &'a str, body: &'a [u8], lane: Lane) -> Call<'a> {
    Call { op, body, deadline: Duration::from_secs(60), lane }
}

/// One call after another; the body is text of so many bytes.
#[divan::bench(args = [10, 10_000, 1_000_000])]
fn alone(bencher: Bencher, bytes: usize) {
    let body = format!("\"{}\"", "x".repeat(bytes));
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| {
        let value: f64 = workers().call_blocking(call("now", body.as_bytes(), Lane::Exclusive)).unwrap();
        value
    });
}

/// A hundred calls in flight.
#[divan::bench(args = [Lane::Exclusive, Lane::Shared])]
fn hundred(bencher: Bencher, lane: Lane) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let op = if lane == Lane::Shared { "later" } else { "now" };
    bencher.counter(ItemsCount::new(100_u32)).bench_local(|| {
        let calls = (0..100).map(|_| workers().call::<f64>(call(op, b"[1, 2, 3]", lane)));
        runtime.block_on(join_all(calls))
    });
}
