//! One file per family of models, and the register that makes the renderer of a family.

mod chatml;
mod deepseek_v3;
mod glm45;
mod gpt_oss;
mod kimi_k2;
mod llama3;
mod minimax_m2;
mod own;
mod qwen25;
mod qwen3;
mod qwen35;
mod smollm2;

use std::{borrow::Cow, path::Path, sync::Arc};

use serde_json::{Map, Value, json};

use super::{ChatTemplate, RenderError, Renderer, Tokenizer, template};
use crate::{
    config::{FamilyConfig, RendererConfig},
    trace::{AssistantMessage, Content, ContentPart, Message, Tool},
};

/// Makes the renderer of a family. `model` is the model's id, which some families look at; `folder` holds the model's
/// files, its chat template among them.
///
/// # Errors
/// The tokenizer lacks a token that the family needs, or the family is still to be found.
pub fn renderer(
    config: &RendererConfig,
    model: &str,
    folder: &Path,
    tokenizer: Arc<Tokenizer>,
) -> Result<Arc<dyn Renderer>, RenderError> {
    Ok(match &config.family {
        FamilyConfig::Auto => return Err(RenderError::Unresolved(format!("no renderer is known for `{model}`"))),
        FamilyConfig::Qwen3 { enable_thinking } => {
            Arc::new(qwen3::Qwen3::new(tokenizer, *enable_thinking, config.thinking_retention)?)
        }
        FamilyConfig::Qwen25 => Arc::new(qwen25::Qwen25::new(tokenizer)?),
        FamilyConfig::SmolLm2 => Arc::new(smollm2::SmolLm2::new(tokenizer)?),
        FamilyConfig::Llama3 { date_string, tools_in_user_message } => {
            Arc::new(llama3::Llama3::new(tokenizer, date_string, *tools_in_user_message, config.thinking_retention)?)
        }
        FamilyConfig::DeepSeekV3 => Arc::new(deepseek_v3::DeepSeekV3::new(tokenizer, config.thinking_retention)?),
        FamilyConfig::Glm45 { enable_thinking } => {
            Arc::new(glm45::Glm45::new(tokenizer, *enable_thinking, config.thinking_retention)?)
        }
        FamilyConfig::KimiK2 { .. } => Arc::new(kimi_k2::KimiK2::new(tokenizer, config.thinking_retention)?),
        FamilyConfig::MiniMaxM2 { model_identity } => {
            Arc::new(minimax_m2::MiniMaxM2::new(tokenizer, model_identity.as_deref(), config.thinking_retention)?)
        }
        FamilyConfig::Qwen35 { enable_thinking, .. } => {
            Arc::new(qwen35::Qwen35::new(tokenizer, model, *enable_thinking, config.thinking_retention)?)
        }
        FamilyConfig::GptOss {
            reasoning_effort,
            conversation_start_date,
            use_system_prompt,
            knowledge_cutoff,
            model_identity,
            auto_drop_analysis,
        } => {
            let settings = gpt_oss::Settings {
                reasoning_effort: reasoning_effort.clone(),
                date: conversation_start_date.clone().unwrap_or_else(template::today),
                use_system_prompt: *use_system_prompt,
                knowledge_cutoff: knowledge_cutoff.clone(),
                model_identity: model_identity.clone(),
                auto_drop_analysis: *auto_drop_analysis,
            };
            Arc::new(gpt_oss::GptOss::new(tokenizer, settings, config.thinking_retention)?)
        }
        FamilyConfig::Default { tool_parser, reasoning_parser, template: variables } => {
            let own = ChatTemplate::of(folder)?.ok_or_else(|| {
                RenderError::Unresolved(format!(
                    "{} has no chat template, which the renderer `default` needs",
                    folder.display()
                ))
            })?;
            let parsers = (tool_parser.as_deref(), reasoning_parser.as_deref());
            let end = own.variable("eos_token").map(str::to_owned);
            Arc::new(own::Own::new(tokenizer, own, variables, parsers, end.as_deref())?)
        }
    })
}

/// The family of a model that is known by its id, with the family's defaults. Only exact ids count: a model that was tuned may
/// have another template. Those of the package `renderers` 0.1.12, and Qwen2.5, SmolLM2 and Llama 3.1 to 3.3.
pub fn of_model(model: &str) -> Option<FamilyConfig> {
    let (owner, name) = model.split_once('/')?;
    let family = match (owner, name) {
        (
            "Qwen",
            "Qwen3-0.6B"
            | "Qwen3-1.7B"
            | "Qwen3-4B"
            | "Qwen3-8B"
            | "Qwen3-14B"
            | "Qwen3-32B"
            | "Qwen3-30B-A3B"
            | "Qwen3-235B-A22B"
            | "Qwen3-4B-Instruct-2507"
            | "Qwen3-4B-Thinking-2507"
            | "Qwen3-30B-A3B-Instruct-2507"
            | "Qwen3-30B-A3B-Thinking-2507",
        ) => "qwen3",
        (
            "Qwen",
            "Qwen3.5-0.8B" | "Qwen3.5-2B" | "Qwen3.5-4B" | "Qwen3.5-9B" | "Qwen3.5-35B-A3B" | "Qwen3.5-122B-A10B"
            | "Qwen3.5-397B-A17B",
        ) => "qwen3.5",
        (
            "Qwen",
            "Qwen2.5-0.5B-Instruct"
            | "Qwen2.5-1.5B-Instruct"
            | "Qwen2.5-3B-Instruct"
            | "Qwen2.5-7B-Instruct"
            | "Qwen2.5-14B-Instruct"
            | "Qwen2.5-32B-Instruct"
            | "Qwen2.5-72B-Instruct",
        ) => "qwen2.5",
        ("HuggingFaceTB", "SmolLM2-135M-Instruct" | "SmolLM2-360M-Instruct" | "SmolLM2-1.7B-Instruct") => "smollm2",
        (
            "meta-llama",
            "Llama-3.1-8B-Instruct"
            | "Llama-3.1-70B-Instruct"
            | "Llama-3.2-1B-Instruct"
            | "Llama-3.2-3B-Instruct"
            | "Llama-3.3-70B-Instruct",
        ) => "llama-3",
        ("openai", "gpt-oss-20b" | "gpt-oss-120b") => "gpt-oss",
        ("deepseek-ai", "DeepSeek-V3" | "DeepSeek-V3-Base") => "deepseek-v3",
        ("THUDM" | "zai-org", "GLM-4.5-Air") => "glm-4.5",
        ("moonshotai", "Kimi-K2-Instruct") => "kimi-k2",
        ("MiniMaxAI", "MiniMax-M2" | "MiniMax-M2.5") => "minimax-m2",
        _ => return None,
    };
    FamilyConfig::named(family)
}

/// The text of a message's content, parts one after another; `None` where it shows an image.
fn text(content: &Content) -> Option<Cow<'_, str>> {
    match content {
        Content::Text(text) => Some(text.into()),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                ContentPart::Text { text } => Some(text.as_str()),
                ContentPart::ImageUrl { .. } => None,
            })
            .collect::<Option<String>>()
            .map(Cow::Owned),
    }
}

/// The texts of all messages, that of an answer its content.
fn texts<'a>(messages: &'a [Message], renderer: &'static str) -> Result<Vec<Cow<'a, str>>, RenderError> {
    let fault = |reason: &str| RenderError::Conversation { renderer, reason: reason.to_owned() };
    if messages.is_empty() {
        return Err(fault("it has no messages"));
    }
    let texts = messages.iter().map(|message| match message {
        Message::System(message) => text(&message.content),
        Message::User(message) => text(&message.content),
        Message::Tool(message) => text(&message.content),
        Message::Assistant(message) => Some(message.content.as_deref().unwrap_or_default().into()),
    });
    texts.collect::<Option<_>>().ok_or_else(|| fault("it shows an image, and the renderer writes text only"))
}

/// A tool as chat completions describe it, in verifiers' order of keys.
fn tool(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.insert("description".to_owned(), tool.description.as_str().into());
    function.insert("parameters".to_owned(), Value::Object(tool.parameters.clone()));
    function.extend(tool.strict.map(|strict| ("strict".to_owned(), strict.into())));
    json!({ "type": "function", "function": function })
}

/// The reasoning of an answer, which may stand in its text, and the rest.
fn reasoning_and_content<'a>(answer: &'a AssistantMessage, content: &'a str) -> (&'a str, &'a str) {
    if let Some(reasoning) = &answer.reasoning_content {
        return (reasoning, content);
    }
    let Some((before, after)) = content.split_once("</think>") else { return ("", content) };
    let reasoning = before.rsplit_once("<think>").map_or(before, |(_, inside)| inside);
    (reasoning.trim_matches('\n'), after.trim_start_matches('\n'))
}

/// The text of an answer. Some templates write `None` where there is none beside calls.
fn visible(answer: &AssistantMessage) -> &str {
    let calls = answer.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    answer.content.as_deref().unwrap_or(if calls { "None" } else { "" })
}
