//! Tokens in, tokens out: vLLM's `/inference/v1/generate`, as vLLM 0.32 and prime-rl's server write it.

use std::{borrow::Cow, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use regex::bytes::Regex;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::UNKNOWN_LOGPROB;
use crate::{
    inference::{GenerateCall, failure::AttemptError},
    trace::{ExpertWidth, FinishReason, RouterRows, SamplingMask},
};

/// Sampling fields that belong to the request rather than to its sampling: inside of it vLLM drops them without a word.
const TOP_FIELDS: [&str; 2] = ["cache_salt", "priority"];
/// Sampling fields that have no meaning here: the call fills them, the renderer took them, or the route always does them.
const OWN_FIELDS: [&str; 8] = [
    "chat_template_kwargs",
    "logprobs",
    "n",
    "return_token_ids",
    "routed_experts_prompt_start",
    "stop_token_ids",
    "stream",
    "top_logprobs",
];

/// A request body.
pub(in crate::inference) struct GenerateBody<'a>(pub(in crate::inference) &'a GenerateCall<'a>);

impl Serialize for GenerateBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let call = self.0;
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("model", call.model)?;
        body.serialize_entry("token_ids", call.prompt)?;
        body.serialize_entry("sampling_params", &SamplingParams(call))?;
        for (name, value) in call.sampling.iter().filter(|(name, _)| TOP_FIELDS.contains(&name.as_str())) {
            body.serialize_entry(name, value)?;
        }
        body.end()
    }
}

struct SamplingParams<'a>(&'a GenerateCall<'a>);

impl Serialize for SamplingParams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let call = self.0;
        let is_plain = |name: &str| !TOP_FIELDS.contains(&name) && !OWN_FIELDS.contains(&name);
        let mut params = serializer.serialize_map(None)?;
        for (name, value) in call.sampling.iter().filter(|(name, value)| is_plain(name) && !value.is_null()) {
            params.serialize_entry(name, value)?;
        }
        params.serialize_entry("stop_token_ids", call.stop_ids)?;
        params.serialize_entry("logprobs", &1)?;
        if !call.sampling.contains_key("skip_special_tokens") {
            params.serialize_entry("skip_special_tokens", &false)?;
        }
        if let Some(start) = call.routed_from {
            params.serialize_entry("routed_experts_prompt_start", &start)?;
        }
        params.end()
    }
}

/// What the engine sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// The ids.
    pub ids: Vec<u32>,
    /// One known, finite logprob for each.
    pub logprobs: Vec<f32>,
    /// Why it ended; `None` for reasons outside the vocabulary.
    pub finish_reason: Option<FinishReason>,
    /// Experts chosen, with the position of the first row.
    pub routed_experts: Option<(RouterRows, usize)>,
    /// Tokens that sampling could choose from, one row per id.
    pub sampling_mask: Option<SamplingMask>,
    /// Which weights sampled which ids, where the server says so.
    pub weight_versions: Vec<WeightSpan>,
}

/// Ids that one version of the weights sampled.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WeightSpan {
    /// The version's label.
    pub version: String,
    /// The first id, counted from the first that was sampled.
    pub start: usize,
    /// Behind the last one.
    pub end: usize,
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    token_ids: Vec<u32>,
    finish_reason: Option<String>,
    logprobs: Option<Logprobs>,
    #[serde(borrow)]
    routed_experts: Option<Routed<'a>>,
    sampling_mask: Option<Vec<Vec<u32>>>,
    #[serde(default)]
    weight_versions: Option<Vec<WeightSpan>>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    /// `token_id:17`, as prime-rl's server writes it.
    token: Option<String>,
    token_id: Option<u32>,
    logprob: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Routed<'a> {
    /// A file of numpy in base64.
    Npy(#[serde(borrow)] Cow<'a, str>),
    /// Numbers in base64, and what they are.
    Parts {
        #[serde(borrow)]
        data: Cow<'a, str>,
        shape: [usize; 3],
        #[serde(default)]
        start: usize,
        dtype: String,
    },
}

/// Reads an answer.
pub(in crate::inference) fn read_generation(body: &[u8]) -> Result<Generation, AttemptError> {
    let reply: Reply<'_> = serde_json::from_slice(body)
        .map_err(|error| AttemptError::unreadable("not the expected JSON", &error, body))?;
    if let Some(error) = reply.error.filter(|error| !error.is_null()) {
        return Err(AttemptError::in_band(&error));
    }
    let choice = reply.choices.into_iter().next();
    let choice = choice.ok_or_else(|| AttemptError::malformed("the answer has no choices"))?;
    let finish_reason = match choice.finish_reason.as_deref() {
        Some("stop") => Some(FinishReason::Stop),
        Some("length") => Some(FinishReason::Length),
        Some(reason @ ("abort" | "aborted" | "cancelled" | "error")) => {
            return Err(AttemptError::Aborted(reason.to_owned()));
        }
        _ => None,
    };
    let logprobs = logprobs(&choice.token_ids, choice.logprobs)?;
    if choice.token_ids.is_empty() {
        return Err(AttemptError::malformed("no token was sampled"));
    }
    let sampling_mask = match choice.sampling_mask {
        Some(rows) if rows.len() != choice.token_ids.len() => {
            let (rows, ids) = (rows.len(), choice.token_ids.len());
            return Err(AttemptError::Tokens(format!("{ids} token ids come with {rows} rows of `sampling_mask`")));
        }
        Some(rows) => Some(SamplingMask::from_rows(rows.iter().map(Vec::as_slice))),
        None => None,
    };
    Ok(Generation {
        logprobs,
        finish_reason,
        routed_experts: choice.routed_experts.map(routed).transpose()?,
        sampling_mask,
        weight_versions: choice.weight_versions.unwrap_or_default(),
        ids: choice.token_ids,
    })
}

fn logprobs(ids: &[u32], given: Option<Logprobs>) -> Result<Vec<f32>, AttemptError> {
    let wrong = |what: String| Err(AttemptError::Tokens(what));
    let Some(entries) = given.and_then(|logprobs| logprobs.content) else {
        return wrong("the answer has no logprobs".to_owned());
    };
    if entries.len() != ids.len() {
        return wrong(format!("{} token ids come with {} logprobs", ids.len(), entries.len()));
    }
    let mut logprobs = Vec::with_capacity(ids.len());
    for (position, (id, entry)) in ids.iter().zip(&entries).enumerate() {
        let named = entry.token.as_deref().and_then(|token| token.strip_prefix("token_id:")?.parse().ok());
        if entry.token_id.or(named) != Some(*id) {
            return wrong(format!("the logprob at {position} is not that of token {id}"));
        }
        match entry.logprob.map(|value| value as f32) {
            Some(value) if value.is_finite() && value != UNKNOWN_LOGPROB => logprobs.push(value),
            _ => return wrong(format!("the logprob of token {id} at {position} is not known")),
        }
    }
    Ok(logprobs)
}

fn routed(routed: Routed<'_>) -> Result<(RouterRows, usize), AttemptError> {
    let wrong = |what: &str| AttemptError::Tokens(format!("`routed_experts` cannot be used: {what}"));
    let decoded = |text: &str| STANDARD.decode(text).map(Bytes::from).map_err(|error| wrong(&error.to_string()));
    let (data, shape, start, dtype) = match routed {
        Routed::Parts { data, shape, start, dtype } => (decoded(&data)?, shape, start, dtype),
        Routed::Npy(text) => {
            let file = decoded(&text)?;
            let (shape, dtype, begin) = npy(&file).ok_or_else(|| wrong("it is no array of three dimensions"))?;
            (file.slice(begin..), shape, 0, dtype)
        }
    };
    let width = match dtype.as_str() {
        "uint8" | "|u1" | "<u1" => ExpertWidth::One,
        "uint16" | "<u2" => ExpertWidth::Two,
        other => return Err(wrong(&format!("numbers of type `{other}`"))),
    };
    let [rows, layers, top_k] = shape;
    let bytes = [rows, layers, top_k].iter().try_fold(width.bytes(), |size, length| size.checked_mul(*length));
    if bytes != Some(data.len()) {
        return Err(wrong(&format!("{} bytes for a shape of {rows} x {layers} x {top_k}", data.len())));
    }
    Ok((RouterRows { data, width, layers, top_k }, start))
}

/// Shape and type of a file of numpy, and where its numbers begin.
fn npy(file: &[u8]) -> Option<([usize; 3], String, usize)> {
    static HEADER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"'descr': '([^']+)', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\)")
            .expect("a valid expression")
    });
    let rest = file.strip_prefix(b"\x93NUMPY")?;
    let (length, head) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes([*rest.get(2)?, *rest.get(3)?])), 10),
        _ => (u32::from_le_bytes([*rest.get(2)?, *rest.get(3)?, *rest.get(4)?, *rest.get(5)?]) as usize, 12),
    };
    let found = HEADER.captures(file.get(head..head + length)?)?;
    let text = |at: usize| String::from_utf8_lossy(&found[at]).into_owned();
    let shape = [text(2).parse().ok()?, text(3).parse().ok()?, text(4).parse().ok()?];
    Some((shape, text(1), head + length))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(choice: Value) -> Result<Generation, String> {
        read_generation(json!({ "choices": [choice] }).to_string().as_bytes()).map_err(|error| error.to_string())
    }

    fn entries(of: &[(u32, f64)]) -> Value {
        json!({ "content": of.iter().map(|(id, logprob)| json!({ "token_id": id, "logprob": logprob })).collect::<Vec<_>>() })
    }

    #[test]
    fn a_request_has_its_fields_where_vllm_looks_for_them() {
        let sampling = json!({
            "temperature": 0.5, "max_tokens": 7, "cache_salt": "3", "priority": 1, "logprobs": 5, "n": 2, "top_k": null,
        });
        let Value::Object(sampling) = sampling else { unreachable!() };
        let call =
            GenerateCall { model: "m", prompt: &[1, 2], sampling: &sampling, stop_ids: &[9], routed_from: Some(1) };
        let body: Value = serde_json::from_str(&serde_json::to_string(&GenerateBody(&call)).unwrap()).unwrap();
        assert_eq!(
            body,
            json!({
                "model": "m", "token_ids": [1, 2], "cache_salt": "3", "priority": 1,
                "sampling_params": {
                    "temperature": 0.5, "max_tokens": 7, "stop_token_ids": [9], "logprobs": 1, "skip_special_tokens": false,
                    "routed_experts_prompt_start": 1,
                },
            })
        );
    }

    #[test]
    fn both_forms_of_logprobs_are_read() {
        let plain =
            json!({ "token_ids": [5, 6], "finish_reason": "stop", "logprobs": entries(&[(5, -0.5), (6, -1.0)]) });
        let named = json!({
            "token_ids": [5], "finish_reason": "length",
            "logprobs": { "content": [{ "token": "token_id:5", "logprob": -0.25 }] },
        });
        let read_plain = read(plain).unwrap();
        assert_eq!((read_plain.ids, read_plain.logprobs), (vec![5, 6], vec![-0.5, -1.0]));
        assert_eq!(read_plain.finish_reason, Some(FinishReason::Stop));
        assert_eq!(read(named).unwrap().logprobs, [-0.25]);
    }

    #[test]
    fn nothing_is_padded_to_fit() {
        let told = |choice| read(choice).unwrap_err();
        let with =
            |logprobs: Value| told(json!({ "token_ids": [5, 6], "finish_reason": "stop", "logprobs": logprobs }));
        assert!(with(entries(&[(5, -0.5)])).contains("2 token ids come with 1 logprobs"));
        assert!(with(entries(&[(5, -0.5), (7, -0.5)])).contains("at 1 is not that of token 6"));
        assert!(with(entries(&[(5, -0.5), (6, -9999.0)])).contains("is not known"));
        assert!(
            with(json!({ "content": [{ "token_id": 5, "logprob": null }, { "token_id": 6, "logprob": 0.0 }] }))
                .contains("5 at 0")
        );
        assert!(with(Value::Null).contains("no logprobs"));
        let mask = json!({ "token_ids": [5], "logprobs": entries(&[(5, 0.0)]), "sampling_mask": [[5], [6]] });
        assert!(told(mask).contains("2 rows of `sampling_mask`"));
        assert!(told(json!({ "token_ids": [], "logprobs": { "content": [] } })).contains("no token was sampled"));
        assert!(
            told(json!({ "token_ids": [5], "finish_reason": "abort", "logprobs": entries(&[(5, 0.0)]) }))
                .contains("abort")
        );
    }

    #[test]
    fn router_rows_come_as_parts_or_as_a_file() {
        let numbers: Vec<u8> = (0..12).collect();
        let parts = json!({ "data": STANDARD.encode(&numbers), "shape": [3, 2, 2], "start": 4, "dtype": "uint8" });
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        let header = format!("{:<53}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), }");
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(&numbers);
        for (routed, start) in [(parts, 4), (json!(STANDARD.encode(&file)), 0)] {
            let choice = json!({ "token_ids": [5], "logprobs": entries(&[(5, 0.0)]), "routed_experts": routed });
            let (rows, at) = read(choice).unwrap().routed_experts.unwrap();
            assert_eq!((&rows.data[..], rows.layers, rows.top_k, at), (&numbers[..], 2, 2, start));
        }
        let short = json!({ "data": "AAAA", "shape": [3, 2, 2], "dtype": "uint8" });
        let choice = json!({ "token_ids": [5], "logprobs": entries(&[(5, 0.0)]), "routed_experts": short });
        assert!(read(choice).unwrap_err().contains("3 bytes for a shape of 3 x 2 x 2"));
    }
}
