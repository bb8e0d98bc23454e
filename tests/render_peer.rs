//! Renderers against the package `renderers` and against chat templates of models, over thousands of conversations.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

#[path = "render/corpus.rs"]
mod corpus;
#[path = "render/peer.rs"]
mod peer;
#[path = "render/ranks.rs"]
mod ranks;

use rollhouse::config::{FamilyConfig, RendererConfig};
use serde_json::json;

use corpus::Shape;
use peer::Family;

const ALL: Shape = Shape { tools: true, reasoning: true, system_first: false };

fn config(family: FamilyConfig) -> RendererConfig {
    RendererConfig { thinking_retention: None, family }
}

#[test]
fn qwen3() {
    for enable_thinking in [true, false] {
        Family {
            files: "qwen3",
            model: "Qwen/Qwen3-8B",
            config: config(FamilyConfig::Qwen3 { enable_thinking }),
            peer: Some(json!({ "name": "qwen3", "enable_thinking": enable_thinking })),
            added: &[],
            shape: ALL,
        }
        .prove(1000);
    }
}

#[test]
fn qwen25() {
    let shape = Shape { reasoning: false, ..ALL };
    let config = config(FamilyConfig::Qwen25);
    Family { files: "qwen2_5", model: "Qwen/Qwen2.5-7B-Instruct", config, peer: None, added: &[], shape }.prove(2000);
}

#[test]
fn smollm2() {
    let shape = Shape { tools: false, reasoning: false, ..ALL };
    let config = config(FamilyConfig::SmolLm2);
    Family { files: "smollm2", model: "HuggingFaceTB/SmolLM2-135M-Instruct", config, peer: None, added: &[], shape }
        .prove(2000);
}

#[test]
fn llama3() {
    for tools_in_user_message in [true, false] {
        let date_string = "26 Jul 2024".to_owned();
        Family {
            files: "llama3_2",
            model: "meta-llama/Llama-3.2-1B-Instruct",
            config: config(FamilyConfig::Llama3 { date_string, tools_in_user_message }),
            peer: Some(json!({ "name": "llama-3", "tools_in_user_message": tools_in_user_message })),
            added: &[],
            shape: ALL,
        }
        .prove(1000);
    }
}

#[test]
fn deepseek_v3() {
    let (config, peer) = (config(FamilyConfig::DeepSeekV3), Some(json!({ "name": "deepseek-v3" })));
    let (files, model) = ("deepseek_v3", "deepseek-ai/DeepSeek-V3");
    Family { files, model, config, peer, added: &[], shape: ALL }.prove(2000);
}

/// GLM's own vocabulary cannot be had here: Qwen's stands in for it, with GLM's control tokens.
#[test]
fn glm45() {
    const ADDED: &[&str] = &[
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ];
    for enable_thinking in [true, false] {
        Family {
            files: "qwen3",
            model: "zai-org/GLM-4.5-Air",
            config: config(FamilyConfig::Glm45 { enable_thinking }),
            peer: Some(json!({ "name": "glm-4.5", "enable_thinking": enable_thinking })),
            added: ADDED,
            shape: ALL,
        }
        .prove(1000);
    }
}

/// Kimi's own vocabulary cannot be had here: DeepSeek's stands in for it, with Kimi's control tokens.
#[test]
fn kimi_k2() {
    const ADDED: &[&str] = &[
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_system|>",
        "<|im_middle|>",
        "<|im_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ];
    let config = config(FamilyConfig::KimiK2 { enable_thinking: true });
    let (files, model, peer) = ("deepseek_v3", "moonshotai/Kimi-K2-Instruct", Some(json!({ "name": "kimi-k2" })));
    Family { files, model, config, peer, added: ADDED, shape: ALL }.prove(2000);
}

/// Kimi's form of vocabularies, with the tokens of others in it.
#[test]
fn kimi_ranks() {
    for files in ["deepseek_v3", "llama3_1"] {
        ranks::prove(files, 2000);
    }
}

/// MiniMax's own vocabulary cannot be had here: Qwen's stands in for it, with MiniMax's control tokens.
#[test]
fn minimax_m2() {
    const ADDED: &[&str] = &["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"];
    let config = config(FamilyConfig::MiniMaxM2 { model_identity: None });
    let (files, model, peer) = ("qwen3", "MiniMaxAI/MiniMax-M2.5", Some(json!({ "name": "minimax-m2" })));
    // The package drops system messages that are not the first; here they are refused.
    let shape = Shape { system_first: true, ..ALL };
    Family { files, model, config, peer, added: ADDED, shape }.prove(2000);
}

/// Qwen3.5's own vocabulary cannot be had here: that of Qwen3, whose control tokens it has, stands in for it.
#[test]
fn qwen35() {
    for (model, enable_thinking) in
        [("Qwen/Qwen3.5-9B", None), ("Qwen/Qwen3.5-2B", None), ("Qwen/Qwen3.5-9B", Some(false))]
    {
        Family {
            files: "qwen3",
            model,
            config: config(FamilyConfig::Qwen35 { enable_thinking, add_vision_id: false }),
            peer: Some(json!({ "name": "qwen3.5", "enable_thinking": enable_thinking })),
            added: &[],
            shape: ALL,
        }
        .prove(700);
    }
}

#[test]
fn gpt_oss() {
    for auto_drop_analysis in [true, false] {
        Family {
            files: "gptoss",
            model: "openai/gpt-oss-20b",
            config: config(FamilyConfig::GptOss {
                reasoning_effort: "low".to_owned(),
                conversation_start_date: Some("2025-06-28".to_owned()),
                use_system_prompt: true,
                knowledge_cutoff: None,
                model_identity: None,
                auto_drop_analysis,
            }),
            peer: Some(json!({
                "name": "gpt-oss", "reasoning_effort": "low", "conversation_start_date": "2025-06-28",
                "auto_drop_analysis": auto_drop_analysis,
            })),
            added: &[],
            shape: ALL,
        }
        .prove(1000);
    }
}

/// Models' own chat templates. Their authors wrote them for engines, which refuse what a template does not foresee.
#[test]
fn chat_templates() {
    let plain = Shape { tools: false, reasoning: false, ..ALL };
    let shapes = [
        ("qwen2_5", ALL),
        ("qwen3", ALL),
        ("smollm2", plain),
        ("llama3_1", plain),
        ("llama3_2", ALL),
        ("deepseek_v3", ALL),
    ];
    for (files, shape) in shapes {
        let config = config(FamilyConfig::named("default").unwrap());
        Family { files, model: "", config, peer: None, added: &[], shape }.prove(400);
    }
}
