//! What a renderer does to a conversation of several turns, found out before any rollout.

use serde_json::{Map, json};

use super::{Choice, Previous, RenderError, Renderer};
use crate::trace::{AssistantMessage, Message};

/// Turns of the conversation that is tried.
const TURNS: usize = 6;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The renderer's name.
    pub renderer: &'static str,
    /// Why it is this one.
    pub reason: String,
    /// The texts of the tokens that end a turn.
    pub stops: Vec<String>,
    /// Whether the model's own chat template writes the same; `None` where it has none.
    pub template: Option<TemplateCheck>,
    /// What a new question does to the reasoning of earlier turns, when the conversation is rendered anew.
    pub history: History,
    /// What a rollout of six turns comes to: extended where it can be, rendered anew each turn, and with a sample for each turn.
    pub policies: [Policy; 3],
}

/// What the model's own template makes of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateCheck {
    /// The same tokens.
    Same,
    /// Other tokens; the texts around the first difference.
    Differs {
        /// What the renderer writes.
        ours: String,
        /// What the template writes.
        theirs: String,
    },
    /// It refuses the conversation; why.
    Refuses(String),
}

/// What rendering anew does to what was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It comes out as it was.
    Kept,
    /// The reasoning of earlier turns is gone.
    ReasoningDropped,
    /// It comes out otherwise.
    Changed,
}

/// One way of going on, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// Training samples of the rollout.
    pub samples: usize,
    /// Tokens of all samples.
    pub tokens: usize,
    /// Tokens that stand in an earlier sample already.
    pub duplicated: usize,
}

/// A turn: what was sent and what was sampled.
struct Turn {
    prompt: Vec<u32>,
    completion: Vec<u32>,
}

/// Tries a conversation with reasoning and several questions.
///
/// # Errors
/// The renderer cannot write it: no training run could work.
pub fn check(choice: &Choice) -> Result<Finding, RenderError> {
    let renderer = &*choice.renderer;
    let rerendered = turns(renderer, false)?;
    let extended = turns(renderer, true)?;
    let stops = renderer.stop_ids().iter().map(|id| renderer.tokenizer().decode(&[*id])).collect();
    Ok(Finding {
        renderer: renderer.name(),
        reason: choice.reason.clone(),
        stops,
        template: against_template(choice)?,
        history: history(renderer)?,
        policies: [
            policy("extend", &extended, true),
            policy("render anew", &rerendered, true),
            policy("a sample per turn", &extended, false),
        ],
    })
}

impl Finding {
    /// Whether what is trained is exactly what was sampled, whatever the number of turns, in a sentence.
    pub fn identity(&self) -> &'static str {
        match self.policies[0].samples {
            1 => "exact: every turn extends what was sampled, and a rollout is one sample",
            _ if self.renderer == "default" => {
                "exact within a turn: this template cannot be extended, so that a turn whose history comes out otherwise begins a \
                 new sample"
            }
            _ => {
                "exact: what was sampled is never tokenized again; where the template drops reasoning, a new sample begins"
            }
        }
    }

    /// The finding in one line, for the beginning of a run.
    pub fn line(&self) -> String {
        let extend = &self.policies[0];
        let history = match self.history {
            History::Kept => "history is kept",
            History::ReasoningDropped => "earlier reasoning is dropped when the user speaks",
            History::Changed => "history changes when it is rendered anew",
        };
        format!(
            "renderer {} ({}): {history}; {TURNS} turns come to {} sample{}; token identity {}",
            self.renderer,
            self.reason,
            extend.samples,
            if extend.samples == 1 { "" } else { "s" },
            self.identity()
        )
    }
}

fn question(turn: usize) -> Message {
    Message::user(format!("Question {turn}: what comes after {turn}?"))
}

fn answer(turn: usize) -> Message {
    Message::Assistant(AssistantMessage {
        content: Some(format!("{} comes next.", turn + 1)),
        reasoning_content: Some(format!("The number after {turn} is {}.", turn + 1)),
        ..AssistantMessage::default()
    })
}

fn begin() -> Vec<Message> {
    vec![Message::system("You count."), question(1)]
}

/// The ids that the model would have sampled for the last answer of a conversation, given what was sent.
fn sampled(renderer: &dyn Renderer, conversation: &[Message], prompt: &[u32]) -> Result<Vec<u32>, RenderError> {
    let rendered = renderer.render(conversation, &[], false)?;
    if let Some(runs) = &rendered.runs {
        let last = conversation.len() as u32 - 1;
        let (mut at, mut ids) = (0, Vec::new());
        for run in runs {
            let end = at + run.length as usize;
            if run.place.sampled && run.place.message == Some(last) {
                ids.extend_from_slice(&rendered.ids[at..end]);
            }
            at = end;
        }
        // A format that ends a turn with who speaks next has no end of its own here.
        if !ids.last().is_some_and(|id| renderer.stop_ids().contains(id)) {
            ids.extend(renderer.stop_ids().first());
        }
        return Ok(ids);
    }
    let whole = rendered.ids.strip_prefix(prompt);
    let plain = || renderer.tokenizer().encode_plain(&conversation[conversation.len() - 1].text());
    let mut ids = whole.map_or_else(plain, <[u32]>::to_vec);
    match ids.iter().position(|id| renderer.stop_ids().contains(id)) {
        Some(end) => ids.truncate(end + 1),
        None => ids.extend(renderer.stop_ids().first()),
    }
    Ok(ids)
}

fn turns(renderer: &dyn Renderer, extend: bool) -> Result<Vec<Turn>, RenderError> {
    let mut conversation = begin();
    let mut turns: Vec<Turn> = Vec::new();
    for number in 1..=TURNS {
        let tail = std::slice::from_ref(&conversation[conversation.len() - 1]);
        let bridged = turns.last().filter(|_| extend).and_then(|last| {
            let previous = Previous { prompt: &last.prompt, completion: &last.completion };
            let extension = renderer.bridge(previous, tail, &[]).ok()?;
            Some([&*last.prompt, &last.completion, &extension.ids].concat())
        });
        let prompt = match bridged {
            Some(prompt) => prompt,
            None => renderer.render(&conversation, &[], true)?.ids,
        };
        conversation.push(answer(number));
        let completion = sampled(renderer, &conversation, &prompt)?;
        turns.push(Turn { prompt, completion });
        conversation.push(question(number + 1));
    }
    Ok(turns)
}

fn policy(name: &'static str, turns: &[Turn], merges: bool) -> Policy {
    let mut samples: Vec<Vec<u32>> = Vec::new();
    for turn in turns {
        let whole = [&*turn.prompt, &turn.completion].concat();
        match samples.last_mut() {
            Some(last) if merges && turn.prompt.starts_with(last) => *last = whole,
            _ => samples.push(whole),
        }
    }
    let common = |pair: &[Vec<u32>]| pair[0].iter().zip(&pair[1]).take_while(|(one, other)| one == other).count();
    Policy {
        name,
        samples: samples.len(),
        tokens: samples.iter().map(Vec::len).sum(),
        duplicated: samples.windows(2).map(common).sum(),
    }
}

fn history(renderer: &dyn Renderer) -> Result<History, RenderError> {
    let mut conversation = begin();
    let prompt = renderer.render(&conversation, &[], true)?.ids;
    conversation.push(answer(1));
    let completion = sampled(renderer, &conversation, &prompt)?;
    conversation.push(question(2));
    let anew = renderer.render(&conversation, &[], true)?.ids;
    if anew.starts_with(&[&*prompt, &completion].concat()) {
        return Ok(History::Kept);
    }
    let text = renderer.tokenizer().decode(&anew);
    let reasons = renderer.tokenizer().decode(&completion).contains("The number after 1");
    Ok(if reasons && !text.contains("The number after 1") { History::ReasoningDropped } else { History::Changed })
}

fn against_template(choice: &Choice) -> Result<Option<TemplateCheck>, RenderError> {
    let renderer = &*choice.renderer;
    let Some(template) = choice.files.template()? else { return Ok(None) };
    if renderer.name() == "default" {
        return Ok(Some(TemplateCheck::Same));
    }
    let mut conversation = begin();
    conversation.extend([answer(1), question(2)]);
    let messages: Vec<_> = conversation
        .iter()
        .map(|message| match message {
            Message::Assistant(answer) => {
                json!({ "role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning_content })
            }
            Message::System(_) => json!({ "role": "system", "content": message.text() }),
            _ => json!({ "role": "user", "content": message.text() }),
        })
        .collect();
    let theirs = match template.render(&messages, &[], true, &Map::new()) {
        Ok(text) => renderer.tokenizer().encode(&text),
        Err(reason) => return Ok(Some(TemplateCheck::Refuses(reason))),
    };
    let ours = renderer.render(&conversation, &[], true)?.ids;
    if ours == theirs {
        return Ok(Some(TemplateCheck::Same));
    }
    let at = ours.iter().zip(&theirs).position(|(one, other)| one != other).unwrap_or(ours.len().min(theirs.len()));
    let around = |ids: &[u32]| renderer.tokenizer().decode(&ids[at.saturating_sub(8)..(at + 12).min(ids.len())]);
    Ok(Some(TemplateCheck::Differs { ours: around(&ours), theirs: around(&theirs) }))
}
