//! The hub over HTTP: what a data set consists of, and its files. This file is a door for HTTP: the client of `inference`
//! speaks with models and never follows a redirect; the hub keeps its files behind redirects.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, header};
use serde::Deserialize;

use super::{HubDataset, TasksetError};
use crate::config::Secret;

/// How long it may take to connect, and between two reads.
const CONNECT: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);

/// The hub, asked on behalf of a user.
pub(super) struct Web {
    client: Client,
    endpoint: Url,
    token: Option<Secret>,
}

/// A revision of a data set.
#[derive(Deserialize)]
pub(super) struct Info {
    /// The commit.
    pub(super) sha: String,
    #[serde(default, rename = "siblings")]
    pub(super) files: Vec<FileInfo>,
}

/// One of its files.
#[derive(Clone, Deserialize)]
pub(super) struct FileInfo {
    #[serde(rename = "rfilename")]
    pub(super) path: String,
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default, rename = "blobId")]
    blob: Option<String>,
    #[serde(default)]
    lfs: Option<LargeFile>,
}

#[derive(Clone, Deserialize)]
struct LargeFile {
    sha256: String,
}

/// Why a request failed.
pub(super) enum WebFault {
    /// Trying again may help: what happened.
    Passing(String),
    /// It will not.
    Lasting(TasksetError),
}

impl FileInfo {
    /// The name of its content in the cache: the hash that the hub knows it by.
    pub(super) fn hash(&self) -> Option<&str> {
        let hash = self.sha256().or(self.blob.as_deref())?;
        // It becomes the name of a file.
        (hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
    }

    /// SHA-256 of its content, of a large file.
    pub(super) fn sha256(&self) -> Option<&str> {
        self.lfs.as_ref().map(|lfs| lfs.sha256.as_str())
    }
}

impl Web {
    pub(super) fn new(endpoint: &str, token: Option<Secret>) -> Result<Self, TasksetError> {
        let wrong = |problem: String| {
            TasksetError::Source(format!("HF_ENDPOINT: `{endpoint}` is no address of a hub: {problem}"))
        };
        let url = Url::parse(endpoint).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("expected http:// or https://".to_owned()));
        }
        // Fails only when a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        #[expect(clippy::disallowed_methods, reason = "a door for HTTP: the hub redirects, see above")]
        let mut builder = Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(IDLE)
            .referer(false)
            .user_agent(concat!("rollhouse/", env!("CARGO_PKG_VERSION")));
        let loopback = url.host_str().is_some_and(|host| {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        });
        if loopback {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| wrong(error.to_string()))?;
        Ok(Self { client, endpoint: url, token })
    }

    /// What messages call the hub.
    pub(super) fn name(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// The commit of a revision and its files.
    pub(super) async fn info(&self, dataset: &HubDataset) -> Result<Info, WebFault> {
        let mut url = self.url(["api", "datasets"].into_iter().chain(dataset.repo.split('/')));
        extend(&mut url, ["revision", &dataset.revision]);
        url.set_query(Some("blobs=true"));
        let response = self.send(self.client.get(url), dataset).await?;
        response.json().await.map_err(|error| self.broken(&error))
    }

    /// The content of a file from a byte on; from the beginning where the hub cannot do that (status 200).
    pub(super) async fn file(
        &self,
        dataset: &HubDataset,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Response, WebFault> {
        let mut url = self.url(["datasets"].into_iter().chain(dataset.repo.split('/')));
        extend(&mut url, ["resolve", commit]);
        extend(&mut url, path.split('/'));
        let mut request = self.client.get(url);
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        self.send(request, dataset).await
    }

    /// What a broken transfer says, without the address, which may hold a signature.
    pub(super) fn broken(&self, error: &reqwest::Error) -> WebFault {
        let mut causes = Vec::new();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        let what = causes.pop().unwrap_or_else(|| "the answer was cut short".to_owned());
        WebFault::Passing(what)
    }

    async fn send(&self, mut request: RequestBuilder, dataset: &HubDataset) -> Result<Response, WebFault> {
        if let Some(token) = &self.token {
            // Redirects to other hosts drop it.
            request = request.bearer_auth(token.expose());
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(WebFault::Passing(format!("it answered {status}")))
            }
            status => Err(WebFault::Lasting(self.refusal(status, response.headers(), dataset))),
        }
    }

    fn refusal(&self, status: StatusCode, headers: &header::HeaderMap, dataset: &HubDataset) -> TasksetError {
        let HubDataset { repo, revision, .. } = dataset;
        let code = headers.get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let place = format!("{}/datasets/{repo}", self.name());
        TasksetError::Source(match (status.as_u16(), code) {
            (_, "GatedRepo") | (403, _) => format!(
                "data set `{repo}` is gated: accept its terms at {place}{}",
                if self.token.is_some() {
                    ", with the account whose token HF_TOKEN holds"
                } else {
                    ", then set HF_TOKEN to a token of that account"
                }
            ),
            (_, "RevisionNotFound") => {
                format!("data set `{repo}` has no revision `{revision}`; look at {place} for its branches and tags")
            }
            (_, "EntryNotFound") => format!("data set `{repo}` lost a file while it was downloaded; try again"),
            // The hub answers 401 for what does not exist, too.
            (401, _) if self.token.is_some() => format!(
                "{} refuses the token for data set `{repo}`: the token in HF_TOKEN is not valid, or there is no such data set",
                self.name()
            ),
            (401 | 404, _) => format!(
                "there is no data set `{repo}` at {}, or it is private; check the name, or set HF_TOKEN to a token that may read it",
                self.name()
            ),
            (status, _) => format!("{} answers {status} for data set `{repo}`; check HF_ENDPOINT", self.name()),
        })
    }

    fn url<'a>(&self, segments: impl Iterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
        }
        extend(&mut url, segments);
        url
    }
}

/// Adds parts of a path, each with its slashes and spaces escaped.
fn extend<'a>(url: &mut Url, segments: impl IntoIterator<Item = &'a str>) {
    if let Ok(mut path) = url.path_segments_mut() {
        path.extend(segments);
    }
}
