//! Models' files on this machine, and the renderer that belongs to a model.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex},
};

use serde_json::{Map, Value};

use super::{RenderError, Renderer, Tokenizer, family, template::ChatTemplate};
use crate::{
    config::{FamilyConfig, RendererConfig},
    telemetry::hub_cache,
};

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    folder: PathBuf,
}

impl ModelFiles {
    /// Finds them: `model` is a folder, or `owner/name` in the Hugging Face cache (`HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `~/.cache/huggingface/hub`), in the revision `main`. Nothing is downloaded.
    ///
    /// # Errors
    /// They are not there, or have no tokenizer.
    pub fn find(model: &str) -> Result<Self, RenderError> {
        Self::find_in(model, &hub_cache(env::var_os))
    }

    fn find_in(model: &str, cache: &Path) -> Result<Self, RenderError> {
        let folder = Path::new(model);
        if folder.is_dir() {
            return match Tokenizer::is_in(folder) {
                true => Ok(Self { folder: folder.to_owned() }),
                false => Err(RenderError::File {
                    path: folder.to_owned(),
                    reason: "has no `tokenizer.json`; name the folder with a model's tokenizer".to_owned(),
                }),
            };
        }
        let is_name = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
        };
        let missing = |what: String| {
            Err(RenderError::Unresolved(format!(
                "{what}; name the folder of its tokenizer in `client.renderer_model_name`, or fetch it once with `hf download \
                 {model} --include \"tokenizer*\" \"tiktoken*\" \"*.jinja\"`"
            )))
        };
        if !model.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
            return Err(RenderError::Unresolved(format!(
                "`{model}` is neither a folder nor a model of the hub, `owner/name`; name the folder of its tokenizer in \
                 `client.renderer_model_name`"
            )));
        }
        let repo = cache.join(format!("models--{}", model.replace('/', "--")));
        let Ok(commit) = fs::read_to_string(repo.join("refs/main")) else {
            return missing(format!("`{model}` is not in the Hugging Face cache {}", cache.display()));
        };
        let folder = repo.join("snapshots").join(commit.trim());
        match Tokenizer::is_in(&folder) {
            true => Ok(Self { folder }),
            false => {
                missing(format!("the Hugging Face cache {} has no `tokenizer.json` of `{model}`", cache.display()))
            }
        }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The hub's name of the model, where the files lie in the hub's cache.
    fn hub_name(&self) -> Option<String> {
        let folder = self.folder.canonicalize().ok()?;
        let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
        let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
        name.split_once("--").map(|(owner, name)| format!("{owner}/{name}"))
    }

    /// The model that these files were made from, as they say themselves. What was made may have another template.
    fn origin(&self) -> Option<String> {
        ["config.json", "tokenizer_config.json"].into_iter().find_map(|file| {
            let json: Value = serde_json::from_slice(&fs::read(self.folder.join(file)).ok()?).ok()?;
            ["_name_or_path", "name_or_path"].into_iter().find_map(|key| json[key].as_str()).map(str::to_owned)
        })
    }

    /// The model's own chat template, if it has one.
    ///
    /// # Errors
    /// A file cannot be read, or the template does not parse.
    pub fn template(&self) -> Result<Option<ChatTemplate>, RenderError> {
        ChatTemplate::of(&self.folder)
    }

    /// Whether the model sees more than text.
    fn is_multimodal(&self) -> bool {
        let config = fs::read(self.folder.join("config.json")).ok();
        let config: Value = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        ["vision_config", "vision_tower", "image_token_id"].into_iter().any(|key| !config[key].is_null())
    }
}

/// A renderer, and why it is this one.
#[derive(Clone)]
pub struct Choice {
    /// The renderer.
    pub renderer: Arc<dyn Renderer>,
    /// The files it was made from.
    pub files: ModelFiles,
    /// Why, in a sentence.
    pub reason: String,
    /// Nobody named the family, and none is known for the model: its own template is used, which cannot be extended.
    pub fell_back: bool,
}

/// Opens the renderer of a model. `files` is another place for its tokenizer; `auto` knows a family by that id first, as the
/// package `renderers` does, since the model asked for may be an adapter of any name, and else by `model`. `variables` are
/// those of its template. Equal inputs share one renderer within the process. Blocks for up to seconds.
///
/// # Errors
/// No files, no family and no template, a tokenizer that does not fit, or a variable that the template does not have.
pub fn open(
    config: &RendererConfig,
    model: &str,
    files: Option<&str>,
    variables: &Map<String, Value>,
) -> Result<Choice, RenderError> {
    type Opened = Mutex<HashMap<String, Choice>>;
    static OPENED: LazyLock<Opened> = LazyLock::new(Mutex::default);
    let key = format!("{config:?} {model:?} {files:?} {variables:?}");
    // Whoever comes second waits rather than read the same file again; nothing awaits in here.
    let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(choice) = opened.get(&key) {
        return Ok(choice.clone());
    }
    let found = ModelFiles::find(files.unwrap_or(model))?;
    let choice = choose(config, [files.unwrap_or(model), model], &found, variables)?;
    opened.insert(key, choice.clone());
    Ok(choice)
}

fn choose(
    config: &RendererConfig,
    ids: [&str; 2],
    files: &ModelFiles,
    variables: &Map<String, Value>,
) -> Result<Choice, RenderError> {
    let mut config = config.clone();
    let model = ids[0];
    let mut fell_back = false;
    let mut reason = "the configuration names it".to_owned();
    // Some families go by the id as well; that of an adapter would tell them nothing.
    let [place, asked] = ids.map(str::to_owned);
    let named = [Some(place), files.hub_name(), Some(asked.clone())].into_iter().flatten();
    let known = named.into_iter().find_map(|id| family::of_model(&id).map(|family| (id, family)));
    let id = known.as_ref().map_or(asked, |(id, _)| id.clone());
    if config.family == FamilyConfig::Auto {
        // No more than a hint: the files may have been changed since.
        let origin = files.origin().and_then(|origin| family::of_model(&origin).map(|family| (origin, family.name())));
        let hint = origin.map_or_else(String::new, |(origin, family)| {
            format!(" (its files name `{origin}`, whose renderer is `{family}`)")
        });
        if let Some((id, family)) = known {
            reason = format!("`{id}` is of this family");
            config.family = family;
        } else if !variables.is_empty() {
            return Err(RenderError::Unresolved(format!(
                "no family is known for `{model}`, so that `sampling.chat_template_kwargs` cannot be checked; name a \
                 renderer in `client.renderer.name`"
            )));
        } else if files.is_multimodal() {
            return Err(RenderError::Unresolved(format!(
                "no renderer is known for `{model}`{hint}, which sees images: its chat template alone would lose them; name a \
                 renderer in `client.renderer.name`"
            )));
        } else if files.template()?.is_some() {
            reason = format!("no family is known for `{model}`{hint}, so that its own chat template is used");
            fell_back = true;
            config.family =
                FamilyConfig::Default { tool_parser: None, reasoning_parser: None, template: Default::default() };
        } else {
            return Err(RenderError::Unresolved(format!(
                "no renderer is known for `{model}`{hint}, and it has no chat template; name a renderer in \
                 `client.renderer.name`"
            )));
        }
    }
    let config = config.with_template_kwargs(variables).map_err(RenderError::Unresolved)?;
    let tokenizer = Arc::new(Tokenizer::from_folder(files.folder())?);
    let renderer = family::renderer(&config, &id, files.folder(), tokenizer)?;
    Ok(Choice { renderer, files: files.clone(), reason, fell_back })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests prepare files")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_are_found_in_folders_and_in_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let snapshot = cache.path().join("models--a--b/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(cache.path().join("models--a--b/refs")).unwrap();
        let find = |model: &str| ModelFiles::find_in(model, cache.path()).map(|files| files.folder);
        let told = |model: &str| find(model).unwrap_err().to_string();
        assert!(told("a/b").contains("is not in the Hugging Face cache"), "{}", told("a/b"));
        fs::write(cache.path().join("models--a--b/refs/main"), "abc\n").unwrap();
        assert!(told("a/b").contains("has no `tokenizer.json` of `a/b`"), "{}", told("a/b"));
        fs::write(snapshot.join("tokenizer.json"), "{}").unwrap();
        assert_eq!(find("a/b").unwrap(), snapshot);
        assert_eq!(find(snapshot.to_str().unwrap()).unwrap(), snapshot);
        for wrong in ["no-folder", "../no-folder", "a/../no-folder", "a/b/c", ".a/b"] {
            assert!(told(wrong).contains("neither a folder nor a model of the hub"), "{}", told(wrong));
        }
        assert!(told(cache.path().to_str().unwrap()).contains("has no `tokenizer.json`"));
    }

    /// A folder with a tokenizer that has the tokens of ChatML, and further files.
    fn model(folder: &Path, files: &[(&str, Value)]) {
        let added =
            ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|endoftext|>"];
        let added: Vec<Value> = added
            .iter()
            .enumerate()
            .map(|(at, content)| {
                json!({
                    "id": at + 1, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true,
                })
            })
            .collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": added,
            "model": { "type": "WordLevel", "vocab": { "?": 0 }, "unk_token": "?" },
        });
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        for (file, value) in files {
            fs::write(folder.join(file), value.to_string()).unwrap();
        }
    }

    #[test]
    fn a_family_is_found_by_the_names_of_a_model_and_never_silently_guessed() {
        let root = tempfile::tempdir().unwrap();
        let auto = RendererConfig::default();
        let choose = |model: &str, place: Option<&str>, folder: &Path| {
            choose(&auto, [place.unwrap_or(model), model], &ModelFiles { folder: folder.to_owned() }, &Map::new())
                .map(|choice| (choice.renderer.name(), choice.reason, choice.fell_back))
        };
        let (plain, cached) = (root.path().join("plain"), root.path().join("models--Qwen--Qwen3-8B/snapshots/abc"));
        model(&plain, &[]);
        model(&cached, &[]);
        for (asked, place, folder) in [
            ("Qwen/Qwen3-8B", None, &plain),
            ("my-policy", Some("Qwen/Qwen3-8B"), &plain),
            // The place of the tokenizer says more than the name that an engine serves it by.
            ("Qwen/Qwen2.5-7B-Instruct", Some("Qwen/Qwen3-8B"), &plain),
            ("my-policy", None, &cached),
        ] {
            let (name, reason, fell_back) = choose(asked, place, folder).unwrap();
            assert_eq!((name, fell_back), ("qwen3", false), "{asked} in {place:?}: {reason}");
            assert!(reason.contains("`Qwen/Qwen3-8B` is of this family"), "{reason}");
        }
        let error = choose("me/tuned", None, &plain).err().unwrap().to_string();
        assert!(error.contains("no renderer is known for `me/tuned`, and it has no chat template"), "{error}");

        let (tuned, seeing) = (root.path().join("tuned"), root.path().join("seeing"));
        let own = json!({ "chat_template": "{{ messages[0].content }}", "eos_token": "<|im_end|>" });
        let origin = ("config.json", json!({ "_name_or_path": "Qwen/Qwen3-8B" }));
        model(&tuned, &[("tokenizer_config.json", own.clone()), origin]);
        let (name, reason, fell_back) = choose("me/tuned", None, &tuned).unwrap();
        assert_eq!((name, fell_back), ("default", true));
        assert!(reason.contains("its files name `Qwen/Qwen3-8B`, whose renderer is `qwen3`"), "{reason}");
        model(&seeing, &[("tokenizer_config.json", own), ("config.json", json!({ "vision_config": {} }))]);
        let error = choose("me/seeing", None, &seeing).err().unwrap().to_string();
        assert!(error.contains("would lose them"), "{error}");
    }

    #[test]
    fn a_family_is_known_by_the_id_of_the_tokenizer_and_then_by_that_of_the_model() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sim-model");
        let files = ModelFiles::find(folder).unwrap();
        let chosen = |ids, variables: Value| {
            let variables = variables.as_object().unwrap();
            choose(&RendererConfig::default(), ids, &files, variables).map_err(|error| error.to_string())
        };
        let none = || serde_json::json!({});
        let known = "HuggingFaceTB/SmolLM2-135M-Instruct";
        for ids in [[known, "my-adapter"], [folder, known]] {
            let choice = chosen(ids, none()).unwrap();
            assert_eq!((choice.renderer.name(), choice.fell_back), ("smollm2", false));
            assert!(choice.reason.contains(known), "{}", choice.reason);
        }
        let choice = chosen(["my/model", "my/model"], none()).unwrap();
        assert_eq!((choice.renderer.name(), choice.fell_back), ("default", true));
        let told = |ids, variables| chosen(ids, variables).err().unwrap();
        let thinks = || serde_json::json!({ "enable_thinking": false });
        assert!(told(["my/model", "my/model"], thinks()).contains("client.renderer.name"));
        // Known by `auto`, its variables are, too.
        assert!(told([known, known], thinks()).contains("`smollm2` has no variable `enable_thinking`"));
    }
}
