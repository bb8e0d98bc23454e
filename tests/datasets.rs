//! Data files of any size: the first task comes at once, memory stays flat, broken files are named.
#![allow(clippy::disallowed_methods, reason = "tests write the files that they read")]

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
    time::Instant,
};

use futures::{StreamExt, TryStreamExt};
use rollhouse::{
    config::{Document, Layer, Reader, Select},
    taskset::{
        PythonRandom, Task, Taskset, TasksetSize,
        dataset::{Look, Order, Row, Source, Table},
        select,
    },
    tasksets::find,
};
use serde_json::json;

fn gsm8k(path: &Path) -> Arc<dyn Taskset> {
    let layer = Layer::from_json("arguments", &json!({"path": path.to_str().unwrap()}).to_string()).unwrap();
    let mut reader = Reader::new(Document::new([layer]));
    (find("gsm8k").unwrap().open)(&mut reader.root()).unwrap()
}

fn write_rows(path: &Path, count: u64) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for row in 0..count {
        let question = format!("How much is {row} and one? {}", "Think it over. ".repeat(12));
        serde_json::to_writer(&mut file, &json!({"question": question, "answer": format!("#### {}", row + 1)}))
            .unwrap();
        file.write_all(b"\n").unwrap();
    }
}

/// Most memory this process has had, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn the_first_task_of_a_large_file_comes_at_once_and_memory_stays_flat() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.jsonl");
    write_rows(&path, 100_000);
    let before = peak_memory();

    let begun = Instant::now();
    let taskset = gsm8k(&path);
    assert_eq!(taskset.size(), TasksetSize::Unknown);
    let one = Select { limit: Some(1), ..Select::default() };
    let tasks: Vec<Task> = select(&*taskset, &one).unwrap().try_collect().await.unwrap();
    assert_eq!(tasks[0].data.text("answer"), Some("1"));
    let first = begun.elapsed();

    let begun = Instant::now();
    let passed = taskset.tasks().take(30_000).try_fold(0_u64, |count, _| async move { Ok(count + 1) }).await;
    assert_eq!(passed, Ok(30_000));
    // Held against the machine's own pace, which other work may slow.
    assert!(first < begun.elapsed() / 5, "the first task came after {first:?}");
    let grown = peak_memory() - before;
    assert!(grown < 10, "{grown} MiB for a file of 24 MiB");
}

/// The column `n` of the rows in an order, as text.
fn numbers(sources: &[Source], order: Order) -> Result<Vec<String>, String> {
    let rows = Table::ordered(sources.to_vec(), order).rows;
    rows.map(|row| {
        let (_, row) = row.map_err(|error| error.to_string())?;
        Ok(row.values["n"].as_str().map_or_else(|| row.values["n"].to_string(), str::to_owned))
    })
    .collect()
}

/// The same hundred rows in three formats and over two files.
fn hundred(folder: &Path) -> Vec<Vec<Source>> {
    let file = |name: &str, lines: Vec<String>| {
        std::fs::write(folder.join(name), lines.join("\n")).unwrap();
        Source::File(folder.join(name))
    };
    let lines = |from: usize, to: usize| (from..to).map(|n| json!({"n": n, "é": "x".repeat(n)}).to_string()).collect();
    let mut table = vec!["n,text".to_owned()];
    table.extend((0..100).map(|n| format!("{n},\"a\n{}\"", "é".repeat(n))));
    let inline = (0..100).map(|n| json!({"n": n}).as_object().unwrap().clone());
    vec![
        vec![file("a.jsonl", lines(0, 60)), file("b.jsonl", lines(60, 100))],
        vec![file("all.csv", table)],
        vec![Source::Rows { name: "rows".into(), rows: inline.collect() }],
    ]
}

#[test]
fn a_shuffle_is_that_of_python_in_every_format_and_is_cut_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let shuffled = |count: u64, seed| {
        let mut positions: Vec<u64> = (0..count).collect();
        PythonRandom::new(seed).shuffle(&mut positions);
        positions
    };
    let texts = |positions: &[u64]| positions.iter().map(u64::to_string).collect::<Vec<_>>();
    let even: Look = Arc::new(|row: &mut Row| {
        let number = row.values["n"].as_str().map_or_else(|| row.values["n"].to_string(), str::to_owned);
        row.values.insert("seen".to_owned(), true.into());
        Ok(number.parse::<u64>().unwrap().is_multiple_of(2))
    });
    for sources in hundred(folder.path()) {
        let all = texts(&shuffled(100, 7));
        assert_eq!(numbers(&sources, Order { shuffle: Some(7), ..Order::default() }).unwrap(), all);
        assert_eq!(numbers(&sources, Order { shuffle: Some(7), limit: Some(5), look: None }).unwrap(), all[..5]);
        let few = Order { shuffle: Some(1), limit: Some(3), look: Some(Arc::clone(&even)) };
        let kept: Vec<u64> = shuffled(50, 1).iter().take(3).map(|position| position * 2).collect();
        assert_eq!(numbers(&sources, few).unwrap(), texts(&kept));
        let plainly = Order { limit: Some(4), look: Some(Arc::clone(&even)), shuffle: None };
        assert_eq!(numbers(&sources, plainly).unwrap(), ["0", "2", "4", "6"]);
        let looked = Order { shuffle: Some(1), look: Some(Arc::clone(&even)), limit: None };
        let mut rows = Table::ordered(sources.clone(), looked).rows;
        assert!(rows.all(|row| row.unwrap().1.values["seen"] == json!(true)), "a row is looked at when it is given");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn a_shuffle_of_parquet_is_that_of_python_too() {
    let vector = Source::File(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/gsm8k.parquet"));
    let ids = |order| {
        let rows = Table::ordered(vec![vector.clone()], order).rows;
        rows.map(|row| row.unwrap().1.number).collect::<Vec<_>>()
    };
    let mut positions: Vec<u64> = (1..=7).collect();
    PythonRandom::new(3).shuffle(&mut positions);
    assert_eq!(ids(Order { shuffle: Some(3), ..Order::default() }), positions);
    assert_eq!(ids(Order { shuffle: Some(3), limit: Some(2), look: None }), positions[..2]);
}

#[test]
fn a_shuffle_of_a_large_file_holds_places_not_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.jsonl");
    write_rows(&path, 100_000);
    let before = peak_memory();
    let order = Order { shuffle: Some(0), ..Order::default() };
    let read = Table::ordered(vec![Source::File(path)], order).rows.take(1000).filter(Result::is_ok).count();
    assert_eq!(read, 1000);
    let grown = peak_memory() - before;
    assert!(grown < 15, "{grown} MiB for a file of 24 MiB");
}

#[test]
fn a_filter_that_fails_names_the_row() {
    let folder = tempfile::tempdir().unwrap();
    for shuffle in [None, Some(0)] {
        for sources in hundred(folder.path()) {
            let look: Look =
                Arc::new(|row: &mut Row| if row.values["n"] == "x" { Ok(true) } else { Err("bad".to_owned()) });
            let error = numbers(&sources, Order { look: Some(look), shuffle, limit: None }).unwrap_err();
            assert!(error.starts_with(&sources[0].name()) && error.ends_with(": bad"), "{error}");
        }
    }
}

#[tokio::test]
async fn csv_rows_are_tasks_and_a_ragged_one_is_named_with_its_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, "\u{feff}question,answer\r\n\"1, 2?\",#### 3\r\n4?,\"#### 4\"\r\n").unwrap();
    let tasks: Vec<Task> = gsm8k(&path).tasks().try_collect().await.unwrap();
    let answers: Vec<_> = tasks.iter().map(|task| task.data.text("answer").unwrap()).collect();
    assert_eq!(answers, ["3", "4"]);
    std::fs::write(&path, "question,answer\n1?\n").unwrap();
    let error = gsm8k(&path).tasks().next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("rows.csv:2: column 2 (`answer`) is missing"), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_dropped_midway_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    write_rows(&path, 1000);
    let taskset = gsm8k(&path);
    for taken in [1, 2, 300] {
        let tasks: Vec<_> = taskset.tasks().take(taken).collect().await;
        assert!(tasks.len() == taken && tasks.iter().all(Result::is_ok));
    }
}

#[cfg(not(feature = "parquet"))]
#[tokio::test]
async fn without_the_feature_parquet_is_refused_by_name() {
    let error = gsm8k(Path::new("tests/vectors/gsm8k.parquet")).tasks().next().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("build with `--features parquet`"), "{error}");
}

#[cfg(feature = "parquet")]
#[tokio::test]
async fn parquet_rows_are_read_over_row_groups() {
    let vector = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/gsm8k.parquet");
    let tasks: Vec<Task> = gsm8k(&vector).tasks().try_collect().await.unwrap();
    let read: Vec<_> = tasks.iter().map(|task| (task.data.id.as_deref(), task.data.text("answer"))).collect();
    let expected = ["0", "2", "4", "6", "8", "10", "12"].map(Some);
    let ids = ["0", "1", "2", "3", "4", "5", "6"].map(Some);
    assert_eq!(read, ids.into_iter().zip(expected).collect::<Vec<_>>());
    assert!(tasks[3].data.opening()[1].text().contains("What is 3 + 3? 🙂"));

    let rows: Vec<_> = rollhouse::taskset::dataset::parquet::open(&vector).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows[2].values["tags"], json!(["sum", "2"]));
    assert_eq!(rows[3].values["tags"], json!(null));
    assert_eq!(rows[3].values["level"], json!(1.5));
}

#[cfg(feature = "parquet")]
#[tokio::test]
async fn a_broken_parquet_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.parquet");
    let whole = std::fs::read("tests/vectors/gsm8k.parquet").unwrap();
    let error = async || match gsm8k(&path).tasks().try_collect::<Vec<_>>().await {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    };
    std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    assert!(error().await.starts_with(&format!("cannot read {}: ", path.display())), "{}", error().await);
    let mut spoiled = whole.clone();
    spoiled[8..200].fill(0xff);
    std::fs::write(&path, spoiled).unwrap();
    assert!(error().await.contains("broken.parquet:1: "), "{}", error().await);
}

#[tokio::test]
async fn what_is_no_file_of_rows_is_named_and_nothing_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("folder.jsonl")).unwrap();
    std::fs::write(path("empty.jsonl"), "\n\n").unwrap();
    std::fs::write(path("rows.xlsx"), "question,answer\n").unwrap();
    std::fs::write(path("rows.jsonl.gz"), "x").unwrap();
    let made = std::process::Command::new("mkfifo").arg(path("pipe.jsonl")).status().unwrap();
    assert!(made.success());
    for (name, message) in [
        ("folder.jsonl", "folder.jsonl: it is a directory; name a data file"),
        ("pipe.jsonl", "pipe.jsonl: it is not a regular file; name a data file"),
        ("empty.jsonl", "there are no rows in "),
        ("rows.xlsx", "expected a file that ends in .jsonl, .ndjson, .json, .csv, .tsv or .parquet"),
        ("rows.jsonl.gz", "it is compressed; unpack it first"),
        ("missing.jsonl", "missing.jsonl: No such file or directory"),
    ] {
        let first = gsm8k(&path(name)).tasks().next().await.unwrap();
        let error = first.expect_err(name).to_string();
        assert!(error.contains(message), "{error}");
    }
}
