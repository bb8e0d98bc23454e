//! A tiny HTTP server on loopback that follows a script byte by byte, faults included.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::disallowed_methods,
    reason = "each test file uses a part of it; tests run servers of their own"
)]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What the server does with a connection.
#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Never anything again.
    Hang,
    Close,
    Reset,
}

type Handler = dyn Fn(&Request) -> Vec<Step> + Send + Sync;

/// Answers every request by its handler until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub requests: Arc<Mutex<Vec<Request>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub async fn start(handler: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), handler).await
    }

    pub async fn on(address: SocketAddr, handler: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&requests));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&handler), Arc::clone(&log)));
            }
        });
        Self { address, requests, _tasks: tasks }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn count(&self, path: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|request| request.path == path).count()
    }
}

async fn serve(stream: TcpStream, handler: Arc<Handler>, log: Arc<Mutex<Vec<Request>>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream).await {
        let steps = handler(&request);
        log.lock().unwrap().push(request);
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Wait(time) => tokio::time::sleep(time).await,
                Step::Hang => std::future::pending().await,
                Step::Close => return,
                Step::Reset => {
                    stream.get_ref().set_zero_linger().unwrap();
                    return;
                }
            }
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines.first()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { path, headers, body })
}

/// A whole answer with a body.
pub fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<Step> {
    let body = body.as_ref();
    let mut bytes = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    vec![Step::Send(bytes)]
}

/// The head of a stream that ends with the connection.
pub fn stream_head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec())
}

/// A plain good answer.
pub fn hello() -> Vec<Step> {
    answer(
        200,
        "",
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#,
    )
}
