//! One sample cut to the trainer's sequence length, as it enters packing.

use bytes::Bytes;
use indexmap::IndexMap;
use serde::Serialize;

use super::{Routing, SampleError, StackedTensor, TrainingSample, wire};

/// A sample that fits. Its MessagePack form (`rmp_serde::to_vec`) is the trainer's micro batch of 16 fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prepared {
    /// Token ids.
    pub input_ids: Vec<u32>,
    /// Which tokens are trained.
    pub loss_mask: Vec<bool>,
    /// Credit, 0 where there is none.
    #[serde(serialize_with = "wire::doubles")]
    pub advantages: Vec<f32>,
    /// Logprobs when the tokens were sampled.
    #[serde(serialize_with = "wire::doubles")]
    pub inference_logprobs: Vec<f32>,
    /// 0, 1, 2, …
    pub position_ids: Vec<u32>,
    /// Lengths of the sequences: one.
    pub sequence_lengths: Vec<usize>,
    /// Sampling temperatures.
    pub temperatures: Vec<f64>,
    /// The environment's name, once per token.
    pub env_names: Vec<String>,
    /// Lengths of the sequences again, for attention.
    pub seq_lens: Vec<usize>,
    /// Logprobs under the reference model.
    #[serde(serialize_with = "wire::some_doubles")]
    pub ref_logprobs: Option<Vec<f32>>,
    /// Router rows.
    pub routed_experts: Option<Routing>,
    /// Image tensors; `None` when no image is left, and the sequence then counts as text.
    pub mm_kwargs: Option<IndexMap<String, StackedTensor>>,
    /// Kinds of tokens.
    pub mm_token_type_ids: Option<Vec<u32>>,
    /// Weights of the reinforcement loss.
    pub rl_weights: Option<Vec<f64>>,
    /// Weights of the cross-entropy loss.
    pub ce_weights: Option<Vec<f64>>,
    /// Weights of the divergence from the reference.
    pub ref_kl_weights: Option<Vec<f64>>,
}

/// Cuts a sample to `seq_len` tokens, the first ones. An image is kept whole or not at all, with what follows it.
///
/// # Errors
/// Arrays differ in length, images are not marked, or tokens of the reinforcement loss have no advantages.
pub fn prepare(sample: TrainingSample, seq_len: usize) -> Result<Prepared, SampleError> {
    let tokens = sample.token_ids.len();
    check(&sample)?;
    let mut mm_kwargs = sample.mm_kwargs;
    let mut kept = tokens.min(seq_len);
    if tokens > seq_len
        && let (Some(tensors), Some(kinds)) = (&mut mm_kwargs, &sample.mm_token_type_ids)
        && tensors.contains_key("image_grid_thw")
    {
        let images = cut_images(tensors, kinds, seq_len)?;
        kept = images.tokens;
        if images.kept == 0 {
            mm_kwargs = None;
        }
    }
    let routed_experts = sample.routed_experts.map(|mut routing| {
        routing.keep(kept);
        routing
    });
    let advantages = sample.advantages.unwrap_or_else(|| vec![0.0; tokens]);
    Ok(Prepared {
        input_ids: head(sample.token_ids, kept),
        loss_mask: head(sample.mask, kept),
        advantages: head(advantages, kept),
        inference_logprobs: head(sample.logprobs, kept),
        position_ids: (0..kept as u32).collect(),
        sequence_lengths: vec![kept],
        temperatures: head(sample.temperatures, kept),
        env_names: vec![sample.env_name; kept],
        seq_lens: vec![kept],
        ref_logprobs: sample.ref_logprobs.map(|values| head(values, kept)),
        routed_experts,
        mm_kwargs,
        mm_token_type_ids: sample.mm_token_type_ids.map(|values| head(values, kept)),
        rl_weights: sample.rl_weights.map(|values| head(values, kept)),
        ce_weights: sample.ce_weights.map(|values| head(values, kept)),
        ref_kl_weights: sample.ref_kl_weights.map(|values| head(values, kept)),
    })
}

fn head<T>(mut values: Vec<T>, kept: usize) -> Vec<T> {
    values.truncate(kept);
    values
}

fn check(sample: &TrainingSample) -> Result<(), SampleError> {
    let expected = sample.token_ids.len();
    let length = |values: &Option<Vec<f64>>| values.as_ref().map(Vec::len);
    let singles = |values: &Option<Vec<f32>>| values.as_ref().map(Vec::len);
    let lengths = [
        ("mm_token_type_ids", sample.mm_token_type_ids.as_ref().map(Vec::len)),
        ("mask", Some(sample.mask.len())),
        ("logprobs", Some(sample.logprobs.len())),
        ("temperatures", Some(sample.temperatures.len())),
        ("ref_logprobs", singles(&sample.ref_logprobs)),
        ("advantages", singles(&sample.advantages)),
        ("rl_weights", length(&sample.rl_weights)),
        ("ce_weights", length(&sample.ce_weights)),
        ("ref_kl_weights", length(&sample.ref_kl_weights)),
        ("routed_experts", sample.routed_experts.as_ref().map(Routing::rows)),
    ];
    for (what, got) in lengths {
        if let Some(got) = got.filter(|got| *got != expected) {
            return Err(SampleError::Length { what, expected, got });
        }
    }
    let has_grids = sample.mm_kwargs.as_ref().is_some_and(|tensors| tensors.contains_key("image_grid_thw"));
    if has_grids && sample.mm_token_type_ids.is_none() {
        return Err(SampleError::UnmarkedImages);
    }
    let mut weights = sample.rl_weights.iter().flatten();
    let is_rl = |trained: &bool| weights.next().is_none_or(|weight| *weight != 0.0) && *trained;
    if sample.advantages.is_none() && sample.mask.iter().any(is_rl) {
        return Err(SampleError::NoAdvantages);
    }
    if sample.env_name == "all" { Err(SampleError::ReservedName) } else { Ok(()) }
}

/// What is left of the images.
struct Cut {
    kept: usize,
    tokens: usize,
}

/// Keeps the images whose tokens all stand among the first `seq_len`.
fn cut_images(
    tensors: &mut IndexMap<String, StackedTensor>,
    kinds: &[u32],
    seq_len: usize,
) -> Result<Cut, SampleError> {
    let fault = |name: &str| SampleError::Tensor { name: name.to_owned() };
    let patches = tensors.get("image_grid_thw").map(StackedTensor::row_products).transpose()?.unwrap_or_default();
    let rows = tensors.get("pixel_values").and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0);
    let marked: Vec<usize> = (0..kinds.len()).filter(|position| kinds[*position] != 0).collect();
    let per_token = rows.checked_div(marked.len()).unwrap_or(1).max(1);
    let surviving = marked.iter().take_while(|position| **position < seq_len).count();
    let (mut kept, mut used, mut kept_patches) = (0, 0_usize, 0_usize);
    for image in patches {
        if used.saturating_add(image / per_token) > surviving {
            break;
        }
        kept += 1;
        used += image / per_token;
        kept_patches = kept_patches.saturating_add(image);
    }
    let tokens = if used == surviving { seq_len } else { marked[used] };
    if kept > 0 {
        for (name, tensor) in tensors {
            let rows = if name == "image_grid_thw" { kept } else { kept_patches };
            tensor.keep(rows).ok_or_else(|| fault(name))?;
        }
    }
    Ok(Cut { kept, tokens })
}

impl Routing {
    /// How many tokens have rows.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows()).sum()
    }

    /// Keeps the first rows; no bytes move.
    fn keep(&mut self, rows: usize) {
        let mut left = rows;
        for part in &mut self.parts {
            let kept = part.rows().min(left);
            let row = part.data.len().checked_div(part.rows()).unwrap_or(0);
            part.data.truncate(kept * row);
            left -= kept;
        }
    }
}

impl StackedTensor {
    /// The product of each row of whole numbers, for `image_grid_thw`.
    fn row_products(&self) -> Result<Vec<usize>, SampleError> {
        let fault = || SampleError::Tensor { name: "image_grid_thw".to_owned() };
        let &[rows, columns] = &self.shape[..] else { return Err(fault()) };
        let data = self.parts.concat();
        if self.dtype != "int64"
            || columns == 0
            || rows.checked_mul(columns).and_then(|n| n.checked_mul(8)) != Some(data.len())
        {
            return Err(fault());
        }
        let number = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_le_bytes).and_then(|n| usize::try_from(n).ok());
        let product = |row: &[u8]| row.chunks_exact(8).try_fold(1_usize, |product, n| product.checked_mul(number(n)?));
        data.chunks_exact(8 * columns).map(|row| product(row).ok_or_else(fault)).collect()
    }

    /// Keeps the first rows, or `None` when there are not so many; no bytes move.
    fn keep(&mut self, rows: usize) -> Option<()> {
        let all = *self.shape.first()?;
        let bytes: usize = self.parts.iter().map(Bytes::len).sum();
        if rows > all || !bytes.is_multiple_of(all.max(1)) {
            return None;
        }
        let mut left = rows * bytes.checked_div(all).unwrap_or(0);
        for part in &mut self.parts {
            part.truncate(left);
            left -= part.len();
        }
        self.shape[0] = rows;
        Some(())
    }
}
