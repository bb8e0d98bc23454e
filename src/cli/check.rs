//! `rollhouse check`: what a model's chat template does to a rollout of several turns, before one is run.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};

use super::{
    exit::{self, Failure},
    output,
};
use crate::{
    config::{FamilyConfig, RendererConfig},
    render::{self, Finding, History, TemplateCheck},
};

/// What to check.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// The model: its id, by which its family is known, or a folder with its tokenizer.
    #[arg(short, long)]
    pub model: String,

    /// Folder of the tokenizer, or another model of the hub's cache; the model itself when left out.
    #[arg(long)]
    pub tokenizer: Option<String>,

    /// The renderer, as `client.renderer.name` names it.
    #[arg(long, default_value = "auto")]
    pub renderer: String,

    /// JSON in place of text.
    #[arg(long)]
    pub json: bool,
}

/// Says what was found on standard output.
///
/// # Errors
/// There is no such renderer, or no training run with it could work.
pub(super) fn run(args: CheckArgs) -> Result<ExitCode, Failure> {
    let family = FamilyConfig::named(&args.renderer).ok_or_else(|| {
        let known = FamilyConfig::NAMES.join(", ");
        Failure::usage(anyhow::anyhow!("unknown renderer `{}`; choose one of {known}", args.renderer))
    })?;
    let config = RendererConfig { family, ..RendererConfig::default() };
    let choice = render::open(&config, &args.model, args.tokenizer.as_deref(), &Map::new()).map_err(Failure::failed)?;
    let finding = render::check(&choice).map_err(Failure::failed)?;
    let text = if args.json {
        let text = serde_json::to_string_pretty(&as_json(&args.model, &finding)).map_err(Failure::failed)?;
        format!("{text}\n")
    } else {
        in_words(&args.model, &finding)
    };
    output::print(text)?;
    Ok(exit::DONE.into())
}

fn in_words(model: &str, finding: &Finding) -> String {
    let mut out = format!("{model}: renderer {} ({})\n", finding.renderer, finding.reason);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\na turn ends with   {}", finding.stops.join("  "));
    let template = match &finding.template {
        None => "the model has none to compare with".to_owned(),
        Some(TemplateCheck::Same) => "writes the same tokens".to_owned(),
        Some(TemplateCheck::Refuses(reason)) => format!("refuses the conversation: {reason}"),
        Some(TemplateCheck::Differs { ours, theirs }) => {
            format!("differs\n                     renderer {ours:?}\n                     template {theirs:?}")
        }
    };
    let _ = writeln!(out, "its own template   {template}");
    let history = match finding.history {
        History::Kept => "is kept when it is rendered anew: turns merge",
        History::ReasoningDropped => {
            "loses the reasoning of earlier turns when the user speaks again: those turns cannot merge with later ones"
        }
        History::Changed => "comes out otherwise when it is rendered anew: turns split",
    };
    let _ = writeln!(out, "history            {history}");
    let _ = writeln!(out, "\na rollout of six turns comes to\n  {:<20} samples  tokens  of them twice", "");
    for policy in &finding.policies {
        let _ =
            writeln!(out, "  {:<20} {:>7} {:>7} {:>14}", policy.name, policy.samples, policy.tokens, policy.duplicated);
    }
    let _ = writeln!(out, "\ntoken identity: {}", finding.identity());
    out
}

fn as_json(model: &str, finding: &Finding) -> Value {
    let template = match &finding.template {
        None => Value::Null,
        Some(TemplateCheck::Same) => json!({ "result": "same" }),
        Some(TemplateCheck::Refuses(reason)) => json!({ "result": "refuses", "reason": reason }),
        Some(TemplateCheck::Differs { ours, theirs }) => {
            json!({ "result": "differs", "renderer": ours, "template": theirs })
        }
    };
    let history = match finding.history {
        History::Kept => "kept",
        History::ReasoningDropped => "reasoning_dropped",
        History::Changed => "changed",
    };
    let policies = finding.policies.iter().map(|policy| {
        json!({
            "name": policy.name, "samples": policy.samples, "tokens": policy.tokens, "duplicated": policy.duplicated,
        })
    });
    json!({
        "model": model,
        "renderer": finding.renderer,
        "reason": finding.reason,
        "stops": finding.stops,
        "template": template,
        "history": history,
        "policies": policies.collect::<Vec<_>>(),
        "token_identity": finding.identity(),
    })
}
