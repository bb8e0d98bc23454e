//! The seat as traces record it: the agent's block of the resolved config, with what the run gives it filled in.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::RawValue};

use crate::trace::AgentInfo;

/// Renders a seat once for all traces of a run. `agent`, `client` and `sampling` are blocks of the resolved config;
/// nulls are left out, but for those of `sampling`, as verifiers 0.4.0 writes it.
///
/// # Errors
/// A block that is not JSON, which a resolved config never holds.
pub fn seat(agent: &Value, model: &str, client: &Value, sampling: &Value) -> serde_json::Result<AgentInfo> {
    let mut config = match without_nulls(agent) {
        Value::Object(config) => config,
        _ => Map::new(),
    };
    config.insert("model".to_owned(), model.into());
    config.insert("client".to_owned(), client_block(client));
    config.insert("sampling".to_owned(), sampling.clone());
    Ok(AgentInfo {
        config: raw(&Value::Object(config))?,
        runtime: Some(raw(&json!({ "id": "in-process", "borrowed": false, "type": "subprocess" }))?),
        name: "agent".to_owned(),
        trainable: true,
    })
}

/// A client block as verifiers 0.4.0 reads it, which refuses keys that it does not know; of several base URLs, the first.
pub fn client_block(client: &Value) -> Value {
    let mut kept = Map::new();
    let trains = client.get("type").is_some_and(|kind| kind == "train");
    let own: &[&str] = if trains { &["renderer", "renderer_model_name", "multiplex"] } else { &[] };
    for key in ["type", "base_url", "api_key_var", "headers", "headers_from_env"].iter().chain(own) {
        let value = match client.get(*key) {
            Some(Value::Array(urls)) => urls.first(),
            value => value,
        };
        kept.extend(value.filter(|value| !value.is_null()).map(|value| ((*key).to_owned(), without_nulls(value))));
    }
    let timeout = ["connect", "read"].into_iter().filter_map(|key| {
        let value = client.get("timeout")?.get(key)?;
        (!value.is_null()).then(|| (key.to_owned(), value.clone()))
    });
    kept.insert("timeout".to_owned(), timeout.collect());
    Value::Object(kept)
}

fn raw(value: &Value) -> serde_json::Result<Arc<RawValue>> {
    Ok(Arc::from(serde_json::value::to_raw_value(value)?))
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_go_but_for_those_of_sampling() {
        let agent = json!({ "harness": { "id": "null", "disabled_tools": null }, "model": null, "max_turns": null });
        let client = json!({ "base_url": "http://x/v1", "timeout": { "connect": 30.0, "read": null, "idle": 3.0 } });
        let info = seat(&agent, "m", &client, &json!({ "temperature": null })).unwrap();
        let config: Value = serde_json::from_str(info.config.get()).unwrap();
        assert_eq!(
            config,
            json!({
                "harness": { "id": "null" },
                "model": "m",
                "client": { "base_url": "http://x/v1", "timeout": { "connect": 30.0 } },
                "sampling": { "temperature": null },
            })
        );
    }
}
