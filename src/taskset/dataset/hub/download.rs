//! Fetching one split into the cache.

use std::{path::PathBuf, time::Duration};

use futures::StreamExt as _;
use reqwest::StatusCode;

use super::{
    HubCache, HubDataset, TasksetError,
    blobs::{Blob, link},
    cache::linking,
    files::{choose, ending},
    tell,
    web::{FileInfo, Info, Web, WebFault},
};

/// Attempts at one request or file, and the wait after the first; it doubles.
const ATTEMPTS: u32 = 5;
const WAIT: Duration = Duration::from_millis(250);
/// Bytes between two lines of progress.
const PROGRESS: u64 = 64 << 20;

/// The card of a data set.
const CARD: &str = "README.md";

/// Downloads the files of a split, and gives their places in the cache.
pub(super) async fn download(cache: &HubCache, web: &Web, dataset: &HubDataset) -> Result<Vec<PathBuf>, TasksetError> {
    let info: Info = patiently(web, dataset, async || web.info(dataset).await).await?;
    let whole = info.sha.len() >= 40 && info.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !whole {
        return Err(refuse(web, dataset, "its answer names no commit; check HF_ENDPOINT"));
    }
    let fetch = Fetch { cache, web, dataset, commit: &info.sha };
    // Files with odd names are no data, and must not lead out of the cache.
    let plain = |file: &&FileInfo| file.path.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    let files: Vec<FileInfo> = info.files.iter().filter(plain).cloned().collect();
    let mut fetched = Vec::new();
    let mut card = None;
    if let Some(file) = files.iter().find(|file| file.path == CARD) {
        let content = fetch.file(file).await?;
        card =
            Some(std::fs::read(&content.1).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default());
        fetched.push((file.path.clone(), content.0));
    }
    let names: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let chosen = choose(&names, card.as_deref(), dataset).map_err(|problem| refuse(web, dataset, &problem))?;
    if !cfg!(feature = "parquet") && chosen.iter().any(|file| ending(file) == "parquet") {
        let problem = "its files are Parquet, which this build does not read; build with `--features parquet`";
        return Err(refuse(web, dataset, problem));
    }
    for file in files.iter().filter(|file| chosen.contains(&file.path)) {
        fetched.push((file.path.clone(), fetch.file(file).await?.0));
    }
    let (folder, locks) = (cache.folder(&dataset.repo), cache.locks(&dataset.repo));
    link(&folder, &locks, (&dataset.revision, &info.sha), &linking(&info.sha), &fetched)?;
    tracing::info!(repo = dataset.repo, split = dataset.split, files = chosen.len(), "the data set is in the cache");
    let snapshot = folder.join("snapshots").join(&info.sha);
    Ok(chosen.iter().map(|file| snapshot.join(file)).collect())
}

struct Fetch<'a> {
    cache: &'a HubCache,
    web: &'a Web,
    dataset: &'a HubDataset,
    commit: &'a str,
}

impl Fetch<'_> {
    /// Brings a file's content into the cache: its name there, and its place.
    async fn file(&self, file: &FileInfo) -> Result<(String, PathBuf), TasksetError> {
        let Self { web, dataset, .. } = self;
        let hash = file.hash().ok_or_else(|| {
            refuse(web, dataset, &format!("its answer names no hash of {}; check HF_ENDPOINT", file.path))
        })?;
        let (folder, locks) = (self.cache.folder(&dataset.repo), self.cache.locks(&dataset.repo));
        let place = folder.join("blobs").join(hash);
        let Some(mut blob) = Blob::open(&folder, &locks, hash)? else { return Ok((hash.to_owned(), place)) };
        tell(&format!("downloading data set {}: {}{}", dataset.repo, file.path, size(file.size, blob.length)));
        let mut attempt = 0;
        loop {
            let problem = match self.transfer(file, &mut blob).await {
                Ok(()) => match damage(file, &mut blob)? {
                    None => break,
                    Some(problem) => problem,
                },
                Err(WebFault::Lasting(error)) => return Err(error),
                Err(WebFault::Passing(problem)) => problem,
            };
            attempt += 1;
            pause(self.web, dataset, attempt, &problem).await?;
        }
        blob.finish()?;
        Ok((hash.to_owned(), place))
    }

    /// Adds what is missing of a content.
    async fn transfer(&self, file: &FileInfo, blob: &mut Blob) -> Result<(), WebFault> {
        if file.size.is_some_and(|size| blob.length > size) {
            blob.clear().map_err(WebFault::Lasting)?;
        }
        if file.size == Some(blob.length) {
            return Ok(());
        }
        let response = self.web.file(self.dataset, self.commit, &file.path, blob.length).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            blob.clear().map_err(WebFault::Lasting)?;
        }
        let mut told = blob.length;
        let mut body = response.bytes_stream();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| self.web.broken(&error))?;
            blob.add(&chunk).map_err(WebFault::Lasting)?;
            if blob.length - told >= PROGRESS {
                told = blob.length;
                tell(&format!("downloading {}{}", file.path, size(file.size, blob.length)));
            }
        }
        Ok(())
    }
}

/// How much there is of how much, as far as that is worth a word.
fn size(whole: Option<u64>, there: u64) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    match (there, whole) {
        (0, None) => String::new(),
        (0, Some(whole)) => format!(" ({})", mib(whole)),
        (there, None) => format!(" ({} so far)", mib(there)),
        (there, Some(whole)) => format!(" ({} of {})", mib(there), mib(whole)),
    }
}

/// What is wrong with a content that came to its end; it is dropped unless it can go on.
fn damage(file: &FileInfo, blob: &mut Blob) -> Result<Option<String>, TasksetError> {
    if let Some(size) = file.size
        && blob.length != size
    {
        let problem = format!("{} ended after {} of {size} bytes", file.path, blob.length);
        if blob.length > size {
            blob.clear()?;
        }
        return Ok(Some(problem));
    }
    if let Some(expected) = file.sha256()
        && blob.sha256()? != expected
    {
        blob.clear()?;
        return Ok(Some(format!("{} arrived damaged", file.path)));
    }
    Ok(None)
}

/// A request, tried again after failures that may pass.
async fn patiently<T>(
    web: &Web,
    dataset: &HubDataset,
    request: impl AsyncFn() -> Result<T, WebFault>,
) -> Result<T, TasksetError> {
    let mut attempt = 0;
    loop {
        let problem = match request().await {
            Ok(answer) => return Ok(answer),
            Err(WebFault::Lasting(error)) => return Err(error),
            Err(WebFault::Passing(problem)) => problem,
        };
        attempt += 1;
        pause(web, dataset, attempt, &problem).await?;
    }
}

/// Waits before the next attempt, or gives up.
async fn pause(web: &Web, dataset: &HubDataset, attempt: u32, problem: &str) -> Result<(), TasksetError> {
    if attempt >= ATTEMPTS {
        let way = format!(
            "check the network, name a mirror with HF_ENDPOINT, or fetch it elsewhere with `hf download --repo-type dataset {}`; \
             what came so far is kept",
            dataset.repo
        );
        return Err(refuse(web, dataset, &format!("{problem}; {way}")));
    }
    tell(&format!("downloading failed: {problem}; trying again"));
    tokio::time::sleep(WAIT * 2_u32.pow(attempt - 1)).await;
    Ok(())
}

fn refuse(web: &Web, dataset: &HubDataset, problem: &str) -> TasksetError {
    TasksetError::Source(format!("cannot download data set `{}` from {}: {problem}", dataset.repo, web.name()))
}
