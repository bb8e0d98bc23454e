//! `POST /tokenize` and `POST /detokenize`

use super::{
    json::{comma, json_string, number, numbers, raw},
    model::Model,
    refusal::Refusal,
    reply::Reply,
    request::{DetokenizeRequest, TokenizeRequest, check, parse},
    template::render,
    token::{Tokenizer, mark},
};

pub(super) fn tokenize(model: &Model, body: &[u8]) -> Result<Reply, Refusal> {
    let request: TokenizeRequest<'_> = parse(body)?;
    let ids = match (&request.prompt, &request.messages) {
        (Some(prompt), None) => Tokenizer::encode(prompt),
        (None, Some(messages)) => {
            check(messages)?;
            let mut ids = Vec::new();
            render(&mut ids, messages, request.tools, request.add_generation_prompt.unwrap_or(true));
            ids
        }
        _ => return Err(Refusal::bad_request("Give either `prompt` or `messages`.", Some("prompt"))),
    };
    let mut out = br#"{"count":"#.to_vec();
    number(&mut out, ids.len() as u64);
    raw(&mut out, r#","max_model_len":"#);
    number(&mut out, model.settings.max_model_len as u64);
    raw(&mut out, r#","tokens":"#);
    numbers(&mut out, ids.iter().copied());
    raw(&mut out, r#","token_strs":"#);
    if request.return_token_strs.unwrap_or(false) {
        raw(&mut out, "[");
        for (index, id) in ids.iter().enumerate() {
            comma(&mut out, index);
            match u8::try_from(*id) {
                Ok(byte) => json_string(&mut out, &String::from_utf8_lossy(&[byte])),
                Err(_) => json_string(&mut out, mark(*id).unwrap_or_default()),
            }
        }
        raw(&mut out, "]}");
    } else {
        raw(&mut out, "null}");
    }
    Ok(Reply::Json(out.into()))
}

pub(super) fn detokenize(body: &[u8]) -> Result<Reply, Refusal> {
    let request: DetokenizeRequest = parse(body)?;
    let bytes =
        Tokenizer::decode(&request.tokens).map_err(|error| Refusal::bad_request(&error.to_string(), Some("tokens")))?;
    let mut out = br#"{"prompt":"#.to_vec();
    json_string(&mut out, &String::from_utf8_lossy(&bytes));
    raw(&mut out, "}");
    Ok(Reply::Json(out.into()))
}
