//! How conversations become tokens: the block `renderer` of a training client, as the package `renderers` has it.

use serde_json::{Map, Value};

/// A renderer and its settings. The default resolves the family by the model's id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RendererConfig {
    /// Which turns may be extended rather than rendered anew; `None` does as the family's template does.
    pub thinking_retention: Option<ThinkingRetention>,
    /// The family.
    pub family: FamilyConfig,
}

/// How long earlier reasoning stays in a conversation that is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingRetention {
    /// Until the user speaks again.
    ToolCycle,
    /// For ever.
    All,
}

/// A family of models and what its template can be told. Names and defaults are those of the package `renderers` 0.1.12;
/// `qwen2.5` and `smollm2` are ours.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FamilyConfig {
    /// By the model's id; an error where that is unknown and the model has no chat template of its own.
    #[default]
    Auto,
    /// The model's own chat template; nothing can be extended.
    Default {
        /// How tool calls are read: `qwen3`, `qwen3.5`, `glm` or `deepseek-v3`; `None` leaves them in the text.
        tool_parser: Option<String>,
        /// How reasoning is read: `think`; `None` leaves it in the text.
        reasoning_parser: Option<String>,
        /// Variables of the template.
        template: Map<String, Value>,
    },
    /// Qwen3, text only.
    Qwen3 {
        /// Whether the model reasons; true.
        enable_thinking: bool,
    },
    /// Qwen3.5, text only.
    Qwen35 {
        /// Whether the model reasons; `None` does as the model's size does.
        enable_thinking: Option<bool>,
        /// Numbers images; false.
        add_vision_id: bool,
    },
    /// Qwen2.5.
    Qwen25,
    /// SmolLM2.
    SmolLm2,
    /// Llama 3.1, 3.2 and 3.3.
    Llama3 {
        /// The date in the system prompt; `26 Jul 2024`.
        date_string: String,
        /// Whether tools stand in the first user message; true.
        tools_in_user_message: bool,
    },
    /// gpt-oss, in the format harmony.
    GptOss {
        /// `low`, `medium` or `high`; medium.
        reasoning_effort: String,
        /// The date in the system message; none.
        conversation_start_date: Option<String>,
        /// Whether a system message is written; true.
        use_system_prompt: bool,
        /// In place of the usual date.
        knowledge_cutoff: Option<String>,
        /// In place of the usual sentence.
        model_identity: Option<String>,
        /// Whether analysis before the last final answer is dropped; true.
        auto_drop_analysis: bool,
    },
    /// DeepSeek V3.
    DeepSeekV3,
    /// GLM-4.5.
    Glm45 {
        /// Whether the model reasons; true.
        enable_thinking: bool,
    },
    /// Kimi K2.
    KimiK2 {
        /// Whether the model reasons; true.
        enable_thinking: bool,
    },
    /// MiniMax M2.
    MiniMaxM2 {
        /// The system prompt where there is none.
        model_identity: Option<String>,
    },
}

impl FamilyConfig {
    /// Every name that a configuration may give.
    pub const NAMES: &[&str] = &[
        "auto",
        "default",
        "qwen3",
        "qwen3.5",
        "qwen2.5",
        "smollm2",
        "llama-3",
        "gpt-oss",
        "deepseek-v3",
        "glm-4.5",
        "kimi-k2",
        "minimax-m2",
    ];

    /// How long gpt-oss may reason.
    pub const EFFORTS: [&str; 3] = ["low", "medium", "high"];

    /// A family with its defaults; `None` for a name that is none.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "default" => Self::Default { tool_parser: None, reasoning_parser: None, template: Map::new() },
            "qwen3" => Self::Qwen3 { enable_thinking: true },
            "qwen3.5" => Self::Qwen35 { enable_thinking: None, add_vision_id: false },
            "qwen2.5" => Self::Qwen25,
            "smollm2" => Self::SmolLm2,
            "llama-3" => Self::Llama3 { date_string: "26 Jul 2024".to_owned(), tools_in_user_message: true },
            "gpt-oss" => Self::GptOss {
                reasoning_effort: "medium".to_owned(),
                conversation_start_date: None,
                use_system_prompt: true,
                knowledge_cutoff: None,
                model_identity: None,
                auto_drop_analysis: true,
            },
            "deepseek-v3" => Self::DeepSeekV3,
            "glm-4.5" => Self::Glm45 { enable_thinking: true },
            "kimi-k2" => Self::KimiK2 { enable_thinking: true },
            "minimax-m2" => Self::MiniMaxM2 { model_identity: None },
            _ => return None,
        })
    }

    /// The name as configurations write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Default { .. } => "default",
            Self::Qwen3 { .. } => "qwen3",
            Self::Qwen35 { .. } => "qwen3.5",
            Self::Qwen25 => "qwen2.5",
            Self::SmolLm2 => "smollm2",
            Self::Llama3 { .. } => "llama-3",
            Self::GptOss { .. } => "gpt-oss",
            Self::DeepSeekV3 => "deepseek-v3",
            Self::Glm45 { .. } => "glm-4.5",
            Self::KimiK2 { .. } => "kimi-k2",
            Self::MiniMaxM2 { .. } => "minimax-m2",
        }
    }
}

impl RendererConfig {
    /// The same with variables of the chat template, as `sampling.chat_template_kwargs` gives them.
    ///
    /// # Errors
    /// The family's template has no such variable, or it is of another type; says which it has.
    pub fn with_template_kwargs(&self, kwargs: &Map<String, Value>) -> Result<Self, String> {
        let mut config = self.clone();
        for (key, value) in kwargs {
            config.family.set(key, value)?;
        }
        Ok(config)
    }
}

impl FamilyConfig {
    /// The variables of the family's template.
    fn variables(&self) -> &'static [&'static str] {
        match self {
            Self::Qwen3 { .. } | Self::Glm45 { .. } => &["enable_thinking"],
            Self::Qwen35 { .. } => &["enable_thinking", "add_vision_id"],
            Self::Llama3 { .. } => &["date_string", "tools_in_user_message"],
            Self::GptOss { .. } => &["reasoning_effort", "conversation_start_date"],
            Self::MiniMaxM2 { .. } => &["model_identity"],
            _ => &[],
        }
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let (name, known) = (self.name(), self.variables());
        let flag = || value.as_bool().ok_or_else(|| format!("`chat_template_kwargs.{key}` must be true or false"));
        let text =
            || value.as_str().map(str::to_owned).ok_or_else(|| format!("`chat_template_kwargs.{key}` must be a text"));
        match (self, key) {
            (Self::Default { .. }, "tool_parser" | "reasoning_parser" | "thinking_retention") => {
                return Err(format!("`{key}` is no variable of a template; set `client.renderer.{key}`"));
            }
            (Self::Default { template, .. }, _) => drop(template.insert(key.to_owned(), value.clone())),
            (Self::Qwen3 { enable_thinking } | Self::Glm45 { enable_thinking }, "enable_thinking") => {
                *enable_thinking = flag()?;
            }
            (Self::Qwen35 { enable_thinking, .. }, "enable_thinking") => *enable_thinking = Some(flag()?),
            (Self::Qwen35 { add_vision_id, .. }, "add_vision_id") => *add_vision_id = flag()?,
            (Self::Llama3 { date_string, .. }, "date_string") => *date_string = text()?,
            (Self::Llama3 { tools_in_user_message, .. }, "tools_in_user_message") => *tools_in_user_message = flag()?,
            (Self::GptOss { reasoning_effort, .. }, "reasoning_effort") => {
                *reasoning_effort = text()?;
                if !Self::EFFORTS.contains(&reasoning_effort.as_str()) {
                    return Err(format!(
                        "`chat_template_kwargs.{key}` = `{reasoning_effort}` is unknown; expected one of {}",
                        Self::EFFORTS.join(", ")
                    ));
                }
            }
            (Self::GptOss { conversation_start_date, .. }, "conversation_start_date") => {
                *conversation_start_date = Some(text()?);
            }
            (Self::MiniMaxM2 { model_identity }, "model_identity") => *model_identity = Some(text()?),
            (Self::Auto, _) => {
                return Err(format!(
                    "`chat_template_kwargs.{key}` needs `client.renderer.name`: which variables there are depends on the family"
                ));
            }
            _ => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(format!("the renderer `{name}` has no variable `{key}`; it has {known}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(name: &str, kwargs: Value) -> Result<FamilyConfig, String> {
        let family = FamilyConfig::named(name).unwrap();
        let config = RendererConfig { family, thinking_retention: None };
        config.with_template_kwargs(kwargs.as_object().unwrap()).map(|config| config.family)
    }

    #[test]
    fn only_variables_of_the_template_are_taken() {
        let enabled = with("qwen3", json!({ "enable_thinking": false }));
        assert_eq!(enabled, Ok(FamilyConfig::Qwen3 { enable_thinking: false }));
        let numbered = with("qwen3.5", json!({ "add_vision_id": true }));
        assert_eq!(numbered, Ok(FamilyConfig::Qwen35 { enable_thinking: None, add_vision_id: true }));
        let told = |name, kwargs| with(name, kwargs).unwrap_err();
        assert!(told("qwen3", json!({ "enable_thinking": "no" })).contains("must be true or false"));
        assert!(told("qwen3", json!({ "add_vision_id": true })).contains("it has enable_thinking"));
        // The template of Kimi K2 does not know the field; the renderer's own setting is another matter.
        assert!(told("kimi-k2", json!({ "enable_thinking": true })).contains("it has none"));
        assert!(told("gpt-oss", json!({ "reasoning_effort": "huge" })).contains("expected one of low, medium, high"));
        assert!(told("gpt-oss", json!({ "use_system_prompt": true })).contains("has no variable"));
        assert!(told("default", json!({ "tool_parser": "qwen3" })).contains("client.renderer.tool_parser"));
        let Ok(FamilyConfig::Default { template, .. }) = with("default", json!({ "anything": [1] })) else { panic!() };
        assert_eq!(template["anything"], json!([1]));
    }
}
