//! Telling, from what servers say, a conversation that is too long from an output limit that is, and from a model that
//! is not there. Servers share no code for these, so their wordings are listed; the tests hold real ones.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use super::error_body::ErrorBody;

/// Codes and types that say it without words.
const OVERFLOW_CODES: [&str; 8] = [
    "context_length_exceeded",          // OpenAI, Groq, Together
    "exceed_context_size_error",        // llama.cpp
    "string_above_max_length",          // OpenAI, one message
    "request_too_large",                // Anthropic
    "context_window_exceeded",          // LiteLLM and others
    "model_max_prompt_tokens_exceeded", // GitHub models
    "max_tokens_exceeded",
    "input_too_long",
];

static OVERFLOW: LazyLock<RegexSet> = LazyLock::new(|| {
    set(&[
        // vLLM, OpenAI, DeepSeek, OpenRouter, Together
        r"maximum context length (is|of) \d+",
        // vLLM, tokens in
        r"(decoder|encoder)? ?prompt \(length \d+\) is longer than the maximum model length",
        r"prompt .{0,40}exceeds? (the )?(maximum model length|max_model_len|context (length|window))",
        // llama.cpp, Ollama
        r"exceeds? the available context size",
        r"requested tokens .{0,20}exceed context window",
        r"input (length )?exceeds (the )?(maximum )?context (length|window|size)",
        // SGLang
        r"longer than the model's context length",
        r"input length \(\d+ tokens?\) exceeds the maximum allowed length",
        // text-generation-inference
        r"`inputs` (tokens \+ `max_new_tokens` )?must (be <=|have less than)",
        // Anthropic, Fireworks, Bedrock
        r"prompt (is )?too long",
        r"input is too long",
        r"input length and `?max_tokens`? exceed context limit",
        // OpenAI responses, Azure
        r"exceeds the (model's )?(maximum )?context (window|length)",
        r"input tokens exceed the configured limit",
        // Gemini
        r"input token count.{0,20}exceeds the maximum number of tokens",
        // xAI
        r"maximum prompt length is \d+",
        // Groq, Mistral, others
        r"reduce the length of the (messages|prompt|input)",
        r"prompt contains \d+ tokens.{0,40}(too large|maximum)",
        r"too large for model with \d+ maximum context length",
        // LM Studio
        r"greater than the context length",
        // MiniMax, Kimi, GLM, Qwen
        r"context window exceeds limit",
        r"exceeded model token limit",
        r"prompt exceeds max length",
        r"range of input length should be",
        // general
        r"context[ _-](length|window|size|limit)[ _](was |is |has been )?exceeded",
        r"exceed(s|ed)? (the )?(model's )?(context|token) (limit|window)",
    ])
});

static UNKNOWN_MODEL: LazyLock<RegexSet> = LazyLock::new(|| {
    set(&[
        r"model\b.{0,200}(does not exist|not exist|not found|is not available|is not supported|not been found|is not served)",
        r"not a valid model",
        r"(unknown|invalid|no such|unsupported) model\b",
        r"no (model|endpoints?) (found|available|named)",
    ])
});

static WINDOW: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?:maximum context length (?:is|of) |max_model_len=|must be <= |maximum context length )(\d+)")
});

static OUTPUT: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"max_tokens=(\d+)|too large: (\d+)|(\d+) in the (?:completion|output)|requested (\d+) output tokens|(\d+) for the completion|(\d+) `max_new_tokens`",
    )
});

static OUTPUT_LIMIT: LazyLock<RegexSet> = LazyLock::new(|| {
    set(&[
        r"max(_completion|_new|_output)?_tokens`?'?( value)? .{0,60}(too large|too high|greater than|must be (less|at most|<=)|exceeds)",
        r"max_tokens=\d+ cannot be greater",
        r"supports at most \d+ completion tokens",
        r"max_tokens: \d+ > \d+",
    ])
});

/// Whether the conversation no longer fits the model's window.
pub(super) fn is_overflow(body: &ErrorBody) -> bool {
    let coded = OVERFLOW_CODES.iter().any(|code| body.code == *code || body.kind == *code);
    (coded || OVERFLOW.is_match(&body.message)) && !is_rate(body) && !is_output_limit(body)
}

/// Whether the output limit alone is above what the model allows, however short the conversation is.
pub(super) fn is_output_limit(body: &ErrorBody) -> bool {
    let window: Option<u64> = number(&WINDOW, &body.message);
    let output: Option<u64> = number(&OUTPUT, &body.message);
    match (window, output) {
        (Some(window), Some(output)) => output >= window,
        _ => OUTPUT_LIMIT.is_match(&body.message) && !OVERFLOW.is_match(&body.message),
    }
}

/// Whether the model is not served.
pub(super) fn is_unknown_model(body: &ErrorBody) -> bool {
    body.code == "model_not_found" || UNKNOWN_MODEL.is_match(&body.message)
}

/// Groq and OpenAI call a request above the tokens allowed in a minute too large as well.
fn is_rate(body: &ErrorBody) -> bool {
    body.code == "rate_limit_exceeded" || body.message.contains("tokens per min")
}

fn number(pattern: &Regex, text: &str) -> Option<u64> {
    pattern.captures(text)?.iter().skip(1).flatten().next()?.as_str().parse().ok()
}

fn set(patterns: &[&str]) -> RegexSet {
    regex::RegexSetBuilder::new(patterns).case_insensitive(true).build().expect("the patterns are constant and tested")
}

fn pattern(pattern: &str) -> Regex {
    regex::RegexBuilder::new(pattern).case_insensitive(true).build().expect("the pattern is constant and tested")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> ErrorBody {
        ErrorBody { message: message.into(), ..ErrorBody::default() }
    }

    #[test]
    fn conversations_that_are_too_long_are_recognised() {
        // Wordings of vLLM (three ages), SGLang, llama.cpp, llama-cpp-python, Ollama, TGI, OpenAI (five), Azure,
        // DeepSeek, OpenRouter, Anthropic, Bedrock, Gemini, xAI, Groq, Mistral, LM Studio, MiniMax, Kimi, GLM, Qwen.
        for message in [
            "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)",
            "The decoder prompt (length 3000) is longer than the maximum model length of 2048. Make sure that `max_model_len` is no smaller than the number of text tokens.",
            "This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 in the messages, 10000 in the completion). Please reduce the length of the messages or completion.",
            "This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your prompt contains at least 62466 input tokens, for a total of at least 128001 tokens.",
            "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context length is 2048 tokens and your request has 1800 input tokens (1000 > 2048 - 1800). None",
            "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
            "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
            "request (3031 tokens) exceeds the available context size (2048 tokens), try increasing it",
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "Requested tokens (600) exceed context window of 512",
            "input length exceeds maximum context length",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1244 `inputs` tokens and 1000 `max_new_tokens`",
            "Input validation error: `inputs` must have less than 1024 tokens. Given: 3050",
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens (202767 in the messages, 101 in the functions). Please reduce the length of the messages or functions.",
            "This model's maximum context length is 4097 tokens, however you requested 4130 tokens (130 in your prompt; 4000 for the completion). Please reduce your prompt; or completion length.",
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
            "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 in the messages, 0 in the completion). Please reduce the length of the messages or completion.",
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 132463 tokens (101463 of text input, 31000 in the output). Please reduce the length of either one.",
            "prompt is too long: 213462 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
            "Input is too long for requested model.",
            "The input token count (582632) exceeds the maximum number of tokens allowed (131072).",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "Please reduce the length of the messages or completion.",
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            "The number of tokens to keep from the initial prompt is greater than the context length",
            "invalid params, context window exceeds limit (2013)",
            "Invalid request: Your request exceeded model token limit: 262144",
            "Prompt exceeds max length",
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
            "prompt too long; exceeded max context length by 12 tokens",
            "Context length exceeded",
        ] {
            assert!(is_overflow(&said(message)), "not recognised: {message}");
        }
        for code in OVERFLOW_CODES {
            assert!(is_overflow(&ErrorBody { code: code.into(), ..ErrorBody::default() }), "{code}");
            assert!(is_overflow(&ErrorBody { kind: code.into(), ..ErrorBody::default() }), "{code}");
        }
    }

    #[test]
    fn an_output_limit_above_the_window_is_a_refused_setting() {
        for message in [
            "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens. (parameter=max_tokens, value=5000)",
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 2048 tokens and your request has 30 input tokens (5000 > 2048 - 30). None",
            "This model's maximum context length is 4096 tokens. However, you requested 4472 tokens (376 in the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
            "max_tokens is too large: 5000. This model supports at most 4096 completion tokens, whereas you provided 5000.",
            "max_tokens: 300000 > 64000, which is the maximum allowed number of output tokens for this model",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 12 `inputs` tokens and 4000 `max_new_tokens`",
        ] {
            assert!(is_output_limit(&said(message)), "not recognised: {message}");
            assert!(!is_overflow(&said(message)), "taken for an overflow: {message}");
        }
    }

    #[test]
    fn other_refusals_are_neither() {
        for message in [
            "",
            "temperature must be between 0 and 2",
            "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce the length of the messages",
            "413 Request Entity Too Large",
            "The model `nope` does not exist. Valid aliases: SmolLM2-135M-Instruct.",
            "tools[0].function.name is too long",
        ] {
            assert!(!is_overflow(&said(message)), "taken for an overflow: {message}");
            assert!(!is_output_limit(&said(message)), "taken for an output limit: {message}");
        }
    }

    #[test]
    fn unknown_models_are_recognised() {
        for message in [
            "The model `nope` does not exist. Valid aliases: SmolLM2-135M-Instruct.",
            "The model `gpt-9` does not exist or you do not have access to it.",
            "model \"llama9\" not found, try pulling it first",
            "nope is not a valid model ID",
            "Model Not Exist",
            "Invalid model: nope",
        ] {
            assert!(is_unknown_model(&said(message)), "not recognised: {message}");
        }
        assert!(!is_unknown_model(&said("Not Found")));
        assert!(!is_unknown_model(&said("Invalid value for temperature")));
    }
}
