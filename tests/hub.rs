//! Data sets of the hub, from a hub on this machine: what is not in the cache is downloaded into it, whole or not at all, in
//! the layout of `huggingface_hub`; refusals say what to change; no token is shown or sent to strangers.
#![allow(clippy::disallowed_methods, reason = "the tests listen as a hub and look into the cache")]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use rollhouse::{
    config::Secret,
    taskset::dataset::hub::{Hub, HubCache, HubDataset},
};
use serde_json::json;
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CARD: &str =
    "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: rows/*.jsonl\n---\n# Rows\n";

/// A request as it came: its line, then its headers in lower case.
type Requests = Arc<Mutex<Vec<(String, BTreeMap<String, String>)>>>;

/// What the hub does with files.
#[derive(Clone, Copy, Default)]
struct Manners {
    /// How many answers end in the middle.
    cuts: usize,
    /// How many answers have a wrong byte.
    spoils: usize,
    /// Whether `Range` is passed over.
    no_ranges: bool,
}

struct FakeHub {
    address: String,
    requests: Requests,
}

impl FakeHub {
    /// A hub with `o/n` (files: a card and two of rows), `o/gated`, and nothing else.
    fn open(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Requests::default();
        let manners = Arc::new(Mutex::new(manners));
        let seen = Arc::clone(&requests);
        // Ends with the process: it only waits.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, manners) = (Arc::clone(&seen), Arc::clone(&manners));
                thread::spawn(move || answer(stream, &seen, &manners));
            }
        });
        Self { address, requests }
    }

    fn asked(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|(line, _)| line.clone()).collect()
    }

    fn hub(&self, cache: &Path) -> Hub {
        Hub::at(&self.address, HubCache::at(cache), Some(Secret::new("hf_secret_token".to_owned())))
    }
}

fn rows(number: usize) -> String {
    (0..2000).map(|row| format!("{{\"row\": {row}, \"file\": {number}}}\n")).collect()
}

fn files() -> Vec<(&'static str, String)> {
    vec![("README.md", CARD.to_owned()), ("rows/a.jsonl", rows(0)), ("rows/b.jsonl", rows(1)), ("other.jsonl", rows(2))]
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(stream: TcpStream, seen: &Requests, manners: &Mutex<Manners>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let Some((first, headers)) = lines.split_first() else { return };
    let headers: BTreeMap<String, String> = headers
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    seen.lock().unwrap().push((first.clone(), headers.clone()));
    let path = first.split(' ').nth(1).unwrap_or_default();
    let mut out = stream;
    let mut say = |status: &str, more: &str, body: &[u8], announced: usize| {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {announced}\r\n{more}\r\n");
        let _ = out.write_all(head.as_bytes()).and_then(|()| out.write_all(body));
    };
    if path.starts_with("/api/datasets/o/n/revision/main?") {
        let siblings: Vec<_> = files()
            .iter()
            .map(|(name, text)| match *name {
                "README.md" => json!({"rfilename": name, "size": text.len(), "blobId": "ab".repeat(20)}),
                _ => json!({"rfilename": name, "size": text.len(), "blobId": "cd".repeat(20),
                            "lfs": {"sha256": sha256(text), "size": text.len()}}),
            })
            .collect();
        let body = json!({"sha": COMMIT, "siblings": siblings}).to_string();
        say("200 OK", "", body.as_bytes(), body.len());
    } else if path.starts_with("/api/datasets/o/n/revision/") {
        say("404 Not Found", "X-Error-Code: RevisionNotFound\r\n", b"", 0);
    } else if path.starts_with("/api/datasets/o/gated/") {
        say("403 Forbidden", "X-Error-Code: GatedRepo\r\n", b"", 0);
    } else if let Some(name) = path.strip_prefix(&format!("/datasets/o/n/resolve/{COMMIT}/")) {
        // As the hub does it: the content is somewhere else.
        say("302 Found", &format!("Location: /cdn/{name}?signature=x\r\n"), b"", 0);
    } else if let Some(name) = path.strip_prefix("/cdn/").and_then(|name| name.strip_suffix("?signature=x")) {
        let Some((_, text)) = files().into_iter().find(|(known, _)| *known == name) else { return };
        let mut manners = manners.lock().unwrap();
        let from = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let from: usize = from.filter(|_| !manners.no_ranges).unwrap_or(0);
        let mut body = text.into_bytes().split_off(from);
        let announced = body.len();
        if name != "README.md" && manners.spoils > 0 {
            manners.spoils -= 1;
            body[0] = b'x';
        } else if name != "README.md" && manners.cuts > 0 {
            manners.cuts -= 1;
            body.truncate(announced / 2);
        }
        say(if from > 0 { "206 Partial Content" } else { "200 OK" }, "", &body, announced);
    } else {
        say("404 Not Found", "X-Error-Code: RepoNotFound\r\n", b"", 0);
    }
}

fn dataset(repo: &str, config: &str, split: &str, revision: &str) -> HubDataset {
    let owned = str::to_owned;
    HubDataset { repo: owned(repo), config: owned(config), split: owned(split), revision: owned(revision) }
}

fn wanted() -> HubDataset {
    dataset("o/n", "main", "test", "main")
}

fn refused(hub: &Hub, which: &HubDataset) -> String {
    hub.dataset(which).err().map(|error| error.to_string()).unwrap_or_default()
}

#[track_caller]
fn is_whole(cache: &Path) {
    let folder = cache.join("datasets--o--n");
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let snapshot = folder.join("snapshots").join(COMMIT);
    for (name, text) in files().into_iter().filter(|(name, _)| *name != "other.jsonl") {
        assert_eq!(fs::read_to_string(snapshot.join(name)).unwrap(), text, "{name}");
        let blob = if name == "README.md" { "ab".repeat(20) } else { sha256(&text) };
        let up = "../".repeat(2 + name.matches('/').count());
        assert_eq!(fs::read_link(snapshot.join(name)).unwrap(), Path::new(&format!("{up}blobs/{blob}")));
    }
    assert!(!snapshot.join("other.jsonl").exists(), "only the files of the split are fetched");
    let blobs: Vec<_> = fs::read_dir(folder.join("blobs")).unwrap().map(|blob| blob.unwrap().file_name()).collect();
    assert_eq!(blobs.len(), 3, "{blobs:?}");
}

#[test]
fn what_is_not_in_the_cache_is_downloaded_once_and_found_by_everyone_afterwards() {
    let (fake, cache) = (FakeHub::open(Manners::default()), tempfile::tempdir().unwrap());
    let hub = fake.hub(cache.path());
    let files = hub.dataset(&wanted()).unwrap();
    let snapshot = cache.path().join("datasets--o--n/snapshots").join(COMMIT);
    assert_eq!(files, [snapshot.join("rows/a.jsonl"), snapshot.join("rows/b.jsonl")]);
    is_whole(cache.path());
    let asked = fake.asked().len();
    assert_eq!(hub.dataset(&wanted()).unwrap(), files);
    assert_eq!(hub.clone().offline().dataset(&wanted()).unwrap(), files);
    assert_eq!(HubCache::at(cache.path()).dataset(&wanted()).unwrap(), files);
    assert_eq!(fake.asked().len(), asked, "nobody asks for what is there");
}

#[test]
fn a_declared_taskset_runs_on_a_data_set_of_the_hub_and_whoever_waits_sees_it_come() {
    let fake = FakeHub::open(Manners { cuts: 1, ..Manners::default() });
    let folder = program::Folder::new();
    folder.write(
        "my-task/taskset.toml",
        "prompt = \"x {{ row }}\"\nanswer = \"{{ row }}\"\n[data]\ndataset = \"o/n\"\nsubset = \"main\"\nsplit = \"test\"\n\
         [[reward]]\nscorer = \"exact\"\n",
    );
    let run = |words: &[&str]| {
        let mut command = folder.command(words);
        command
            .env("HF_ENDPOINT", &fake.address)
            .env("HF_HOME", folder.path().join("hub"))
            .env("HF_TOKEN", "hf_secret_token");
        program::Done::of(command.output().unwrap())
    };
    let first = run(&["eval", "./my-task", "-n", "2", "--json"]).expect(0);
    assert_eq!(first.json()["scored"], 2);
    assert!(!first.stderr.contains("hf_secret_token"), "{first:#?}");
    first.says("downloading data set o/n: rows/a.jsonl (0.0 MiB)").says("; trying again");
    let again = run(&["eval", "./my-task", "-n", "2"]).expect(0);
    assert!(!again.stderr.contains("downloading"), "{again:#?}");
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_ended() {
    for no_ranges in [false, true] {
        let manners = Manners { cuts: 1, no_ranges, ..Manners::default() };
        let (fake, cache) = (FakeHub::open(manners), tempfile::tempdir().unwrap());
        fake.hub(cache.path()).dataset(&wanted()).unwrap();
        is_whole(cache.path());
        let ranges = |(_, headers): &(_, BTreeMap<String, String>)| headers.get("range").cloned();
        let ranges: Vec<String> = fake.requests.lock().unwrap().iter().filter_map(ranges).collect();
        let half = rows(0).len() / 2;
        assert!(!ranges.is_empty() && ranges.iter().all(|range| *range == format!("bytes={half}-")), "{ranges:?}");
    }
}

#[test]
fn what_arrives_damaged_is_fetched_again() {
    let manners = Manners { spoils: 1, ..Manners::default() };
    let (fake, cache) = (FakeHub::open(manners), tempfile::tempdir().unwrap());
    fake.hub(cache.path()).dataset(&wanted()).unwrap();
    is_whole(cache.path());
}

#[test]
fn what_a_killed_download_left_is_never_taken_for_whole() {
    let (fake, cache) = (FakeHub::open(Manners::default()), tempfile::tempdir().unwrap());
    let folder = cache.path().join("datasets--o--n");
    // Killed while it wrote the second file, and once more while it made the links.
    fs::create_dir_all(folder.join("blobs")).unwrap();
    fs::write(folder.join("blobs").join(format!("{}.incomplete", sha256(&rows(1)))), &rows(1)[..100]).unwrap();
    let snapshot = folder.join("snapshots").join(COMMIT);
    fs::create_dir_all(snapshot.join("rows")).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    fs::write(folder.join("blobs").join(sha256(&rows(0))), rows(0)).unwrap();
    std::os::unix::fs::symlink(format!("../../../blobs/{}", sha256(&rows(0))), snapshot.join("rows/a.jsonl")).unwrap();
    let locks = cache.path().join(".locks/datasets--o--n");
    fs::create_dir_all(&locks).unwrap();
    fs::write(locks.join(format!("{COMMIT}.linking")), "").unwrap();
    let hub = fake.hub(cache.path());
    assert!(refused(&hub.clone().offline(), &wanted()).contains("HF_HUB_OFFLINE is set"));
    assert_eq!(hub.dataset(&wanted()).unwrap().len(), 2);
    is_whole(cache.path());
    assert!(fake.asked().iter().all(|line| !line.contains("cdn/rows/a.jsonl")), "the first was there");
}

#[test]
fn many_at_once_download_each_file_once() {
    let (fake, cache) = (FakeHub::open(Manners::default()), tempfile::tempdir().unwrap());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fake.hub(cache.path()).dataset(&wanted()).unwrap().len(), 2));
        }
    });
    is_whole(cache.path());
    let contents = fake.asked().iter().filter(|line| line.contains("/cdn/rows/")).count();
    assert_eq!(contents, 2);
}

#[test]
fn a_refusal_says_what_to_change_and_never_the_token() {
    let (fake, cache) = (FakeHub::open(Manners::default()), tempfile::tempdir().unwrap());
    let hub = fake.hub(cache.path());
    let nobody = Hub::at(&fake.address, HubCache::at(cache.path()), None);
    let cases = [
        (&hub, dataset("o/gated", "main", "test", "main"), "`o/gated` is gated: accept its terms at http://"),
        (&nobody, dataset("o/gated", "main", "test", "main"), "then set HF_TOKEN"),
        (&hub, dataset("o/none", "main", "test", "main"), "there is no data set `o/none` at http://"),
        (&hub, dataset("o/n", "main", "test", "v9"), "has no revision `v9`"),
        (&hub, dataset("o/n", "socratic", "test", "main"), "there is no configuration `socratic`; name one of main"),
        (&hub, dataset("o/n", "main", "train", "main"), "has no split `train`; name one of test"),
        (&hub, dataset("../x", "main", "train", "main"), "is no data set on the hub"),
    ];
    for (hub, which, expected) in cases {
        let message = refused(hub, &which);
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("hf_secret_token"), "{message}");
    }
    let sent = fake
        .requests
        .lock()
        .unwrap()
        .iter()
        .any(|(_, headers)| headers.get("authorization").is_some_and(|value| value == "Bearer hf_secret_token"));
    assert!(sent, "the token is for the hub");
}

#[test]
fn without_a_network_the_message_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub::at(&format!("http://{closed}"), HubCache::at(cache.path()), None);
    let message = refused(&hub, &wanted());
    assert!(message.contains("check the network") && message.contains("HF_ENDPOINT"), "{message}");
    let message = refused(&hub.offline(), &wanted());
    assert!(message.contains("HF_HUB_OFFLINE is set"), "{message}");
}
