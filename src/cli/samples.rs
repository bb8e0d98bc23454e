//! `rollhouse samples`: what the traces of a run come to as training samples.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, anyhow};

use super::{
    exit::{self, Failure},
    output,
};
use crate::{
    orchestrator::{TrainingSample, samples},
    report,
    store::{read_line, scan, traces_of, write_atomically},
    trace::Episode,
};

/// Which run, and where to write its samples.
#[derive(Debug, clap::Args)]
pub(super) struct SamplesArgs {
    /// The run: its folder, or its name below the output folder.
    pub run: String,

    /// Write the samples: an array of MessagePack (`.msgpack`), or JSON lines (`.jsonl`). Router rows and images are in no
    /// journal, and so not in the samples either.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The folder that holds the runs.
    #[arg(short = 'd', long, default_value = "outputs")]
    pub output_dir: PathBuf,
}

/// The form of a file of samples.
#[derive(Clone, Copy)]
enum Form {
    MessagePack,
    JsonLines,
}

/// What the samples of a run come to.
#[derive(Default)]
struct Counts {
    episodes: usize,
    traces: usize,
    untokenized: usize,
    branches: usize,
    samples: usize,
    tokens: usize,
    trained: usize,
    /// Tokens that stand in more than one sample of their trace, each time beyond the first.
    repeated: usize,
}

/// Counts the samples on standard output, and writes them where asked.
///
/// # Errors
/// There is no such run, it cannot be read, a trace cannot be trained on, or the file cannot be written.
pub(super) fn run(args: SamplesArgs) -> Result<ExitCode, Failure> {
    let form = args.output.as_deref().map(form_of).transpose().map_err(Failure::usage)?;
    let run = report::find_run(&args.run, &args.output_dir).map_err(Failure::usage)?;
    let journal = traces_of(&run);
    let mut spans = Vec::new();
    let found = scan(&journal, |row| spans.push(row.span)).map_err(Failure::failed)?;
    let mut counts = Counts { episodes: spans.len(), ..Counts::default() };
    let mut written = Vec::new();
    for span in spans {
        let line = read_line(&journal, span).map_err(Failure::failed)?;
        let episode = Episode::from_line(line.as_bytes()).map_err(Failure::failed)?;
        let env = episode.env.name.as_deref().unwrap_or(&episode.env.id);
        for trace in &episode.traces {
            let samples =
                samples(trace, env).with_context(|| format!("trace {}", trace.id)).map_err(Failure::failed)?;
            let nodes = trace.graph.nodes();
            counts.traces += 1;
            counts.untokenized += usize::from(nodes.iter().all(|node| node.tokens.ids().is_empty()));
            let leaves = trace.graph.leaves();
            counts.branches += leaves.len();
            counts.add(&samples);
            counts.repeated += repeated(trace);
            if let Some(form) = form {
                write(&samples, form, &mut written).map_err(Failure::failed)?;
            }
        }
    }
    if let (Some(path), Some(form)) = (&args.output, form) {
        let content = match form {
            Form::MessagePack => [array_head(counts.samples), written].concat(),
            Form::JsonLines => written,
        };
        write_atomically(path, &content).map_err(Failure::failed)?;
    }
    if !found.malformed.is_empty() {
        output::note(&format!("{} lines of the journal are no episodes and were left out", found.malformed.len()));
    }
    output::print(counts.text())?;
    Ok(exit::DONE.into())
}

impl Counts {
    fn add(&mut self, samples: &[TrainingSample]) {
        self.samples += samples.len();
        self.tokens += samples.iter().map(|sample| sample.token_ids.len()).sum::<usize>();
        self.trained += samples.iter().flat_map(|sample| &sample.mask).filter(|trained| **trained).count();
    }

    fn text(&self) -> String {
        let Self { episodes, traces, untokenized, branches, samples, tokens, trained, repeated } = self;
        let mut text = format!(
            "episodes  {episodes}\ntraces    {traces}\nbranches  {branches}\nsamples   {samples}\ntokens    {tokens}\n\
             trained   {trained}\nrepeated  {repeated}\n"
        );
        if *untokenized > 0 {
            text +=
                &format!("{untokenized} traces hold no tokens: their client recorded none, so they give no samples\n");
        }
        text
    }
}

/// Tokens of a trace that a later sample repeats: of each node, once less than the samples that hold it.
fn repeated(trace: &crate::trace::Trace) -> usize {
    let graph = &trace.graph;
    let mut trained = HashSet::new();
    let mut held = HashSet::new();
    let mut repeated = 0;
    for leaf in graph.leaves() {
        let path = graph.path(leaf);
        let node = |index: &u32| &graph.nodes()[*index as usize];
        // A branch is a sample when something in it is trained for the first time.
        let gives = path.iter().filter(|index| {
            let trains = node(index).tokens.mask().count() > 0;
            trains && (!node(index).sampled || trained.insert(**index))
        });
        if gives.count() > 0 {
            let again = path.iter().filter(|index| !held.insert(**index));
            repeated += again.map(|index| node(index).tokens.ids().len()).sum::<usize>();
        }
    }
    repeated
}

fn form_of(path: &Path) -> Result<Form, anyhow::Error> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("msgpack") => Ok(Form::MessagePack),
        Some("jsonl") => Ok(Form::JsonLines),
        _ => Err(anyhow!("the file of samples must end in .msgpack or .jsonl: {}", path.display())),
    }
}

fn write(samples: &[TrainingSample], form: Form, written: &mut Vec<u8>) -> Result<(), anyhow::Error> {
    for sample in samples {
        match form {
            Form::MessagePack => rmp_serde::encode::write(written, sample)?,
            Form::JsonLines => {
                serde_json::to_writer(&mut *written, sample)?;
                written.push(b'\n');
            }
        }
    }
    Ok(())
}

/// The head of a MessagePack array, in its smallest form.
fn array_head(length: usize) -> Vec<u8> {
    match length {
        0..16 => vec![0x90 | length as u8],
        16..0x1_0000 => [&[0xdc][..], &(length as u16).to_be_bytes()].concat(),
        _ => [&[0xdd][..], &(length as u32).to_be_bytes()].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_begins_as_its_encoder_would_begin_it() {
        for length in [0, 15, 16, 65_535, 65_536] {
            let encoded = rmp_serde::to_vec(&vec![1_u32; length]).unwrap();
            assert!(encoded.starts_with(&array_head(length)), "{length}");
            assert_eq!(encoded.len() - array_head(length).len(), length);
        }
    }
}
