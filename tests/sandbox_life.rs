//! A box lets out what it has a route for, and is gone with its owner, however that ends.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "tests make files, connections and processes of their own")]

mod boxes;

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use boxes::{as_nobody, groups_of, python_sandbox, said, sandbox, script, shell, start, wait};
use rollhouse::runtime::{Child, Limits, Program, Route, Stream, block_on};

/// A name of this machine that is no literal address, from its list of hosts.
fn name_of_this_machine() -> String {
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    let names = hosts.lines().filter(|line| line.starts_with("127.")).flat_map(|line| line.split_whitespace().skip(1));
    let mut names = names.filter(|name| !name.starts_with("localhost"));
    names.next().expect("a name beside localhost for 127.0.0.1 in /etc/hosts, such as that of the machine").to_owned()
}

/// Answers each connection once its request has ended, with what it was asked; `HTTP` in HTTP.
fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut asked = String::new();
                reader.read_line(&mut asked).unwrap();
                if asked.starts_with("GET") {
                    let mut host = String::new();
                    while host.trim() != "" || !asked.contains("Host") {
                        host.clear();
                        reader.read_line(&mut host).unwrap();
                        asked.push_str(&host);
                    }
                    let told = asked.lines().find(|line| line.starts_with("Host")).unwrap();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{told}", told.len());
                    stream.write_all(answer.as_bytes()).unwrap();
                } else {
                    reader.read_to_string(&mut asked).unwrap();
                    stream.write_all(asked.to_uppercase().as_bytes()).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                }
            });
        }
    });
}

#[test]
fn routes_lead_where_they_say_and_nowhere_else() {
    let text = r#"
import http.client, socket, sys
name, port, closed, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
def get(host):
    client = http.client.HTTPConnection(host, port)
    client.request("GET", "/")
    return client.getresponse().read().decode()
print(get("127.0.0.1"), get("localhost"), get(name), get(name.upper()))
print(socket.gethostbyname("model.example"), socket.gethostbyname("localhost"))

# One side ends, the other goes on: what was asked comes back whole.
client = socket.create_connection((name, port))
client.sendall(b"ask\n" + b"x" * 1000000)
client.shutdown(socket.SHUT_WR)
answer = b""
while piece := client.recv(65536): answer += piece
print(len(answer), answer[:4])

def fate(address):
    try:
        client = socket.create_connection(address, 30)
        print(client.recv(1), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
# Nobody listens there outside; no route leads there; a name that no one knows; an address that is the box's own now.
fate(("127.0.0.1", closed))
fate(("127.0.0.1", other))
fate(("model.example", 443))
def taken(address):
    try:
        socket.create_connection(address, 30)
    except ConnectionResetError:
        pass # Where nothing answers outside, the end may come before the beginning is told.
taken(("192.0.2.1", 80))
taken(("2001:db8::1", 80))
fate(("192.0.2.1", 81))
"#;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let [closed, other] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&closed, &other].map(|listener| listener.local_addr().unwrap().port());
    drop(closed);
    serve(listener);
    let name = name_of_this_machine();
    let mut sandbox = python_sandbox();
    let route = |host: &str, port| Route { host: host.to_owned(), port };
    sandbox.routes = vec![
        route("127.0.0.1", port),
        route("localhost", port),
        route(&name, port),
        route("127.0.0.1", ports[0]),
        route("model.example", 443),
        route("192.0.2.1", 80),
        route("2001:db8::1", 80),
    ];
    let told = said(&sandbox, script(text, &[&name, &port.to_string(), &ports[0].to_string(), &ports[1].to_string()]));
    let host = |name: &str| format!("Host: {name}:{port}");
    let expected = format!(
        "{} {} {} {}\n127.77.0.2 127.0.0.1\n1000004 b'ASK\\n'\nConnectionResetError\nConnectionRefusedError\n\
         ConnectionResetError\nConnectionRefusedError\n",
        host("127.0.0.1"),
        host("localhost"),
        host(&name),
        host(&name.to_uppercase()),
    );
    assert_eq!(told, expected);
}

#[test]
fn a_route_is_gone_with_its_box() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut sandbox = python_sandbox();
    sandbox.routes = vec![Route { host: "127.0.0.1".into(), port: address.port() }];
    let text = "import socket, sys, time\nclient = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
                client.sendall(b'here')\ntime.sleep(1000)";
    let child = start(&sandbox, script(text, &[&address.port().to_string()]));
    let (mut connection, _) = listener.accept().unwrap();
    connection.read_exact(&mut [0; 4]).unwrap();
    drop(child);
    // An end or a reset, but an end of it.
    assert_eq!(connection.read(&mut [0; 4]).unwrap_or(0), 0);
}

fn limits() -> Limits {
    Limits { memory: Some(256 << 20), cpus: Some(1.5), ..sandbox().limits }
}

#[test]
fn an_ended_box_leaves_nothing() {
    let nap = nap(1001);
    let sandbox = rollhouse::runtime::Sandbox { limits: limits(), ..sandbox() };
    // What it leaves behind ends with it.
    let ended = start(&sandbox, shell(&format!("sleep {nap} & setsid sleep {nap} & exit 3")));
    assert_eq!(wait(ended).status.code(), Some(3));
    assert_eq!(processes(&nap), 0);
    let mut dropped = start(&sandbox, shell(&format!("sleep {nap} & setsid sleep {nap} & echo ready; wait")));
    let mut output = fs::File::from(dropped.stdout.take().unwrap());
    output.read_exact(&mut [0; 6]).unwrap();
    drop(dropped);
    eventually("the processes are gone", || processes(&nap) == 0);
    eventually("the control groups are gone", || groups_of(std::process::id()).is_empty());
}

#[test]
fn a_start_that_is_given_up_leaves_nothing() {
    let nap = nap(1002);
    let program = rollhouse::runtime::Sandbox { limits: limits(), ..sandbox() }.enclose(shell(&format!("sleep {nap}")));
    block_on(async move {
        for patience in 0..20 {
            let _ = tokio::time::timeout(Duration::from_millis(patience), Child::start(program.clone())).await;
        }
    })
    .unwrap();
    eventually("the processes are gone", || processes(&nap) == 0);
    eventually("the control groups are gone", || groups_of(std::process::id()).is_empty());
}

/// The parent of the test below, in a process of its own.
#[test]
#[ignore = "started by another test"]
fn parent() {
    let folder = env::var_os("ROLLHOUSE_TEST_FOLDER").unwrap();
    let sandbox = rollhouse::runtime::Sandbox {
        limits: limits(),
        writable: vec![folder.into()],
        routes: vec!["192.0.2.1:80".parse().unwrap(), "127.0.0.1:1".parse().unwrap()],
        ..sandbox()
    };
    let nap = env::var("ROLLHOUSE_TEST_NAP").unwrap();
    let text = format!("sleep {nap} & setsid sleep {nap} & echo ready; wait");
    let child = start(&sandbox, Program { stdout: Stream::Inherited, ..shell(&text) });
    wait(child);
}

#[test]
fn killing_the_parent_leaves_no_process_mount_group_or_file() {
    let nap = nap(1003);
    let folder = tempfile::tempdir().unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let before = temporary_files();
    let mut parent = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "parent"])
        .env("ROLLHOUSE_TEST_FOLDER", folder.path())
        .env("ROLLHOUSE_TEST_NAP", &nap)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0);
    }
    eventually("both sleep", || processes(&nap) == 2);
    let id = parent.id();
    if nix::unistd::geteuid().is_root() {
        assert!(!groups_of(id).is_empty(), "it has control groups");
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_eq!(output.read_line(&mut line).unwrap(), 0, "nobody holds the other end");
    eventually("the processes are gone", || processes(&nap) == 0);
    eventually("the control groups are gone", || groups_of(id).is_empty());
    assert_eq!(fs::read_to_string("/proc/self/mounts").unwrap(), mounts);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let new: Vec<_> = temporary_files().into_iter().filter(|file| !before.contains(file)).collect();
    assert!(!new.iter().any(|name| name.contains("rollhouse") || name.contains("sandbox")), "{new:?}");
}

/// The same again as the user nobody.
#[test]
fn all_of_it_holds_for_an_unprivileged_user() {
    as_nobody();
}

fn temporary_files() -> Vec<String> {
    let entries = fs::read_dir(env::temp_dir()).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Seconds that nobody else sleeps, not even the same test as another user at the same time.
fn nap(test: u32) -> String {
    format!("{test}.{:07}", std::process::id())
}

/// How many processes sleep for this long.
fn processes(seconds: &str) -> usize {
    let wanted = format!("sleep\0{seconds}\0");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|line| line == wanted)).count()
}

/// Waits for what must come, with the patience that a loaded machine needs.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
