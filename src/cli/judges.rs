//! The endpoint of judges that have none of their own, where a command has no other endpoint.

use serde_json::json;

use super::exit::Failure;
use crate::{
    config::{Document, Layer, Reader, Secret, read_endpoint},
    inference::{Pool, PoolSettings},
};

/// Whom judges ask that name nobody.
#[derive(Debug, clap::Args)]
pub(super) struct JudgeArgs {
    /// Base URL for judges that name none; several times for several engines. Without it none of these is asked
    #[arg(short, long, visible_alias = "api-base-url", value_name = "URL")]
    base_url: Vec<String>,
    /// Model for judges that name none
    #[arg(short, long, requires = "base_url", value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Environment variable that holds the key of that endpoint
    #[arg(short = 'k', long, requires = "base_url", value_name = "VARIABLE")]
    api_key_var: Option<String>,
}

impl JudgeArgs {
    /// The endpoint, and the secrets that are sent there; `None` when none is named.
    ///
    /// # Errors
    /// No URL, or no name of a variable.
    pub(super) fn pool(&self) -> Result<Option<(Pool, Vec<Secret>)>, Failure> {
        if self.base_url.is_empty() {
            return Ok(None);
        }
        let mut client = json!({ "base_url": self.base_url });
        if let Some(name) = &self.api_key_var {
            client["api_key_var"] = name.as_str().into();
        }
        let mut reader = Reader::new(Document::new([Layer::from_value(&client)]));
        let client = read_endpoint(&mut reader.root());
        reader.finish().map_err(Failure::usage)?;
        let Some(client) = client else { return Ok(None) };
        let settings = PoolSettings::from_config(&client).map_err(Failure::usage)?;
        let secrets = settings.key.iter().chain(settings.secret_headers.values()).cloned().collect();
        Ok(Some((Pool::new(settings, None).map_err(Failure::usage)?, secrets)))
    }
}
