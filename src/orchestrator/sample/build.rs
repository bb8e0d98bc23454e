//! From the branches of a trace to its samples.

use indexmap::IndexMap;

use super::{Routing, SampleError, StackedTensor, TrainingSample};
use crate::trace::{CreditStream, Node, NodeTokens, Tensor, Trace};

/// The loss streams, in the order of their fields.
const STREAMS: [&str; 3] = ["rl", "ce", "ref_kl"];

/// The samples of a trace, by ascending leaf. `temperatures` are left empty. A branch with nothing to train that no
/// earlier one trained gives none.
///
/// # Errors
/// Router rows or image tensors of one branch do not fit together.
pub fn samples(trace: &Trace, env: &str) -> Result<Vec<TrainingSample>, SampleError> {
    let graph = &trace.graph;
    let mut trained = vec![false; graph.nodes().len()];
    let mut weighted = STREAMS.map(|_| vec![false; graph.nodes().len()]);
    let mut samples = Vec::new();
    for leaf in graph.leaves() {
        let path = graph.path(leaf);
        let nodes: Vec<&Node> = path.iter().map(|node| &graph.nodes()[*node as usize]).collect();
        let tokens: usize = nodes.iter().map(|node| node.tokens.ids().len()).sum();
        let mut mask = Vec::with_capacity(tokens);
        for (position, node) in path.iter().zip(&nodes) {
            let known = &mut trained[*position as usize];
            if node.sampled && *known {
                mask.resize(mask.len() + node.tokens.ids().len(), false);
            } else {
                mask.extend(node.tokens.mask().iter());
                *known |= node.sampled && node.tokens.mask().count() > 0;
            }
        }
        if !mask.contains(&true) {
            continue;
        }
        let mut streams = STREAMS.iter().zip(&mut weighted).map(|(name, known)| stream(name, known, &path, &nodes));
        let mut next = || streams.next().flatten();
        let (rl_weights, ce_weights, ref_kl_weights) = (next(), next(), next());
        let mm_kwargs = images(&nodes)?;
        let kinds = graph.mm_token_type_id_map();
        let kind = |id: &u32| kinds.get(id).copied().unwrap_or(0);
        samples.push(TrainingSample {
            token_ids: joined(&nodes, tokens),
            mask,
            logprobs: spread(&nodes, tokens, |node| Some(node.logprobs())),
            temperatures: Vec::new(),
            env_name: env.to_owned(),
            ref_logprobs: credit(&nodes, tokens, CreditStream::ReferenceLogprobs),
            mm_token_type_ids: mm_kwargs
                .is_some()
                .then(|| nodes.iter().flat_map(|node| node.tokens.ids().iter().map(kind)).collect()),
            mm_kwargs,
            routed_experts: routing(&nodes)?,
            rl_weights,
            ce_weights,
            ref_kl_weights,
            advantages: credit(&nodes, tokens, CreditStream::Advantages),
        });
    }
    Ok(samples)
}

fn joined(nodes: &[&Node], tokens: usize) -> Vec<u32> {
    let mut ids = Vec::with_capacity(tokens);
    nodes.iter().for_each(|node| ids.extend_from_slice(node.tokens.ids()));
    ids
}

fn credit(nodes: &[&Node], tokens: usize, stream: CreditStream) -> Option<Vec<f32>> {
    let is_known = nodes.iter().any(|node| node.tokens.credit(stream).is_some());
    is_known.then(|| spread(nodes, tokens, |node| node.credit(stream)))
}

/// Values of sampled tokens at their places, 0 elsewhere.
fn spread<'n>(nodes: &[&'n Node], tokens: usize, values: impl Fn(&'n NodeTokens) -> Option<&'n [f32]>) -> Vec<f32> {
    let mut spread = Vec::with_capacity(tokens);
    for node in nodes {
        match values(&node.tokens) {
            Some(values) if !values.is_empty() => {
                let mut values = values.iter();
                spread.extend(node.tokens.mask().iter().map(|sampled| match sampled {
                    true => values.next().copied().unwrap_or_default(),
                    false => 0.0,
                }));
            }
            _ => spread.resize(spread.len() + node.tokens.ids().len(), 0.0),
        }
    }
    spread
}

/// One loss stream: each node's weights in the first sample that carries it, zeros where there is nothing.
fn stream(name: &str, known: &mut [bool], path: &[u32], nodes: &[&Node]) -> Option<Vec<f64>> {
    let mut stream = Vec::new();
    let mut any = false;
    for (position, node) in path.iter().zip(nodes) {
        let known = &mut known[*position as usize];
        let weights = node.tokens.loss_weights().and_then(|weights| weights.get(name));
        match weights.filter(|weights| !*known && weights.iter().any(|weight| *weight != 0.0)) {
            Some(weights) => {
                stream.extend_from_slice(weights);
                (*known, any) = (true, true);
            }
            None => stream.resize(stream.len() + node.tokens.ids().len(), 0.0),
        }
    }
    any.then_some(stream)
}

fn routing(nodes: &[&Node]) -> Result<Option<Routing>, SampleError> {
    let mut parts = Vec::new();
    for node in nodes.iter().filter(|node| !node.tokens.ids().is_empty()) {
        match node.tokens.routed_experts() {
            Some(rows) => parts.push(rows.clone()),
            None => return Ok(None),
        }
    }
    let Some(first) = parts.first() else { return Ok(None) };
    if parts.iter().any(|rows| (rows.layers, rows.top_k) != (first.layers, first.top_k)) {
        return Err(SampleError::RouterShape);
    }
    let rows: usize = parts.iter().map(|rows| rows.rows()).sum();
    let tokens: usize = nodes.iter().map(|node| node.tokens.ids().len()).sum();
    Ok((rows == tokens).then_some(Routing { parts }))
}

fn images(nodes: &[&Node]) -> Result<Option<IndexMap<String, StackedTensor>>, SampleError> {
    let mut stacked: IndexMap<String, StackedTensor> = IndexMap::new();
    let mut counts: IndexMap<&str, usize> = IndexMap::new();
    let images: Vec<&IndexMap<String, Tensor>> = nodes.iter().flat_map(|node| node.tokens.images()).collect();
    for image in &images {
        for (name, tensor) in *image {
            *counts.entry(name).or_default() += 1;
            let fault = || SampleError::ImageShape { name: name.clone() };
            let Some((rows, inner)) = tensor.shape.split_first() else { return Err(fault()) };
            match stacked.get_mut(name) {
                None => {
                    let (dtype, shape) = (tensor.dtype.clone(), tensor.shape.clone());
                    let parts = vec![tensor.data.clone()];
                    stacked.insert(name.clone(), StackedTensor { dtype, shape, parts });
                }
                Some(known) if known.dtype == tensor.dtype && known.shape.get(1..) == Some(inner) => {
                    known.shape[0] += rows;
                    known.parts.push(tensor.data.clone());
                }
                Some(_) => return Err(fault()),
            }
        }
    }
    // A tensor that one image lacks would shift those of the images after it.
    if let Some((name, _)) = counts.iter().find(|(_, count)| **count != images.len()) {
        return Err(SampleError::ImageShape { name: (*name).to_owned() });
    }
    Ok((!stacked.is_empty()).then_some(stacked))
}
